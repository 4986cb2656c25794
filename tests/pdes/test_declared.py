"""A new word of a row is declared in one place: it is checked, moved, grown, compared and moved forward in time."""

from typing import Annotated

import numpy as np
import pytest

from nadi.pdes import build_world
from nadi.pdes.checkpoint.checking import DamagedStateError, check_world
from nadi.pdes.checkpoint.moving import move_rows
from nadi.pdes.checkpoint.numbering import QueuePairs, shared_by
from nadi.pdes.construction import worlds
from nadi.pdes.core import declared, jit
from nadi.pdes.core import state as s
from nadi.pdes.core.declared import grow
from nadi.pdes.core.memory import never_used
from nadi.pdes.core.rows.nic import QueuePair
from nadi.pdes.core.rows.row import RowsOf, word
from nadi.pdes.reuse_kernels import quiescent
from tests.parallel.matrix import case, owner_of

NAME = "lossy"


class LongPair(QueuePair, words=24):
    """A queue pair with more words."""

    spare_link = word("link", "a link of this LP, -1 none", begins=-1)
    spare_ps = word("time", "a time, -1 none", begins=-1, rest="recent")
    spare_code = word("code", "a part of the state", rest="same")
    spare_list = word("count", "0 unless something is under way", rest="begins")
    spare_note = word("count", "nothing that matters")


@pytest.fixture(autouse=True)
def _longer_pairs(monkeypatch):
    """Let queue pairs have the words, and forget what was found of the declarations."""
    found = (declared.saved_arrays, declared.arrays_by, declared.rows_by, quiescent._resting, jit._dtypes)
    for each in found:
        each.cache_clear()
    monkeypatch.setitem(s.Qps.__annotations__, "qp", Annotated[np.recarray, LongPair, RowsOf.PAIR])
    monkeypatch.setattr(worlds.nic, "QueuePair", LongPair)
    yield
    for each in found:
        each.cache_clear()


@pytest.fixture
def whole():
    """The only LP of a run, before the run."""
    lp = build_world(*case(NAME)[:3]).lps[0]
    lp.world.npus.npu.ready_head = -1
    return lp


def at_rest(lp, moment_ps=10_000, forgotten_ps=1000):
    return quiescent.words_at_rest(lp.world, moment_ps, forgotten_ps)


def test_it_is_checked(whole):
    check_world(whole)
    whole.world.qps.qp.spare_link[3] = len(whole.world.net.tx) + 1
    with pytest.raises(DamagedStateError, match="spare_link"):
        check_world(whole)


def test_it_grows(whole):
    old = len(whole.world.qps.qp)
    whole.world.qps.qp.spare_link = 5
    whole.world.net.ctl.need = s.NEED_QPS
    qp = grow(whole.world).qps.qp
    assert len(qp) >= 2 * old
    assert (qp.spare_link[:old] == 5).all()
    assert (qp.spare_link[old:] == -1).all(), "new rows begin as declared"


def test_it_is_moved(whole):
    graph, program, settings = case(NAME)[:3]
    owner = owner_of(NAME, "scatter", 3)
    lps = build_world(graph, program, settings, owner).lps
    pairs = QueuePairs([np.zeros(0, np.int64)], np.zeros(graph.nodes, np.int64), owner, graph.npus)
    own = np.flatnonzero(owner[graph.link_src] == 1)
    saved = whole.world.qps.qp
    row = {int(link): place for place, link in enumerate(whole.part.links)}
    saved.spare_link[:4] = row[int(own[0])], row[int(own[-1])], -1, row[int(own[1])]
    saved.spare_ps[:4] = saved.spare_note[:4] = 1, 2, 3, 4
    shared = shared_by(whole.part, whole.world, lps[1], program.slot_ptr, pairs)
    move_rows(shared, RowsOf.PAIR, np.arange(4), np.array([7, 5, 6, 4]))
    moved = lps[1].world.qps.qp
    links = lps[1].part.links
    assert [int(links[link]) for link in moved.spare_link[[7, 5, 4]]] == [int(own[at]) for at in (0, -1, 1)]
    assert moved.spare_link[6] == -1
    assert moved.spare_ps[4:8].tolist() == moved.spare_note[4:8].tolist() == [4, 2, 3, 1]


def test_it_is_compared(whole):
    qp = whole.world.qps.qp
    before = at_rest(whole)
    assert before is not None
    qp.spare_note[2] = 7
    assert np.array_equal(at_rest(whole), before)
    qp.spare_code[2] = 7
    assert not np.array_equal(at_rest(whole), before)
    qp.spare_code[2] = 0
    qp.spare_ps[2] = 9500
    recent = at_rest(whole)
    assert not np.array_equal(recent, before)
    qp.spare_ps[2] = 19_500
    assert np.array_equal(at_rest(whole, 20_000), recent), "only the time since then counts"
    qp.spare_ps[2] = 10
    assert np.array_equal(at_rest(whole), before), "it is forgotten"
    qp.spare_list[2] = 1
    assert at_rest(whole) is None


def test_it_moves_forward(whole):
    qp, npus = whole.world.qps.qp, whole.part.npus
    qp.spare_ps[:2] = 5, s.INF
    qp.spare_code[:2] = 5
    whole.world.npus.npu.lane[1] = -1, 3, -1, 0
    slots = np.diff(case(NAME)[1].slot_ptr)[whole.part.nodes[:npus]]
    quiescent.go_forward(whole.world, 100, np.full(npus, 4), slots)
    assert qp.spare_ps[:3].tolist() == [105, s.INF, -1]
    assert qp.spare_code[:2].tolist() == [5, 5]
    assert whole.world.nvlink is never_used(s.Domains)
    assert whole.world.nvlink.member.crossed_ps == 0, "all worlds share it"
    assert whole.world.npus.npu.lane[:2].tolist() == [[-1] * 4, [-1, 7, -1, 4]], "as do words that name trace rows"
