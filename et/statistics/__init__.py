"""Statistics over the traces of all NPUs: mixes, sizes by rank, arrivals, overlap, the critical path.

`Rank` is the trace of one NPU; `statistics` returns all statistics as values that JSON can hold. Those of the
composition of traces are here: operators by name, collectives by kind and group, bytes by rank, differences of ranks.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nadi.et.communications import (
    COLLECTIVE_LANE,
    COMMUNICATION_LANES,
    LANES,
    NO_LANE,
    CommunicationMember,
    Key,
    Rank,
    communications_of,
    evenly,
    lanes_of,
    some_of,
)
from nadi.et.reader import collective_name
from nadi.et.statistics.timing import (
    MAX_NODES,
    arrivals,
    critical_path,
    earliest,
    has_durations,
    has_starts,
    overlap,
    percentile,
    values_needed,
)
from nadi.et.table import waited_micros
from nadi.inputs.arrays import Float64


def statistics(ranks: Sequence[Rank], max_nodes: int = MAX_NODES) -> dict[str, Any]:
    """Return statistics over the traces of some NPUs.

    Mixes and sums by rank cover all traces. What needs a visit to each node (collectives, arrivals, the critical path)
    covers the ranks that et.communications.some_of chooses; "looked_at" is their number.

    Args:
        ranks: The traces of some NPUs.
        max_nodes: The number of nodes to visit one by one.
    """
    nodes = sum(len(rank.table) for rank in ranks)
    looked_at = some_of(ranks, max_nodes)
    found = communications_of(looked_at)
    # Each distinct trace once
    tables = {id(rank.table): rank.table for rank in ranks}
    is_timed = has_durations(ranks)
    return {
        "ranks": len(ranks),
        "traces": len(tables),
        "nodes": nodes,
        "looked_at": len(looked_at),
        "times": "start and duration" if has_starts(ranks) else "duration" if is_timed else "none",
        "operators": operator_mix(ranks),
        "collectives": collective_mix(ranks),
        "bytes_by_rank": bytes_by_rank(ranks),
        "sizes_by_collective": sizes_by_collective(looked_at, found),
        "arrivals": arrivals(looked_at, found),
        "overlap": overlap(looked_at),
        "critical_path": critical_path(looked_at, found) if is_timed else None,
    }


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


# Bytes that each rank sends, and differences between ranks within one collective.


MAX_RANKS = 64
MAX_COLLECTIVES = 200


def bytes_by_rank(ranks: Sequence[Rank]) -> dict[str, Any]:
    """Return the sum of comm_size of each rank, by kind of communication.

    "kinds" are columns, "ranks" NPUs, "bytes" a row per rank, "deviation" the relative deviation of each rank from the
    mean of the ranks that have the kind (null: the rank does not have it).

    Args:
        ranks: The traces of some NPUs.
    """
    of_table: dict[int, dict[str, int]] = {}
    for rank in ranks:
        if id(rank.table) not in of_table:
            of_table[id(rank.table)] = _bytes(rank)
    kinds = sorted({kind for own in of_table.values() for kind in own})
    # -1: the rank does not have the kind
    values = np.array([[of_table[id(rank.table)].get(kind, -1) for kind in kinds] for rank in ranks], np.float64)
    values = values.reshape(len(ranks), len(kinds))
    shown = evenly(len(ranks), MAX_RANKS)
    return {
        "kinds": kinds,
        "ranks": [ranks[i].npu for i in shown],
        "ranks_left_out": len(ranks) - len(shown),
        "bytes": [[None if v < 0 else int(v) for v in values[i]] for i in shown],
        "deviation": _as_lists(_deviation(values)[shown]),
        "greatest_deviation": _largest_deviation(_deviation(values), kinds, ranks),
    }


def sizes_by_collective(
    ranks: Sequence[Rank], communication_members: Mapping[Key, Sequence[CommunicationMember]]
) -> dict[str, Any]:
    """Return the bytes of each member of collectives, and their relative deviations from the members' mean.

    Among many collectives it shows those whose members differ most, in execution order; among many ranks those that
    take part in them and deviate most. "uneven" counts the collectives whose members differ at all.

    Args:
        ranks: The traces of some NPUs.
        communication_members: The members of each communication, from `communications_of` for the same ranks.
    """
    keys, spread = [], []
    for key, members in communication_members.items():
        if key[0] != "collective":
            continue
        sizes = [int(ranks[member.rank].table.comm_size[member.row]) for member in members]
        sizes = [size for size in sizes if size >= 0]
        mean = sum(sizes) / len(sizes) if sizes else 0
        keys.append(key)
        spread.append(max(abs(size - mean) for size in sizes) / mean if mean else 0.0)
    # Those with the largest spread, in execution order
    worst = np.argsort(-np.array(spread), kind="stable")[:MAX_COLLECTIVES]
    shown = [keys[i] for i in sorted(worst.tolist())]
    # -1: the rank is no member
    values = np.full((len(ranks), len(shown)), -1.0)
    for column, key in enumerate(shown):
        for member in communication_members[key]:
            values[member.rank, column] = ranks[member.rank].table.comm_size[member.row]
    deviation = _deviation(values)
    present = np.flatnonzero((~np.isnan(deviation)).any(axis=1)) if deviation.size else np.arange(0)
    if len(present) > MAX_RANKS:
        worst = np.nanmax(np.abs(deviation[present]), axis=1)
        present = np.sort(present[np.argsort(-worst, kind="stable")[:MAX_RANKS]])
    rows = [int(i) for i in present]
    labels = []
    for key in shown:
        table, row = ranks[communication_members[key][0].rank].table, communication_members[key][0].row
        label = {"kind": collective_name(int(table.comm_type[row])), "group": key[1], "number": key[-1]}
        labels.append(label | {"name": table.names[row], "members": len(communication_members[key])})
    return {
        "collectives": labels,
        "collectives_left_out": len(keys) - len(shown),
        "uneven": int(np.count_nonzero(np.array(spread) > 0)),
        "ranks": [ranks[i].npu for i in rows],
        "ranks_left_out": len(ranks) - len(rows),
        "bytes": [[None if v < 0 else int(v) for v in values[i]] for i in rows],
        "deviation": _as_lists(deviation[rows]),
    }


def _bytes(rank: Rank) -> dict[str, int]:
    """Return the sum of comm_size of a rank by kind of communication."""
    table, found = rank.table, {}
    lanes = lanes_of(table)
    for lane in COMMUNICATION_LANES:
        rows = np.flatnonzero((lanes == lane) & (table.comm_size >= 0))
        for kind in np.unique(table.comm_type[rows]).tolist():
            name = collective_name(kind) if lane == COLLECTIVE_LANE else LANES[lane]
            found[name] = sum(table.comm_size[rows[table.comm_type[rows] == kind]].tolist())
    return found


def _deviation(values: Float64) -> Float64:
    """Return the relative deviation of each value from its column's mean; values below 0 are missing and give NaN."""
    is_there = values >= 0
    counts = is_there.sum(axis=0)
    # A column without values has no mean; any divisor will do, as all its results are NaN
    mean = np.where(is_there, values, 0).sum(axis=0) / np.maximum(counts, 1)
    return np.where(is_there, (values - mean) / np.where(mean > 0, mean, 1), np.nan)


def _largest_deviation(deviation: Float64, kinds: Sequence[str], ranks: Sequence[Rank]) -> dict[str, Any] | None:
    """Return NPU, kind and value of the largest deviation (float64[ranks, kinds]); None if all are missing."""
    if not deviation.size or np.all(np.isnan(deviation)):
        return None
    # A place in the flattened array
    at = int(np.nanargmax(np.abs(deviation)))
    row, column = divmod(at, deviation.shape[1])
    return {"npu": ranks[row].npu, "kind": kinds[column], "deviation": float(deviation[row, column])}


def _as_lists(values: Float64) -> list[list[float | None]]:
    return [[None if np.isnan(v) else round(float(v), 6) for v in row] for row in values]
