"""Errors of a run against measured times: of collectives, nodes, sizes, groups, pairs of NPUs and ranks.

A member of a collective takes part from its own start until the collective ends, so that its duration includes the wait
for later members. The last member does not wait: the minimum duration over all members is the *transfer*, and the rest
of a member's duration is *waiting*, measured and simulated. An error is the simulated over the measured time, minus 1.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inputs.units import PS_PER_S, PS_PER_US
from nadi.insight.analysis.node_times import bus_factor
from nadi.insight.measured.clocks import RankClocks
from nadi.insight.measured.timed_nodes import KINDS, SEND, TimedNodes

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class ErrorDistribution:
    """The distribution of n relative errors."""

    count: int  # number of errors, n
    measured_ps: int  # sum of the measured times in picoseconds
    simulated_ps: int  # sum of the simulated times in picoseconds
    median: float  # median of the errors
    p95: float  # 95th percentile of the absolute errors
    worst: float  # error with the largest absolute value

    @classmethod
    def of(cls, simulated_ps: Int64, measured_ps: Int64) -> "ErrorDistribution | None":
        """Return the distribution of n pairs of times; None for no pairs."""
        if not len(measured_ps):
            return None
        error = simulated_ps / measured_ps - 1
        return cls(
            len(error),
            int(measured_ps.sum()),
            int(simulated_ps.sum()),
            float(np.median(error)),
            float(np.percentile(np.abs(error), 95)),
            float(error[np.argmax(np.abs(error))]),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class JointOperations:
    """c collectives or messages that several NPUs take part in, with measured times."""

    number: Int64  # int64[c], number in TimedNodes.collective or .message, ascending
    measured_ps: Int64  # int64[c], duration of the transfer
    simulated_ps: Int64
    measured_wait_ps: Int64  # int64[c], longest wait of a member
    simulated_wait_ps: Int64
    first: Int64  # int64[c], row in TimedNodes of the member with the shortest wait
    of: Int64  # int64[n], operation of each row of TimedNodes, -1 = none


def collectives_of(nodes: TimedNodes) -> JointOperations:
    """Return the collectives of the nodes."""
    return _joint(nodes, nodes.collective)


def messages_of(nodes: TimedNodes) -> JointOperations:
    """Return the messages of the nodes."""
    return _joint(nodes, nodes.message)


def _joint(nodes: TimedNodes, number: Int64) -> JointOperations:
    rows = np.flatnonzero(number >= 0)
    rows = rows[np.lexsort((nodes.measured_ps[rows], number[rows]))]
    is_first = np.diff(number[rows], prepend=-1) > 0
    begins = np.flatnonzero(is_first)
    of = np.full(len(nodes), -1, np.int64)
    of[rows] = np.cumsum(is_first) - 1
    measured, simulated = nodes.measured_ps[rows], nodes.simulated_ps[rows]

    def reduced(reduce: np.ufunc, values: Int64) -> Int64:
        return reduce.reduceat(values, begins) if len(begins) else values

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


def document(nodes: TimedNodes, clocks: RankClocks, worst: int = 10) -> dict[str, Any]:
    """Return the accuracy report as a JSON document; worst: number of nodes with the largest errors to list."""
    collectives, messages = collectives_of(nodes), messages_of(nodes)
    residual = np.abs(clocks.residual_micros)
    return {
        "run": str(nodes.run),
        "traces": str(nodes.traces),
        "nodes": {"compared": len(nodes), **nodes.left_out},
        "collectives": _document(ErrorDistribution.of(collectives.simulated_ps, collectives.measured_ps)),
        "messages": _document(ErrorDistribution.of(messages.simulated_ps, messages.measured_ps)),
        "ranks": _document(_spans(nodes)),
        "rounding": _rounding(nodes, collectives),
        "kinds": [
            {"kind": name, **dataclasses.asdict(spread)}
            for number, name in enumerate(KINDS)
            if (spread := _spread(nodes, nodes.kind == number)) is not None
        ],
        "sizes": _sizes(nodes, collectives),
        "groups": _groups(nodes, collectives),
        "pairs": _pairs(nodes, messages),
        "worst": _worst(nodes, (collectives, messages), worst),
        "rank_rows": _rank_rows(nodes, (collectives, messages), clocks),
        "clocks": {
            "ranks": int(np.count_nonzero(clocks.reference >= 0)),
            "residual_p95_micros": _or_none(np.percentile(residual, 95)) if len(residual) else None,
        },
    }


def _document(spread: ErrorDistribution | None) -> dict[str, Any] | None:
    return None if spread is None else dataclasses.asdict(spread)


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 3)


def _spread(nodes: TimedNodes, which: NDArray[Any]) -> ErrorDistribution | None:
    return ErrorDistribution.of(nodes.simulated_ps[which], nodes.measured_ps[which])


def _spans(nodes: TimedNodes) -> ErrorDistribution | None:
    """Return the errors of the ranks' spans, from the start of the first compared node to the end of the last."""
    npu, measured, simulated = spans(nodes)
    has = nodes.has_start[npu] & (measured > 0)
    return ErrorDistribution.of(simulated[has], measured[has])


