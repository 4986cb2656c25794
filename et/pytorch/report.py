"""Report of a conversion: what was linked, lost and assumed, as values and as sentences."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nadi.et.pytorch.comm_calls import RECV, SEND
from nadi.et.pytorch.host_trace import BY_ORDER, NOT_AT_ALL, is_of_a_part
from nadi.et.pytorch.rank_nodes import RankNodes
from nadi.et.schema import CollectiveCommType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nadi.et.pytorch import Conversion, PlacedCall

_MAX_LISTED = 20
_Ranks = list[dict[str, Any]]


def report_of(conversion: Conversion) -> dict[str, Any]:
    """Return the report as values that JSON can hold; times are in microseconds.

    Args:
        conversion: The conversion after all ranks are converted.
    """
    return {
        "step": conversion.step_number,
        "ranks": [_rank(conversion, rank) for rank in sorted(conversion.steps)],
        "world": len(conversion.groups.world),
        "groups_whose_members_disagree": conversion.unmatched,
        "left_too_early_us": [early_ns / 1000 for early_ns in sorted(conversion.early_ns, reverse=True)],
        "missing_ranks": [rank for rank in conversion.groups.world if rank not in conversion.steps],
    }


def _rank(conversion: Conversion, rank: int) -> dict[str, Any]:
    """Return the report on one rank."""
    step = conversion.steps[rank]
    files = next(files for files in conversion.ranks if files.rank == rank)
    report: dict[str, Any] = {
        "rank": rank,
        "kineto": str(files.kineto.path) if files.kineto else None,
        "host_trace": str(files.host.path) if files.host else None,
        "schema": files.host.schema if files.host else None,
        "known_schema": files.host.is_known if files.host else None,
        "nodes": len(step.nodes),
        "host_operators": step.ops,
        "collectives": dict(Counter(_kind(placed) for placed in conversion.placed[rank])),
        "lost": dict(Counter(conversion.lost[rank])),
    }
    if not isinstance(step, RankNodes):
        return report
    # Copies and memsets are device operations, too
    kernels = [number for number, op in enumerate(step.work.ops) if not op.name.startswith(("Memcpy", "Memset"))]
    span_ns = step.links.span_ns(step.kineto) if files.host is not None and step.links.host else None
    unlinked = {number: _why(step, number, files.host is not None, span_ns) for number in range(len(step.work.ops))}
    unlinked = {number: why for number, why in unlinked.items() if why}
    return report | {
        "is_merged": step.kineto.is_merged,
        "linked_by": step.links.way,
        "linked_operators": len(step.links.host),
        "places_that_fit": step.links.windows,
        "is_of_a_part": conversion.step_number is None and is_of_a_part(step.links, step.kineto),
        "kernels": len(kernels),
        "device_operations": len(step.work.ops),
        "device_operations_of_all_steps": len(step.kineto.device_ops),
        "linked_kernels": len([number for number in kernels if number not in unlinked]),
        "linked_device_operations": len(step.work.ops) - len(unlinked),
        "not_linked": [
            {"name": step.work.ops[number].name, "start_us": (step.work.ops[number].start_ns - step.begin_ns) / 1000,
             "why": why}
            for number, why in unlinked.items()
        ],
        "stream_waits_said": step.order.recorded,
        "stream_waits_inferred": step.order.inferred,
        "span_us": (step.end_ns - step.begin_ns) / 1000,
        "kernels_side_by_side_us": step.overlap_ns / 1000,
        "clock_offset_us": conversion.clocks.offset_ns[rank] / 1000,
        "clock_offset_removed_us": conversion.offset_ns[rank] / 1000,
        "clock_spread_us": conversion.clocks.spread_ns[rank] / 1000,
        "clock_collectives": conversion.clocks.collectives[rank],
        "waited_us": conversion.waited_ns.get(rank, 0) / 1000,
        "host_threads_us": step.thread_ns / 1000,
        "python_functions_left_out": files.kineto.python_functions if files.kineto else 0,
        "events_not_read": dict(files.kineto.unread) if files.kineto else {},
    }  # fmt: skip


def _kind(placed: PlacedCall) -> str:
    kind = placed.call.kind
    return {SEND: "send", RECV: "recv"}.get(kind) or CollectiveCommType(kind).name.lower().replace("_", "-")


def _why(rank_nodes: RankNodes, device_op: int, has_host: bool, span_ns: tuple[int, int] | None) -> str:
    """Return why a device operation has no operator of the host, "" if it has; `span_ns` are the host trace's times."""
    if device_op in rank_nodes.work.lost:
        return rank_nodes.work.lost[device_op]
    if not has_host:
        return ""
    caller = rank_nodes.work.caller[device_op]
    if rank_nodes.linked_above(caller) is not None:
        return ""
    start_ns = rank_nodes.kineto.ops[caller].start_ns
    if span_ns is not None and not span_ns[0] <= start_ns < span_ns[1]:
        when = "before the host trace begins" if start_ns < span_ns[0] else "after the host trace ends"
        return f"launched {when}"
    return f"{rank_nodes.kineto.ops[caller].name} is not in the host trace"


def notes_of(report: Mapping[str, Any]) -> Iterator[str]:
    """Return what a user should know about a report of `report_of`, as sentences.

    Args:
        report: A report of `report_of`.
    """
    timed = [rank for rank in report["ranks"] if "linked_by" in rank]
    yield from _file_notes(report["ranks"], timed)
    yield from _link_notes(report["ranks"], timed)
    yield from _time_notes(timed)
    if report["missing_ranks"]:
        missing = report["missing_ranks"]
        yield f"{len(missing)} of {report['world']} ranks have no trace: {_ranks(missing[:_MAX_LISTED])}"
    if report["groups_whose_members_disagree"]:
        count = report["groups_whose_members_disagree"]
        yield f"{count} groups whose members recorded different collectives: their waiting is not removed"
    early_us = report["left_too_early_us"]
    if early_us:
        yield (
            f"clocks: {len(early_us):,} times a rank leaves a collective before another has come, up to "
            f"{early_us[0]:,.1f} us; its waiting is not removed"
        )


