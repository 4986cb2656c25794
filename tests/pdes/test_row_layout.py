"""Rows lie in memory as their declarations say, and hooks take what their rows say."""

import inspect
from itertools import combinations

import numpy as np
import pytest

from nadi.pdes import Settings, SharedBuffer, balancing, congestion, disciplines, fidelity
from nadi.pdes.construction.constants import hooks_of
from nadi.pdes.construction.layout import Layout
from nadi.pdes.core.memory import CACHE_LINE, row_of, rows_of
from nadi.pdes.core.rows.messages import WholeMessage
from nadi.pdes.core.rows.nic import LaterMessage, Message, PendingRequest
from nadi.pdes.core.rows.row import Row, WordKind, word
from nadi.pdes.core.rows.run import BatchHooks
from nadi.pdes.workers.other_teams import OTHER_TEAMS
from nadi.topologies import build
from tests.nonempty import nonempty
from tests.rules.kernels import declared_arguments
from tests.rules.rows import kinds, written


def below(kind):
    """All kinds of rows that are derived from one."""
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
    with_all = Settings(
        congestion_control=congestion.control("hpcc"),
        load_balancing=balancing.balancing("adaptive"),
        switch=SharedBuffer(buffer_bytes=1 << 24, class_weights=(1, 1)),
        selective_repeat=True,
        rendezvous_bytes=1,
        collectives_in_flight=1,
        compute_slowdown=2.0,
    )
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=2,spines=2")
    found = hooks_of(Layout(graph, with_all), with_all) | OTHER_TEAMS
    others = {"congestion_control": [congestion.control(name).update for name in congestion.names()]}
    others["discipline"] = [disciplines.discipline(name).pick for name in disciplines.names()]
    others["balancing"] = [balancing.balancing(name).pick for name in balancing.names()]
    others["act"] = [hooks.act for model in fidelity.networks().values() for hooks in model.hooks]
    for name, hook in found.items():
        for function in {hook, *others.get(name, [])} - {None}:
            names = inspect.signature(getattr(function, "py_func", function)).parameters
            assert len(names) == 1 + len(declared_arguments(name)), (name, function)
    assert len(found) > 12 + len(OTHER_TEAMS)
    assert OTHER_TEAMS.keys() == set(BatchHooks.declared)