def spans(nodes: TimedNodes) -> tuple[Int64, Int64, Int64]:
    """Return the span of each NPU that has nodes, from the start of its first node to the end of its last.

    Returns:
        int64[r] NPUs, int64[r] measured picoseconds (0 where the trace has no starts), int64[r] simulated picoseconds.
    """
    begins = np.flatnonzero(np.diff(nodes.npu, prepend=-1))
    npu = nodes.npu[begins]
    end = np.maximum.reduceat(nodes.measured_start_ps + nodes.measured_ps, begins)
    measured = np.where(nodes.has_start[npu], end, 0)
    first = np.minimum.reduceat(nodes.simulated_start_ps, begins)
    last = np.maximum.reduceat(nodes.simulated_start_ps + nodes.simulated_ps, begins)
    return npu, measured, last - first


def _sizes(nodes: TimedNodes, found: JointOperations) -> list[dict[str, Any]]:
    """Return a row per kind, size and member count of collectives: transfers, bandwidths and waiting."""
    kind = np.asarray(nodes.collectives["kind"], dtype=str)[found.number]
    size = nodes.collectives["bytes"][found.number]
    members = nodes.collectives["members"][found.number]
    rows = []
    for key in sorted(set(zip(kind.tolist(), size.tolist(), members.tolist(), strict=True))):
        which = (kind == key[0]) & (size == key[1]) & (members == key[2])
        spread = ErrorDistribution.of(found.simulated_ps[which], found.measured_ps[which])
        if spread is None:
            continue
        measured = float(np.median(found.measured_ps[which]))
        simulated = float(np.median(found.simulated_ps[which]))
        factor = bus_factor(key[0], key[2])
        rows.append(
            {
                "kind": key[0],
                "bytes": key[1],
                "members": key[2],
                **dataclasses.asdict(spread),
                "measured_transfer_ps": measured,
                "simulated_transfer_ps": simulated,
                "measured_busbw_Bps": key[1] * factor * PS_PER_S / measured,
                "simulated_busbw_Bps": key[1] * factor * PS_PER_S / simulated if simulated else None,
                "measured_wait_ps": float(np.median(found.measured_wait_ps[which])),
                "simulated_wait_ps": float(np.median(found.simulated_wait_ps[which])),
            }
        )
    return rows


def _groups(nodes: TimedNodes, found: JointOperations) -> list[dict[str, Any]]:
    """Return a row per group, sorted by the error of its summed transfers."""
    group = nodes.collectives["group"][found.number]
    own = np.flatnonzero(nodes.collective >= 0)
    met = np.unique(np.stack([nodes.collectives["group"][nodes.collective[own]], nodes.npu[own]]), axis=1)
    npus = dict(zip(np.unique(met[0]).tolist(), _parts(met[0], met[1]), strict=True))
    rows = []
    for which in _parts(group, np.arange(len(group))):
        spread = ErrorDistribution.of(found.simulated_ps[which], found.measured_ps[which])
        if spread is not None:
            at = found.number[which[0]]
            number, members = int(group[which[0]]), int(nodes.collectives["members"][at])
            named = {"group": number, "name": str(nodes.collectives["group_name"][at]), "members": members}
            rows.append({**named, "npus": npus[number].tolist(), **dataclasses.asdict(spread)})
    return sorted(rows, key=_far)


