"""Rows: as declared, in memory, in kernels and in the generated data dictionary."""

import importlib
import inspect
from itertools import combinations
from typing import Annotated, NamedTuple

import numba
import numpy as np
import pytest

from nadi import pdes
from nadi.compiling import kernel_cache
from nadi.pdes import construction
from nadi.pdes.checkpoint.checking import DamagedStateError, check_world
from nadi.pdes.checkpoint.moving import move_rows
from nadi.pdes.checkpoint.whole_fabric import QueuePairs, shared_by
from nadi.pdes.construction.constants import hooks_of
from nadi.pdes.construction.layout import Layout
from nadi.pdes.core import declared as declarations, jit, state as s
from nadi.pdes.core.jit import CACHE_LINE, never_used, row_of, rows_of
from nadi.pdes.core.rows import Row, RowsOf, WordKind, kinds_of_rows, word
from nadi.pdes.core.rows.messages import WholeMessage
from nadi.pdes.core.rows.network import CongestionState, LaterMessage, Message, PairPaths, PendingRequest, QueuePair
from nadi.pdes.core.rows.npu import Npu
from nadi.pdes.core.rows.run import BatchHooks
from nadi.pdes.network import detours
from nadi.pdes.reuse_kernels import quiescent
from nadi.pdes.workers.other_teams import OTHER_TEAMS
from nadi.simulation.closed_forms.advancing.state import NpuClass
from nadi.topologies import build
from nadi.workload import collective_program
from scripts.document_reference import documentation_of_rows
from tests.nonempty import nonempty
from tests.parallel.matrix import case, owner_of
from tests.rules.kernels import declared_arguments
from tests.rules.rows import kinds, written


def below(kind):
    return [each for each in KINDS_OF_ROWS if issubclass(each, kind) and each is not kind]


KINDS_OF_ROWS = kinds()


