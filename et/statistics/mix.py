"""Composition of traces: operators by name, collectives by kind and group, sizes."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from et.reshape.partners import COLLECTIVE_LANE, COMMUNICATION_LANES, LANES, NO_LANE, lanes_of
from et.statistics.ranks import Rank
from et.summary import collective_name

_NUMBERS = re.compile(r"\d+")


def operator_mix(ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """Return nodes by lane and name, over all ranks, those that take most time first.

    A name is the text after the last slash, with # for its numbers: `attention` for
    step0/forward/mb3/layer17/attention, and `ProfilerStep#` for ProfilerStep#5. "micros" sums durations, "flops"
    num_ops, "bytes" tensor_size or comm_size.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for rank, times in _tables(ranks):
        table = rank.table
        kinds: dict[tuple[int, str], int] = {}
        row_kind = np.empty(len(table), np.int64)
        lanes = lanes_of(table)
        for row, (lane, name) in enumerate(zip(lanes.tolist(), table.names, strict=True)):
            row_kind[row] = kinds.setdefault((lane, _short(name)), len(kinds))
        sizes = np.where(np.isin(lanes, COMMUNICATION_LANES), table.comm_size, table.tensor_size)
        columns = (np.ones(len(table), np.int64), table.duration_micros, table.num_ops, sizes)
        sums = [np.bincount(row_kind, np.maximum(column, 0), len(kinds)) for column in columns]
        for (lane, name), number in kinds.items():
            key = (LANES[lane] if lane != NO_LANE else "metadata", name)
            total = found.setdefault(key, [0, 0, 0, 0])
            for i, column in enumerate(sums):
                total[i] += times * int(column[number])
    rows = [
        {"lane": lane, "name": name, "count": count, "micros": micros, "flops": flops, "bytes": size}
        for (lane, name), (count, micros, flops, size) in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["micros"], -row["flops"], -row["bytes"], -row["count"], row["name"]))


def collective_mix(ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """Return the number of nodes and their sizes in bytes, by kind and group of collectives, and for messages.

    "missing_sizes" counts nodes without comm_size, which the sizes leave out; "micros" sums durations.
    """
    found: dict[tuple[str, str], list[Any]] = {}
    for rank, times in _tables(ranks):
        table, lanes = rank.table, lanes_of(rank.table)
        for lane in COMMUNICATION_LANES:
            rows = np.flatnonzero(lanes == lane)
            keys = np.stack([table.comm_type[rows].astype(np.int64), table.group[rows].astype(np.int64)], axis=1)
            for kind, group in np.unique(keys, axis=0).tolist():
                own = rows[(keys == (kind, group)).all(axis=1)]
                name = collective_name(kind) if lane == COLLECTIVE_LANE else LANES[lane]
                entry = found.setdefault(
                    (name, table.group_names[group] if lane == COLLECTIVE_LANE else ""), [0, 0, 0, 0, {}]
                )
                sizes = table.comm_size[own]
                entry[0] += times * len(own)
                entry[1] += times * sum(sizes[sizes >= 0].tolist())
                entry[2] += times * int(np.count_nonzero(sizes < 0))
                entry[3] += times * int(table.duration_micros[own].sum())
                for size, count in zip(
                    *(a.tolist() for a in np.unique(sizes[sizes >= 0], return_counts=True)), strict=True
                ):
                    entry[4][size] = entry[4].get(size, 0) + times * count
    rows_ = []
    for (kind, group), (count, size, missing, micros, sizes) in found.items():
        summary = {
            "kind": kind,
            "group": group,
            "count": count,
            "bytes": size,
            "missing_sizes": missing,
            "micros": micros,
        }
        rows_.append(summary | _sizes(sizes))
    return sorted(rows_, key=lambda row: (-row["bytes"], row["kind"], row["group"]))


def _sizes(counts: dict[int, int]) -> dict[str, Any]:
    """Return smallest, median and largest size, and the number of distinct sizes."""
    if not counts:
        return {"least_bytes": 0, "median_bytes": 0, "most_bytes": 0, "different_sizes": 0}
    ordered = sorted(counts)
    before = np.cumsum([counts[size] for size in ordered])
    median = ordered[int(np.searchsorted(before, (before[-1] + 1) // 2))]
    return {
        "least_bytes": ordered[0],
        "median_bytes": median,
        "most_bytes": ordered[-1],
        "different_sizes": len(ordered),
    }


def _tables(ranks: Sequence[Rank]) -> list[tuple[Rank, int]]:
    """Return the first rank of each distinct trace, and the number of ranks that share it."""
    first: dict[int, list[Any]] = {}
    for rank in ranks:
        first.setdefault(id(rank.table), [rank, 0])[1] += 1
    return [(rank, times) for rank, times in first.values()]


def _short(name: str) -> str:
    return _NUMBERS.sub("#", name.rsplit("/", 1)[-1])
