"""Errors of a run against measured times: of collectives, nodes, sizes, groups, pairs of NPUs and ranks.

A member of a collective takes part from its own start until the collective ends, so that its duration includes the wait
for later members. The last member does not wait: the minimum duration over all members is the *transfer*, and the rest
of a member's duration is *waiting*, measured and simulated. An error is the simulated over the measured time, minus 1.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.et.statistics import percentile
from nadi.inputs.arrays import Int64
from nadi.inputs.units import PS_PER_S, PS_PER_US
from nadi.insight.measured import SEND, TIMED_KINDS, RankClocks, TimedNodes
from nadi.insight.node_times import bus_factor


def _errors(simulated_ps: Int64, measured_ps: Int64) -> dict[str, Any] | None:
    """Return the distribution of n relative errors; None if n = 0."""
    if not len(measured_ps):
        return None
    error = simulated_ps / measured_ps - 1
    return {
        "count": len(error),
        "measured_ps": int(measured_ps.sum()),
        "simulated_ps": int(simulated_ps.sum()),
        "median": float(np.median(error)),
        "p95": percentile(np.abs(error), 95),  # of the absolute errors; None if there are too few
        "worst": float(error[np.argmax(np.abs(error))]),  # with its sign
    }


class JointOperations(NamedTuple):
    """c collectives or messages that several NPUs take part in, with measured times."""

    number: Int64  # int64[c], number in TimedNodes.collective or .message, ascending
    measured_ps: Int64  # int64[c], measured duration of the transfer
    simulated_ps: Int64  # int64[c], simulated duration of the transfer
    measured_wait_ps: Int64  # int64[c], longest measured wait of a member
    simulated_wait_ps: Int64  # int64[c], longest simulated wait of a member
    first: Int64  # int64[c], row in TimedNodes of the member with the shortest wait
    of: Int64  # int64[n], operation of each row of TimedNodes, -1 = none

    def errors(self, selected: NDArray[Any] | slice = slice(None)) -> dict[str, Any] | None:
        """Return the errors of the selected transfers."""
        return _errors(self.simulated_ps[selected], self.measured_ps[selected])


def joint_operations(nodes: TimedNodes, number: Int64) -> JointOperations:
    """Return the operations with these numbers.

    Args:
        nodes: Nodes with measured and simulated times.
        number: int64[n], number of the operation of each node: nodes.collective or nodes.message; below 0 = none.
    """
    rows = np.flatnonzero(number >= 0)
    # members of one operation together, the shortest first
    rows = rows[np.lexsort((nodes.measured_ps[rows], number[rows]))]
    is_first = np.diff(number[rows], prepend=-1) > 0
    begins = np.flatnonzero(is_first)
    of = np.full(len(nodes), -1, np.int64)
    of[rows] = np.cumsum(is_first) - 1
    measured, simulated = nodes.measured_ps[rows], nodes.simulated_ps[rows]

    def reduced(reduce: np.ufunc, values: Int64) -> Int64:
        # reduceat needs an index
        return reduce.reduceat(values, begins) if len(begins) else values

    # the last member to come waits for nobody: its time is the transfer
    transfer, simulated_transfer = reduced(np.minimum, measured), reduced(np.minimum, simulated)
    return JointOperations(
        number=number[rows[begins]],
        measured_ps=transfer,
        simulated_ps=simulated_transfer,
        measured_wait_ps=reduced(np.maximum, measured) - transfer,
        simulated_wait_ps=reduced(np.maximum, simulated) - simulated_transfer,
        first=rows[begins],
        of=of,
    )


def accuracy_document(nodes: TimedNodes, clocks: RankClocks, num_worst: int = 10) -> dict[str, Any]:
    """Return the accuracy report as a JSON document.

    Args:
        nodes: Nodes with measured and simulated times.
        clocks: Clocks of the ranks.
        num_worst: Number of nodes with the largest errors to list.
    """
    collectives, messages = joint_operations(nodes, nodes.collective), joint_operations(nodes, nodes.message)
    residual = np.abs(clocks.residual_micros)
    npu, measured_span, simulated_span = spans(nodes)
    has_span = nodes.has_start[npu] & (measured_span > 0)
    times = collectives.measured_ps if len(collectives.measured_ps) else nodes.measured_ps
    return {
        "run": str(nodes.run),
        "traces": str(nodes.traces),
        "nodes": {"compared": len(nodes), **nodes.left_out},
        "collectives": collectives.errors(),
        "messages": messages.errors(),
        "ranks": _errors(simulated_span[has_span], measured_span[has_span]),
        # a microsecond, the unit of traces, over the median measured transfer; without any, over the median node
        "rounding": PS_PER_US / float(np.median(times)),
        "kinds": [
            {"kind": name, **errors}
            for number, name in enumerate(TIMED_KINDS)
            if (errors := _errors(nodes.simulated_ps[nodes.kind == number], nodes.measured_ps[nodes.kind == number]))
        ],
        "sizes": _sizes(nodes, collectives),
        "groups": _groups(nodes, collectives),
        "pairs": _pairs(nodes, messages),
        "worst": _worst(nodes, (collectives, messages), num_worst),
        "rank_rows": _rank_rows(nodes, (collectives, messages), clocks),
        "clocks": {
            "ranks": int(np.count_nonzero(clocks.reference >= 0)),
            "residual_p95_micros": _or_none(percentile(residual, 95)),
        },
    }


def _or_none(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), 3)


def spans(nodes: TimedNodes) -> tuple[Int64, Int64, Int64]:
    """Return int64[r], thrice: NPUs with nodes, their measured spans (0 without starts) and simulated spans in ps."""
    begins = np.flatnonzero(np.diff(nodes.npu, prepend=-1))
    npu = nodes.npu[begins]
    end = np.maximum.reduceat(nodes.measured_start_ps + nodes.measured_ps, begins)
    measured = np.where(nodes.has_start[npu], end, 0)
    first = np.minimum.reduceat(nodes.simulated_start_ps, begins)
    last = np.maximum.reduceat(nodes.simulated_start_ps + nodes.simulated_ps, begins)
    return npu, measured, last - first


def _sizes(nodes: TimedNodes, collectives: JointOperations) -> list[dict[str, Any]]:
    """Return a row per kind, size and member count of collectives: transfers, bandwidths and waiting."""
    kind = np.asarray(nodes.collectives["kind"], dtype=str)[collectives.number]
    size = nodes.collectives["bytes"][collectives.number]
    members = nodes.collectives["members"][collectives.number]
    rows = []
    for key in sorted(set(zip(kind.tolist(), size.tolist(), members.tolist(), strict=True))):
        which = (kind == key[0]) & (size == key[1]) & (members == key[2])
        measured, simulated, measured_wait, simulated_wait = (
            float(np.median(column[which]))
            for column in (
                *(collectives.measured_ps, collectives.simulated_ps),
                *(collectives.measured_wait_ps, collectives.simulated_wait_ps),
            )
        )
        # as nccl-tests define the bus bandwidth
        bus_bytes = key[1] * bus_factor(key[0], key[2])
        rows.append(
            {
                "kind": key[0],
                "bytes": key[1],
                "members": key[2],
                **(collectives.errors(which) or {}),
                "measured_transfer_ps": measured,
                "simulated_transfer_ps": simulated,
                "measured_busbw_Bps": bus_bytes * PS_PER_S / measured,
                "simulated_busbw_Bps": bus_bytes * PS_PER_S / simulated if simulated else None,
                "measured_wait_ps": measured_wait,
                "simulated_wait_ps": simulated_wait,
            }
        )
    return rows


def _groups(nodes: TimedNodes, collectives: JointOperations) -> list[dict[str, Any]]:
    """Return a row per group, sorted by the error of its summed transfers."""
    table = nodes.collectives
    group = table["group"][collectives.number]
    own = np.flatnonzero(nodes.collective >= 0)
    # the NPUs that each group has in the table
    met = np.unique(np.stack([table["group"][nodes.collective[own]], nodes.npu[own]]), axis=1)
    npus = dict(zip(np.unique(met[0]).tolist(), _parts(met[0], met[1]), strict=True))
    rows = []
    for which in _parts(group, np.arange(len(group))):
        row, number = collectives.number[which[0]], int(group[which[0]])
        named = {"group": number, "name": str(table["group_name"][row]), "members": int(table["members"][row])}
        rows.append({**named, "npus": npus[number].tolist(), **(collectives.errors(which) or {})})
    return sorted(rows, key=_error_of_sums)


def _parts(keys: Int64, values: Int64) -> list[Int64]:
    """Return the values of each distinct key, in the order of the keys."""
    order = np.argsort(keys, kind="stable")
    return np.split(values[order], np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []


def _error_of_sums(row: dict[str, Any]) -> float:
    """Return a sort key: the largest error of summed times first."""
    return -abs(row["simulated_ps"] / row["measured_ps"] - 1)


def _pairs(nodes: TimedNodes, messages: JointOperations) -> list[dict[str, Any]]:
    """Return a row per pair of NPUs with messages, sorted by the error of its summed transfers."""
    npu, peer = nodes.npu[messages.first], nodes.peer[messages.first]
    is_send = nodes.kind[messages.first] == SEND
    ends = np.stack([np.where(is_send, npu, peer), np.where(is_send, peer, npu)])
    pairs, pair = np.unique(ends, axis=1, return_inverse=True)
    parts = zip(pairs.T.tolist(), _parts(pair.reshape(-1), np.arange(len(npu))), strict=True)
    rows = [{"src": src, "dst": dst, **(messages.errors(which) or {})} for (src, dst), which in parts]
    return sorted(rows, key=_error_of_sums)


def _worst(nodes: TimedNodes, joint_operations: tuple[JointOperations, ...], max_rows: int) -> list[dict[str, Any]]:
    """Return the largest errors in picoseconds, over nodes of one NPU, and transfers of collectives and messages."""
    local = np.flatnonzero((nodes.collective < 0) & (nodes.message < 0))
    # a collective counts once, by the member with the shortest time, and not once per member with their waits
    row = np.concatenate([local, *(found.first for found in joint_operations)])
    measured = np.concatenate([nodes.measured_ps[local], *(found.measured_ps for found in joint_operations)])
    simulated = np.concatenate([nodes.simulated_ps[local], *(found.simulated_ps for found in joint_operations)])
    far = np.abs(simulated - measured)
    # the largest first; of equal ones the first row, so that reports of equal runs are equal
    order = np.lexsort((row, -far))[:max_rows]
    return [
        {
            "npu": int(nodes.npu[row[i]]),
            "node_id": int(nodes.node_id[row[i]]),
            "name": str(nodes.name[int(row[i])].as_py()),
            "kind": _kind_text(nodes, int(row[i])),
            "bytes": int(nodes.size_bytes[row[i]]),
            "measured_ps": int(measured[i]),
            "simulated_ps": int(simulated[i]),
            "error": float(simulated[i] / measured[i] - 1),
        }
        for i in order[far[order] > 0].tolist()
    ]


def _kind_text(nodes: TimedNodes, row: int) -> str:
    """Return the kind of a node, or of its collective."""
    at = int(nodes.collective[row])
    return TIMED_KINDS[nodes.kind[row]] if at < 0 else str(nodes.collectives["kind"][at])


def _rank_rows(
    nodes: TimedNodes, joint_operations: tuple[JointOperations, ...], clocks: RankClocks
) -> list[dict[str, Any]]:
    """Return a row per rank: its span, and its compute, transfer and waiting times, measured and simulated."""
    npu, measured_span, simulated_span = spans(nodes)
    sums: dict[str, Int64] = {}
    is_local = (nodes.collective < 0) & (nodes.message < 0)
    for side in ("measured", "simulated"):
        durations: Int64 = getattr(nodes, f"{side}_ps")
        sums[f"{side}_compute_ps"] = _summed(nodes, durations, is_local)
        transfer = np.zeros(len(nodes), np.int64)
        for found in joint_operations:
            is_of = found.of >= 0
            transfer[is_of] = getattr(found, f"{side}_ps")[found.of[is_of]]
        sums[f"{side}_transfer_ps"] = _summed(nodes, transfer, ~is_local)
        sums[f"{side}_wait_ps"] = _summed(nodes, durations - transfer, ~is_local)
    rows = []
    since = nodes.base_micros - clocks.offset_micros - nodes.base_micros.max()
    first = np.full(len(since), np.inf)  # of all ranks with connected clocks
    known = clocks.reference >= 0
    np.minimum.at(first, clocks.reference[known], since[known])
    begins = np.where(known, since - first[clocks.reference], np.nan)
    for i, number in enumerate(npu.tolist()):
        measured, simulated = int(measured_span[i]), int(simulated_span[i])
        has = bool(nodes.has_start[number]) and measured > 0
        rows.append(
            {
                "npu": number,
                "measured_span_ps": measured if has else None,
                "simulated_span_ps": simulated,
                "error": simulated / measured - 1 if has else None,
                **{name: int(values[number]) for name, values in sums.items()},
                "measured_begin_micros": _or_none(begins[number]),
                "clock_offset_micros": _or_none(clocks.offset_micros[number]),
            }
        )
    return rows


def _summed(nodes: TimedNodes, values: Int64, is_counted: NDArray[np.bool_]) -> Int64:
    """Return int64[npus], the sums of the counted values, int64[n], of each NPU's nodes."""
    sums = np.zeros(len(nodes.has_start), np.int64)
    np.add.at(sums, nodes.npu[is_counted], values[is_counted])
    return sums