@pytest.mark.parametrize("kind", KINDS_OF_ROWS, ids=lambda kind: kind.__name__)
def test_a_row_is_as_long_as_declared_and_its_words_lie_one_behind_the_other(kind):
    asked = [each.value.value for each in written(kind).keywords if each.arg == "words"]
    bits = [each.value.value for each in written(kind).keywords if each.arg == "bits"] or [64]
    whole = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
    assert kind.dtype.itemsize == bits[0] // 8 * kind.words
    if asked:
        assert kind.dtype.itemsize % CACHE_LINE == 0 or CACHE_LINE % kind.dtype.itemsize == 0
    at = 0
    for name, declared in kind.declared.items():
        field, offset = kind.dtype.fields[name]
        assert offset == at, name
        own = declared.bits or bits[0]
        assert field.base == (np.float64 if declared.kind is WordKind.FLOAT else whole[own]), name
        assert field.itemsize == own // 8 * declared.many, name
        at += field.itemsize
    assert [kind.words] == (asked or [-(-at // (bits[0] // 8))])


@pytest.mark.parametrize("pair", [*combinations((Message, WholeMessage, PendingRequest, LaterMessage), 2)])
def test_kinds_that_share_memory_agree_on_the_words_that_they_share(pair):
    first, second = (kind.dtype for kind in pair)
    assert first.itemsize == second.itemsize
    shared = {"payload_bytes", "tag", "ref"}
    assert shared <= set(first.names) & set(second.names)
    for name in nonempty(set(first.names) & set(second.names) - {"_padding"}):
        assert first.fields[name] == second.fields[name], name


@pytest.mark.parametrize("kind", [kind for kind in KINDS_OF_ROWS if below(kind)], ids=lambda kind: kind.__name__)
def test_what_is_added_to_a_kind_of_row_leaves_its_words_where_they_are(kind):
    for derived in nonempty(below(kind)):
        assert derived.dtype.itemsize == kind.dtype.itemsize
        assert {name: derived.dtype.fields[name] for name in kind.declared} == {
            name: kind.dtype.fields[name] for name in kind.declared
        }


def test_rows_refuse_what_would_not_work():
    with pytest.raises(TypeError, match="Bad: NumPy's records have attributes size, flags of their own"):
        type("Bad", (Row,), {name: word("count", "things") for name in ("size", "flags", "other")})
    with pytest.raises(TypeError, match="Long: 9 words, expected at most 8"):
        type("Long", (Row,), {"many": word("count", "things", many=9)}, words=8)


def test_rows_begin_as_their_words_say():
    class Lamp(Row, words=8):
        lit = word("flag", "it burns")
        last = word("time", "when it was lit, -1 never", begins=-1)
        bulbs = word("count", "that it has", many=2, begins=3)

    lamps = rows_of(Lamp, 2, lit=[0, 1])
    assert (lamps.lit.tolist(), lamps.last.tolist(), lamps.bulbs.tolist()) == ([0, 1], [-1, -1], [[3, 3], [3, 3]])
    assert row_of(Lamp, last=5).last == 5
    assert len(rows_of(Lamp, 0)) == 1, "it has an address"
    assert lamps.ctypes.data % CACHE_LINE == 0


def test_hooks_take_what_is_passed_on():
    with_all = pdes.Settings(
        congestion_control=pdes.congestion.control("hpcc"),
        load_balancing=pdes.balancing.balancing("adaptive"),
        routing=detours.detours("valiant"),
        switch=pdes.SharedBuffer(buffer_bytes=1 << 24, class_weights=(1, 1)),
        selective_repeat=True,
        rendezvous_bytes=1,
        collectives_in_flight=1,
        compute_slowdown=2.0,
    )
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=2,spines=2")
    found = hooks_of(Layout(graph, with_all), with_all) | OTHER_TEAMS
    others = {"congestion_control": [pdes.congestion.control(name).update for name in pdes.congestion.names()]}
    others["discipline"] = [pdes.disciplines.discipline(name).pick for name in pdes.disciplines.names()]
    others["balancing"] = [pdes.balancing.balancing(name).pick for name in pdes.balancing.names()]
    others["detour"] = [detours.detours(name).route for name in detours.names()]
    others["act"] = [hooks.act for model in pdes.fidelity.networks().values() for hooks in model.hooks]
    for name, hook in found.items():
        for function in {hook, *others.get(name, [])} - {None}:
            names = inspect.signature(getattr(function, "py_func", function)).parameters
            assert len(names) == 1 + len(declared_arguments(name)), (name, function)
    assert len(found) > 12 + len(OTHER_TEAMS)
    assert OTHER_TEAMS.keys() == set(BatchHooks.declared)


for _module in kernel_cache.modules():
    importlib.import_module(_module)


def test_every_word_of_every_row_is_in_the_dictionary():
    """By hand from the declarations, so that the generator cannot omit any."""
    sections = dict(part.split("\n", 1) for part in documentation_of_rows(kinds_of_rows()).split("\n## ")[1:])
    assert {kind.__name__ for kind in kinds_of_rows()} <= set(sections)
    for kind in nonempty(kinds_of_rows()):
        inherited = getattr(kind.__bases__[0], "declared", {})
        for name, declared in kind.declared.items():
            if name not in inherited and not name.startswith("_"):
                line = next(line for line in sections[kind.__name__].splitlines() if line.startswith(f"| `{name}`"))
                assert declared.meaning.replace("|", "\\|") in line


def test_npus_have_words_for_every_lane():
    for kind in (Npu, NpuClass):
        assert {kind.declared[name].many for name in ("lane", "wait_head", "wait_tail")} == {s.LANES}


def test_a_section():
    class Shelf(Row, words=8):
        """Books,
        side by side."""

        books = word("count", "read | not read", many=3)

    class TallShelf(Shelf):
        top_ps = word("time", "dusted")

    shown = documentation_of_rows([Shelf, TallShelf])
    assert "## Shelf\n\nBooks, side by side.\n\n8 words (64 bytes), 3 of them in use, declared in `" in shown
    assert "| `books` [3] | count | read \\| not read |" in shown
    tall = shown.split("## TallShelf")[1]
    assert "| ... | | as Shelf |\n| `top_ps` | time | dusted |" in tall
    assert "books" not in tall


class Inner(NamedTuple):
    small: Annotated[np.ndarray, np.int8]
    flag: Annotated[np.ndarray, np.bool_]


class Outer(NamedTuple):
    first: Annotated[np.ndarray, np.int64]
    inner: Inner
    real: Annotated[np.ndarray, np.float64]
    int32: Annotated[np.ndarray, np.int32]


outer_at = jit.reader(Outer)


@jit.inline
def double(items, i):
    items[i] *= 2


@jit.kernel
def change(address, i):
    """Read and write an item of each type, through functions and names."""
    w = outer_at(address)
    inner = w.inner
    double(w.first, i)
    double(w.int32, i)
    double(w.real, i)
    inner.small[i] += w.int32[i]
    inner.flag[i] = not inner.flag[i]
    w.first[0] = w.int32.shape[0]
    return w.real[i] + inner.small[i]


@jit.kernel
def first(address, i):
    return outer_at(address).first[i]


def outer(items):
    return Outer(
        np.arange(items, dtype=np.int64),
        Inner(np.arange(items, dtype=np.int8), np.zeros(items, np.bool_)),
        np.arange(items) / 4,
        np.arange(items, dtype=np.int32) - 9,
    )


def test_kernels_read_and_write_all_types():
    record = outer(6)
    directory = jit.Directory(record)
    assert change(directory.address, 5) == 2.5 + 5 - 8
    assert record.first.tolist() == [6, 1, 2, 3, 4, 10]
    assert record.inner.small.tolist() == [0, 1, 2, 3, 4, -3]
    assert record.inner.flag.tolist() == [False] * 5 + [True]
    assert record.real.tolist() == [0, 0.25, 0.5, 0.75, 1, 2.5]
    assert record.int32.tolist() == [-9, -8, -7, -6, -5, -8]


def test_the_next_call_sees_what_the_directory_says_by_then():
    directory = jit.Directory(outer(3))
    assert first(directory.address, 2) == 2
    directory.update(outer(3)._replace(first=np.array([7, 8, 9])))
    assert first(directory.address, 2) == 9


def test_bounds_are_checked_where_numba_is_asked_to(monkeypatch):
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", 1)
    checked = numba.njit(_nrt=False)(first.py_func)
    assert checked(jit.Directory(outer(3)).address, 2) == 2
    with pytest.raises(IndexError, match="Items\\(int64\\)"):
        checked(jit.Directory(outer(3)).address, 3)


def test_a_field_that_is_not_there_does_not_compile():
    @jit.kernel
    def wrong(address):
        return outer_at(address).second[0]

    with pytest.raises(numba.core.errors.NumbaError, match="second"):
        wrong(jit.Directory(outer(1)).address)


def test_a_directory_takes_arrays_of_the_declared_types_only():
    world = pdes.build_world(build("switch:npus=2"), collective_program("barrier", 2, 0), pdes.Settings()).lps[0].world
    directory = jit.Directory(world)
    wrong = world._replace(net=world.net._replace(block_next=world.net.block_next.astype(np.int64)))
    with pytest.raises(TypeError, match=r"^block_next: found int64, expected a contiguous array of int32$"):
        directory.update(wrong)
    strided = world._replace(rows=world.rows._replace(start=np.zeros(8, np.int64)[::2]))
    with pytest.raises(TypeError, match=r"^start: found int64, expected a contiguous array of int64$"):
        directory.update(strided)


NAME = "lossy"


class LongPair(QueuePair, words=24):
    """A queue pair with more words."""

    spare_link = word("link", "a link of this LP, -1 none", begins=-1)
    spare_ps = word("time", "a time, -1 none", begins=-1, rest="recent")
    spare_code = word("code", "a part of the state", rest="same")
    spare_list = word("count", "0 unless something is under way", rest="begins")
    spare_note = word("count", "nothing that matters")


@pytest.fixture
def longer_pairs(monkeypatch):
    """Let queue pairs have the words, and forget what was found of the declarations."""
    found = (declarations.saved_arrays, declarations.arrays_by, declarations.rows_by, quiescent._resting, jit._dtypes)
    for each in found:
        each.cache_clear()
    monkeypatch.setitem(s.Qps.__annotations__, "qp", Annotated[np.recarray, LongPair, RowsOf.PAIR])
    monkeypatch.setattr(construction.network, "QueuePair", LongPair)
    yield
    for each in found:
        each.cache_clear()


@pytest.fixture
def whole(longer_pairs):  # noqa: ARG001 - declares the words
    lp = pdes.build_world(*case(NAME)[:3]).lps[0]
    lp.world.npus.npu.ready_head = -1
    return lp


def at_rest(lp, moment_ps=10_000, forgotten_ps=1000):
    return quiescent.words_at_rest(lp.world, CongestionState, PairPaths, moment_ps, forgotten_ps)


def test_it_is_checked(whole):
    check_world(whole)
    whole.world.qps.qp.spare_link[3] = len(whole.world.net.tx) + 1
    with pytest.raises(DamagedStateError, match="spare_link"):
        check_world(whole)


def test_it_grows(whole):
    old = len(whole.world.qps.qp)
    whole.world.qps.qp.spare_link = 5
    whole.world.net.ctl.need = s.NEED_QPS
    qp = declarations.grow(whole.world).qps.qp
    assert len(qp) >= 2 * old
    assert (qp.spare_link[:old] == 5).all()
    assert (qp.spare_link[old:] == -1).all(), "new rows begin as declared"


def test_it_is_moved(whole):
    graph, program, settings = case(NAME)[:3]
    owner = owner_of(NAME, "scatter", 3)
    lps = pdes.build_world(graph, program, settings, owner).lps
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
    quiescent.go_forward(whole.world, CongestionState, PairPaths, 100, np.full(npus, 4), slots)
    assert qp.spare_ps[:3].tolist() == [105, s.INF, -1]
    assert qp.spare_code[:2].tolist() == [5, 5]
    assert whole.world.nvlink is never_used(s.Domains)
    assert whole.world.nvlink.member.crossed_ps == 0, "all worlds share it"
    assert whole.world.npus.npu.lane[:2].tolist() == [[-1] * 4, [-1, 7, -1, 4]], "as do words that name trace rows"