def _file_notes(ranks: _Ranks, timed: _Ranks) -> Iterator[str]:
    """Yield sentences about missing files and events; `timed` are the reports on ranks with times, of `ranks`."""
    bare = [rank["rank"] for rank in timed if rank["host_trace"] is None]
    if bare:
        yield (
            f"{_ranks(bare)} without a host trace: ids and tensors of operators are lost, and groups and sizes of "
            "collectives that Kineto does not record"
        )
    untimed = [rank["rank"] for rank in ranks if "linked_by" not in rank]
    if untimed:
        yield (
            f"{_ranks(untimed)} without a Kineto trace: kernels, times and waits are lost, and nodes take no time: "
            "a run has communication only; for times record both (`nadi trace collect`) and convert them together"
        )
    unknown = sorted({rank["schema"] for rank in ranks if rank["known_schema"] is False})
    if unknown:
        yield f"schema {', '.join(unknown)} of host traces is unknown, and read like the known ones"
    unread: Counter[str] = sum((Counter(rank["events_not_read"]) for rank in timed), Counter())
    if unread:
        listed = ", ".join(f"{category[:40]} ({count:,})" for category, count in unread.most_common(_MAX_LISTED))
        yield f"{unread.total():,} events of categories that are not read, and whose work is lost: {listed}"


def _link_notes(ranks: _Ranks, timed: _Ranks) -> Iterator[str]:
    """Yield sentences about links between operators and lost calls; `timed` are the reports on ranks with times."""
    # Not the same as no host trace, which has its own note
    failed = [r["rank"] for r in timed if r["host_trace"] is not None and r["linked_by"] == NOT_AT_ALL]
    if failed:
        yield f"{_ranks(failed)}: the host trace fits no part of the Kineto trace and is not used"
    by_order = [rank["rank"] for rank in timed if rank["linked_by"] == BY_ORDER]
    if by_order:
        yield f"{_ranks(by_order)}: no record function ids that fit, operators linked by order and name"
    part = [rank for rank in timed if rank["is_of_a_part"]]
    if part and part[0]["device_operations"] < part[0]["device_operations_of_all_steps"]:
        yield (
            f"{_ranks([rank['rank'] for rank in part])}: the host trace covers a part of the Kineto trace, and only "
            f"that part is converted: {sum(rank['device_operations'] for rank in part):,} of "
            f"{sum(rank['device_operations_of_all_steps'] for rank in part):,} device operations; "
            "--from pytorch:step=all converts all"
        )
    several = max((rank["places_that_fit"] for rank in timed), default=0)
    if several > 1:
        yield f"the host trace fits {several} places of the Kineto trace, the first is used"
    devices = sum(rank["device_operations"] for rank in timed)
    if devices:
        yield f"{sum(rank['linked_device_operations'] for rank in timed):,} of {devices:,} device operations linked"
    for why, count in Counter(entry["why"] for rank in timed for entry in rank["not_linked"]).most_common(_MAX_LISTED):
        yield f"{count:,} not linked: {why}"
    lost: Counter[str] = sum((Counter(rank["lost"]) for rank in ranks), Counter())
    for sentence, count in lost.most_common(_MAX_LISTED):
        yield f"{count:,} collectives lost, kept as computations: {sentence}"
    merged = [rank["rank"] for rank in timed if rank["is_merged"]]
    if merged:
        yield (
            f"{_ranks(merged)}: files of chakra_trace_link lack waits between streams and start times of kernels: "
            "each begins when it is launched and its stream is free; if you have the two original files, convert those"
        )
    inferred = sum(rank["stream_waits_inferred"] for rank in timed)
    if inferred:
        yield f"{inferred:,} waits between streams inferred from place and time, as the traces do not record them"


def _time_notes(timed: _Ranks) -> Iterator[str]:
    """Yield sentences about clocks and waiting from the reports on ranks with times."""
    offsets = [rank for rank in timed if rank["clock_collectives"]]
    if offsets:
        largest = max(offsets, key=lambda rank: abs(rank["clock_offset_us"]))
        spread = max(rank["clock_spread_us"] for rank in offsets)
        removed = [rank["rank"] for rank in offsets if rank["clock_offset_removed_us"]]
        yield (
            f"clocks: collectives end up to {abs(largest['clock_offset_us']):.1f} us apart from those of rank "
            f"{timed[0]['rank']} (rank {largest['rank']}), and spread by {spread:.1f} us: "
            + (f"offsets of {_ranks(removed)} removed" if removed else "no offset of clocks beyond that, none removed")
        )
    waited = sum(rank["waited_us"] for rank in timed)
    if waited:
        yield f"waiting for late ranks, removed from collectives: {waited / 1000:,.1f} ms of all ranks"
    elif any(rank["collectives"] for rank in timed):
        yield "waiting of collectives cannot be separated from transfer without other ranks, and is not removed"
    threads = sum(rank["host_threads_us"] for rank in timed)
    if threads:
        yield (
            f"threads of the host that execute collectives: {threads / 1000:,.1f} ms of all ranks until they begin "
            "and beyond what the fastest transfers take, kept as computations"
        )
    overlap_us = max((rank["kernels_side_by_side_us"] for rank in timed), default=0)
    if overlap_us:
        yield f"kernels of several streams overlap by up to {overlap_us:,.0f} us; an NPU runs them one at a time"


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
