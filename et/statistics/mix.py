"""Composition of traces: operators by name, collectives by kind and group, sizes."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from nadi.et.reshape.partners import COLLECTIVE_LANE, COMMUNICATION_LANES, LANES, NO_LANE, lanes_of
from nadi.et.statistics.ranks import Rank
from nadi.et.summary import collective_name

_NUMBERS = re.compile(r"\d+")


def operator_mix(ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """Return the nodes of all ranks by lane and name, those that take most time first.

    A name is the text after the last slash, with # for its numbers: `attention` for
    step0/forward/mb3/layer17/attention, and `ProfilerStep#` for ProfilerStep#5. "micros" sums durations, "flops"
    num_ops, "bytes" tensor_size or comm_size.

    Args:
        ranks: The traces of some NPUs.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for rank, times in _tables(ranks):
        table = rank.table
        kinds: dict[tuple[int, str], int] = {}
        row_kind = np.empty(len(table), np.int64)
        lanes = lanes_of(table)
        for row, (lane, name) in enumerate(zip(lanes.tolist(), table.names, strict=True)):
            # Number the pairs of lane and name by first appearance, so that bincount can sum by them
            row_kind[row] = kinds.setdefault((lane, _NUMBERS.sub("#", name.rsplit("/", 1)[-1])), len(kinds))
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

    Args:
        ranks: The traces of some NPUs.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for rank, times in _tables(ranks):
        table, lanes = rank.table, lanes_of(rank.table)
        for lane in COMMUNICATION_LANES:
            rows = np.flatnonzero(lanes == lane)
            # The distinct pairs of kind and group
            keys = np.stack([table.comm_type[rows].astype(np.int64), table.group[rows].astype(np.int64)], axis=1)
            for kind, group in np.unique(keys, axis=0).tolist():
                own = rows[(keys == (kind, group)).all(axis=1)]
                is_collective = lane == COLLECTIVE_LANE
                name = collective_name(kind) if is_collective else LANES[lane]
                key = name, table.group_names[group] if is_collective else ""
                entry = found.setdefault(key, {"count": 0, "missing_sizes": 0, "micros": 0, "sizes": Counter()})
                sizes = table.comm_size[own]
                entry["count"] += times * len(own)
                entry["missing_sizes"] += times * int(np.count_nonzero(sizes < 0))
                entry["micros"] += times * int(table.duration_micros[own].sum())
                for size, count in Counter(sizes[sizes >= 0].tolist()).items():
                    entry["sizes"][size] += times * count
    mix = [
        {
            "kind": kind,
            "group": group,
            "count": entry["count"],
            "bytes": sum(size * count for size, count in entry["sizes"].items()),
            "missing_sizes": entry["missing_sizes"],
            "micros": entry["micros"],
            **_sizes(entry["sizes"]),
        }
        for (kind, group), entry in found.items()
    ]
    return sorted(mix, key=lambda row: (-row["bytes"], row["kind"], row["group"]))


def _sizes(count_of_size: Counter[int]) -> dict[str, int]:
    """Return smallest, median and largest size, and the number of distinct sizes."""
    ordered = sorted(count_of_size) or [0]
    # The median of the nodes, from the number of nodes up to each size
    before = np.cumsum([count_of_size[size] for size in ordered])
    median = ordered[int(np.searchsorted(before, (before[-1] + 1) // 2))]
    sizes = {"least_bytes": ordered[0], "median_bytes": median, "most_bytes": ordered[-1]}
    return sizes | {"different_sizes": len(count_of_size)}


def _tables(ranks: Sequence[Rank]) -> list[tuple[Rank, int]]:
    """Return the first rank of each distinct trace, and the number of ranks that share it."""
    first: dict[int, list[Any]] = {}
    for rank in ranks:
        # Ranks that share a trace share the object
        first.setdefault(id(rank.table), [rank, 0])[1] += 1
    return [(rank, times) for rank, times in first.values()]
