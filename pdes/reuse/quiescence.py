"""What the words of a logical process tell at a moment without packets and messages, and how they move forward in time.

Both follow from the declarations of words and arrays (pdes.core.rows, pdes.core.state): what a word counts in such a
moment (`Rest`), and which words are times and trace rows. Lists of an NPU, whose order matters, are left to kernels:
pdes/reuse_kernels/quiescent.py writes their state, pdes/reuse_kernels/recurring.py moves them forward.
"""

import functools
from typing import Any

import numpy as np

from nadi.pdes.core import state as s
from nadi.pdes.core.declared import DeclaredArray, rows_by, saved_arrays
from nadi.pdes.core.hashing import FREE
from nadi.pdes.core.inputs import Int64, Rows
from nadi.pdes.core.rows.row import Rest, Row, RowsOf, Word, WordKind
from nadi.pdes.reuse_kernels.quiescent import APPROXIMATE

_LASTING = (RowsOf.NODE, RowsOf.LINK, RowsOf.NPU, RowsOf.PORT, RowsOf.SLOT, RowsOf.PAIR)  # tables whose rows are in use


@functools.cache
def _resting() -> list[tuple[DeclaredArray, list[tuple[str, Word]]]]:
    """Return the arrays with words that count in the state at rest, and these words by name."""
    arrays = [(each, getattr(each.kind, "declared", {}).items()) for each in saved_arrays()]
    found = [(each, [(name, word) for name, word in words if word.rest is not Rest.IGNORED]) for each, words in arrays]
    return [(each, words) for each, words in found if words]


def words_at_rest(world: s.World, moment_ps: int, forgotten_ps: int) -> Int64 | None:
    """Return words that are equal for moments with equal futures; None if something is under way.

    Those that may differ a little where a state recurs only nearly, times and counts of ties, have APPROXIMATE added.

    Args:
        world: State of the LP (`World`).
        moment_ps: Time in ps to which times are relative.
        forgotten_ps: Age in ps from which times at ports no longer matter.
    """
    net = world.net
    pairs, receivers, nodes = (
        _plain(world.qps.qp)[: int(net.ctl.queue_pairs)],
        _plain(world.qps.rxqp),
        _plain(net.counts),
    )
    end_seq = pairs["end_seq"]
    is_open = (pairs["una"] != end_seq) | (pairs["next_seq"] != end_seq) | (pairs["head_message"] >= 0)
    is_missing = (receivers["nak_sent"] & 1 != 0) & (receivers["key"] != FREE)
    # a recent choice by load balancing still affects the next one
    chooses = net.hooks.balancing != 0 and (moment_ps - nodes["last_choice_ps"] <= forgotten_ps).any()
    if is_open.any() or is_missing.any() or chooses:
        return None
    found: dict[Rest, list[Any]] = {rest: [] for rest in Rest}
    for each, words in _resting():
        rows = _plain(each.of(world))
        for name, word in words:
            values = rows[name]
            found[word.rest].append(values != word.begins if word.rest is Rest.BEGINS else values)
    begins, same, future, recent = (found[rest] for rest in (Rest.BEGINS, Rest.SAME, Rest.FUTURE, Rest.RECENT))
    if np.concatenate(begins).any():
        return None
    same += [world.nvlink.started, *(_ties(rows, moment_ps, forgotten_ps) for rows in (nodes, _plain(net.port_ties)))]
    times = _since(np.concatenate(future), moment_ps, -1), _since(np.concatenate(recent), moment_ps, -forgotten_ps)
    return np.concatenate([*same, *times])


def _plain(rows: Any) -> Any:
    """Return rows, or the array of one row, as an array whose columns are found faster than those of a recarray."""
    return np.asarray(rows.base if isinstance(rows, np.record) else rows).view(np.ndarray)


def _since(times_ps: Int64, moment_ps: int, oldest_ps: int) -> Int64:
    """Return times since a moment, INF if never; those older than oldest_ps no longer matter, so they are the same."""
    return np.where(times_ps < s.INF, np.maximum(times_ps - moment_ps, oldest_ps) + APPROXIMATE, s.INF)


def _ties(rows: Rows, moment_ps: int, forgotten_ps: int) -> Int64:
    """Return the ties that nodes or ports, rows of `NodeCounts` or `PortTies`, have had and not forgotten."""
    age_ps = moment_ps - rows["last_tie_ps"]
    lasts = age_ps <= forgotten_ps
    return np.concatenate([rows["ties"] * lasts, age_ps * lasts]) + APPROXIMATE


def go_forward(world: s.World, shift_ps: int, added_rows: Int64, slots: Int64) -> None:
    """Let all times of an LP be later at a quiescent moment, and trace rows that its words name further.

    Args:
        world: State of the LP (`World`), which the function changes.
        shift_ps: Time in ps by which everything is later.
        added_rows: int64[NPUs], added trace rows of each NPU.
        slots: int64[NPUs], number of group slots of each NPU.
    """
    by_slot = np.zeros(len(world.rows.slot_next), np.int64)
    first = world.npus.npu.slot_base[: len(slots)]
    at = np.repeat(first - np.cumsum(slots) + slots, slots) + np.arange(int(slots.sum()))
    by_slot[at] = np.repeat(added_rows, slots)
    further: dict[RowsOf | None, Int64] = {RowsOf.NPU: added_rows, RowsOf.SLOT: by_slot}
    for each in (each for table in _LASTING for each in rows_by(table)):
        if each.is_shared(world):
            continue
        array, added = each.of(world), further.get(each.table)
        if not issubclass(each.kind, Row):
            _go_forward(array, each.word, 0, shift_ps, added)
            continue
        for name, word in each.kind.declared.items():
            if not word.is_built:
                _go_forward(array[name], word.kind, word.plus, shift_ps, added)


def _go_forward(values: Any, kind: WordKind | None, plus: int, shift_ps: int, added: Int64 | None) -> None:
    """Let values of one word be later, or name later trace rows, in place; negative ones and INF name nothing."""
    if kind is WordKind.TIME:
        values[(values >= 0) & (values < s.INF)] += shift_ps
    # arrays that a run does not use have one item
    elif kind is WordKind.ROW and added is not None and len(values) == len(added):
        by = added.reshape(-1, *[1] * (values.ndim - 1)).astype(values.dtype)
        np.add(values, by, out=values, where=values >= plus)
