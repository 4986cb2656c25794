"""Statistics of recorded times: late arrivals at collectives, overlap, and idle time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nadi.et.other_attributes import waited_micros
from nadi.et.reshape.partners import COMMUNICATION_LANES, COMPUTE_LANE, MEMORY_LANE, Key, lanes_of
from nadi.et.statistics.percentiles import percentile
from nadi.et.statistics.ranks import CommunicationMember, Rank
from nadi.et.summary import collective_name
from nadi.inputs.arrays import Int64

MAX_SLOWEST = 10
_WORK = (COMPUTE_LANE, MEMORY_LANE)


def has_starts(ranks: Sequence[Rank]) -> bool:
    """Return whether any node has a recorded start.

    Args:
        ranks: The traces of some NPUs.
    """
    return any(bool(np.any(rank.table.start_time_micros > 0)) for rank in ranks)


def arrivals(
    ranks: Sequence[Rank], communication_members: Mapping[Key, Sequence[CommunicationMember]]
) -> dict[str, Any] | None:
    """Return transfer and waiting of collectives that have two or more members with durations.

    The last member does not wait: the shortest duration is the transfer, and the rest of the others' is waiting. That
    needs no common clock. Arrival skew, the time between the first start and the last one, does. Waiting that a
    converter has removed from durations counts (WAIT_MICROS).

    Returns:
        "clock": whether starts are recorded; "kinds": sums and quantiles in microseconds by kind and group; "ranks":
        "waiting_micros" and number of "late" arrivals of each rank; "most_waiting": the collectives with the longest
        waiting. None without durations.

    Args:
        ranks: The traces of some NPUs.
        communication_members: The members of each communication, from `communications_of` for the same ranks.
    """
    kinds: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    waiting = np.zeros(len(ranks), np.int64)
    late = np.zeros(len(ranks), np.int64)
    clocks = has_starts(ranks)
    tables = {id(rank.table): rank.table for rank in ranks}
    waited = {number: waited_micros(table) for number, table in tables.items()}
    for key, members in communication_members.items():
        if key[0] != "collective" or len(members) < 2:
            continue
        took = np.array([ranks[m.rank].table.duration_micros[m.row] for m in members], np.int64)
        if took.min() <= 0:
            continue
        waits = np.array([waited[id(ranks[m.rank].table)][m.row] for m in members], np.int64)
        # As recorded, before the converter removed waiting
        took += waits
        starts = np.array([ranks[m.rank].table.start_time_micros[m.row] for m in members], np.int64) - waits
        first = members[0]
        table = ranks[first.rank].table
        own = np.array([m.rank for m in members])
        # A rank is in a collective once, so that no index repeats
        waiting[own] += took - took.min()
        # Without clocks, the member that took least time arrived last
        last = int(np.argmax(starts)) if clocks else int(np.argmin(took))
        late[own[last]] += 1
        collective = {
            "name": table.names[first.row],
            "group": key[1],
            "number": key[-1],
            "members": len(members),
            "bytes": int(table.comm_size[first.row]),
            "transfer_micros": int(took.min()),
            "waiting_micros": int((took - took.min()).sum()),
            "skew_micros": int(starts.max() - starts.min()) if clocks else None,
            "last_npu": ranks[own[last]].npu,
        }
        kinds.setdefault((collective_name(int(table.comm_type[first.row])), key[1]), []).append(collective)
    if not kinds:
        return None
    every = [collective | {"kind": kind} for (kind, _), collectives in kinds.items() for collective in collectives]
    worst = sorted(every, key=lambda collective: -collective["waiting_micros"])[:MAX_SLOWEST]
    return {
        "clock": clocks,
        "kinds": [{"kind": kind, "group": group} | _summary(members) for (kind, group), members in kinds.items()],
        "ranks": [
            {"npu": rank.npu, "waiting_micros": int(w), "late": int(count)}
            for rank, w, count in zip(ranks, waiting, late, strict=True)
        ],
        "most_waiting": worst,
    }


def overlap(ranks: Sequence[Rank]) -> list[dict[str, Any]] | None:
    """Return how long each rank computes, communicates, does both and does neither, from first start to last end.

    Compute is that of the accelerator with its memory. The span covers all nodes, including the host's and the waiting
    that a converter has removed (WAIT_MICROS): the same as measured spans of `nadi compare --measured`, if the run has
    all nodes. The result is None if no start is recorded.

    Args:
        ranks: The traces of some NPUs.
    """
    if not has_starts(ranks):
        return None
    rows = []
    for rank in ranks:
        table, lanes = rank.table, lanes_of(rank.table)
        is_timed = (table.duration_micros > 0) & (table.start_time_micros > 0)
        begin, end = table.start_time_micros, table.start_time_micros + table.duration_micros
        compute = _union(begin[is_timed & np.isin(lanes, _WORK)], end[is_timed & np.isin(lanes, _WORK)])
        is_network = is_timed & np.isin(lanes, COMMUNICATION_LANES)
        network = _union(begin[is_network], end[is_network])
        # Time in which the rank computes, communicates or does both
        both = _union(np.concatenate([compute[0], network[0]]), np.concatenate([compute[1], network[1]]))
        computes, sends, busy = (int((union[1] - union[0]).sum()) for union in (compute, network, both))
        waited = waited_micros(table)
        # Without the converter, nodes would have begun earlier by what they waited
        span = int(end[is_timed].max() - (begin - waited)[is_timed].min()) if is_timed.any() else 0
        rows.append(
            {
                "npu": rank.npu,
                "span_micros": span,
                "compute_micros": computes,
                "communication_micros": sends,
                # Times when both run are in `computes` and in `sends`, but only once in `busy`
                "overlap_micros": computes + sends - busy,
                "exposed_micros": busy - computes,
                "idle_micros": span - busy,
            }
        )
    return rows


def _summary(collectives: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return sums and quantiles over collectives of a kind and group, with the times that `arrivals` describes."""
    transfer = np.array([collective["transfer_micros"] for collective in collectives])
    waits = np.array([collective["waiting_micros"] for collective in collectives])
    found: dict[str, Any] = {
        "count": len(collectives),
        "transfer_micros": int(transfer.sum()),
        "median_transfer_micros": float(np.median(transfer)),
        "waiting_micros": int(waits.sum()),
    }
    skews = [collective["skew_micros"] for collective in collectives if collective["skew_micros"] is not None]
    if skews:
        found |= {
            "median_skew_micros": float(np.median(skews)),
            "p95_skew_micros": percentile(skews, 95),
            "greatest_skew_micros": int(max(skews)),
        }
    return found


def _union(begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Return begins and ends of disjoint intervals that cover the same times."""
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    # Sorted by begin, an interval begins a new union if it is after every earlier end
    begin, end = begin[order], np.maximum.accumulate(end[order])
    # For 0-5, 2-4, 4-9 and 12-13 the running ends are 5 5 9 13: 12 is after 9, so the union is 0-9 and 12-13
    is_new = np.concatenate([[True], begin[1:] > end[:-1]])
    last = np.concatenate([np.flatnonzero(is_new)[1:] - 1, [len(begin) - 1]])
    return begin[is_new], end[last]