def _parts(key: Int64, values: Int64) -> list[Int64]:
    """Return the values of each distinct key, in the order of the keys."""
    order = np.argsort(key, kind="stable")
    return np.split(values[order], np.flatnonzero(np.diff(key[order])) + 1) if len(key) else []


def _far(row: dict[str, Any]) -> float:
    """Return a sort key: the largest error of summed times first."""
    return -abs(row["simulated_ps"] / row["measured_ps"] - 1)


def _pairs(nodes: TimedNodes, found: JointOperations) -> list[dict[str, Any]]:
    """Return a row per pair of NPUs with messages, sorted by the error of its summed transfers."""
    rows = []
    npu, peer, is_send = nodes.npu[found.first], nodes.peer[found.first], nodes.kind[found.first] == SEND
    ends = np.stack([np.where(is_send, npu, peer), np.where(is_send, peer, npu)])
    pairs, of = np.unique(ends, axis=1, return_inverse=True)
    for (src, dst), which in zip(pairs.T.tolist(), _parts(of.reshape(-1), np.arange(len(npu))), strict=True):
        spread = ErrorDistribution.of(found.simulated_ps[which], found.measured_ps[which])
        if spread is not None:
            rows.append({"src": src, "dst": dst, **dataclasses.asdict(spread)})
    return sorted(rows, key=_far)


def _worst(nodes: TimedNodes, joint: tuple[JointOperations, ...], most: int) -> list[dict[str, Any]]:
    """Return the largest errors in picoseconds, over nodes of one NPU, and transfers of collectives and messages."""
    local = np.flatnonzero((nodes.collective < 0) & (nodes.message < 0))
    row = np.concatenate([local, *(found.first for found in joint)])
    measured = np.concatenate([nodes.measured_ps[local], *(found.measured_ps for found in joint)])
    simulated = np.concatenate([nodes.simulated_ps[local], *(found.simulated_ps for found in joint)])
    far = np.abs(simulated - measured)
    order = np.lexsort((row, -far))[:most]
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
    at = int(nodes.collective[row])
    return KINDS[nodes.kind[row]] if at < 0 else str(nodes.collectives["kind"][at])


def _rank_rows(nodes: TimedNodes, joint: tuple[JointOperations, ...], clocks: RankClocks) -> list[dict[str, Any]]:
    """Return a row per rank: its span, and its compute, transfer and waiting times, measured and simulated."""
    npu, measured_span, simulated_span = spans(nodes)
    sums: dict[str, Int64] = {}
    is_local = (nodes.collective < 0) & (nodes.message < 0)
    for side in ("measured", "simulated"):
        durations: Int64 = getattr(nodes, f"{side}_ps")
        sums[f"{side}_compute_ps"] = _summed(nodes, durations, is_local)
        transfer = np.zeros(len(nodes), np.int64)
        for found in joint:
            is_of = found.of >= 0
            transfer[is_of] = getattr(found, f"{side}_ps")[found.of[is_of]]
        sums[f"{side}_transfer_ps"] = _summed(nodes, transfer, ~is_local)
        sums[f"{side}_wait_ps"] = _summed(nodes, durations - transfer, ~is_local)
    rows = []
    begins = _begins(nodes, clocks)
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


def _begins(nodes: TimedNodes, clocks: RankClocks) -> Float64:
    """Return float64[npus]: microseconds that each rank began after the first rank with a connected clock."""
    since = nodes.base_micros - clocks.offset_micros - nodes.base_micros.max()
    first = np.full(len(since), np.inf)
    known = clocks.reference >= 0
    np.minimum.at(first, clocks.reference[known], since[known])
    return np.where(known, since - first[clocks.reference], np.nan)


def _summed(nodes: TimedNodes, values: Int64, which: NDArray[np.bool_]) -> Int64:
    """int64[npus]: sums of each NPU."""
    sums = np.zeros(len(nodes.has_start), np.int64)
    np.add.at(sums, nodes.npu[which], values[which])
    return sums


def _rounding(nodes: TimedNodes, found: JointOperations) -> float:
    """What a microsecond, the unit of traces, is of the median measured transfer; without any, of the median node."""
    times = found.measured_ps if len(found.measured_ps) else nodes.measured_ps
    return PS_PER_US / float(np.median(times))
