"""What was linked, lost and assumed in a conversion: for machines, and as sentences."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from et.pytorch.comm_calls import RECV, SEND
from et.pytorch.linking import BY_ORDER, NOT_AT_ALL, is_of_a_part
from et.pytorch.rank_nodes import RankNodes
from et.schema import CollectiveCommType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from et.pytorch.conversion import Conversion, PlacedCall

_MOST_LISTED = 20
_Ranks = list[dict[str, Any]]


def report_of(doing: Conversion) -> dict[str, Any]:
    """All of it, in values that JSON can hold; times are microseconds."""
    return {
        "step": doing.step,
        "ranks": [_rank(doing, rank) for rank in sorted(doing.made)],
        "world": len(doing.groups.world),
        "groups_whose_members_disagree": doing.unmatched,
        "left_too_early_us": [early_ns / 1000 for early_ns in sorted(doing.early_ns, reverse=True)],
        "missing_ranks": [rank for rank in doing.groups.world if rank not in doing.made],
    }


def _rank(doing: Conversion, rank: int) -> dict[str, Any]:
    one = doing.made[rank]
    files = next(files for files in doing.ranks if files.rank == rank)
    said: dict[str, Any] = {
        "rank": rank,
        "kineto": str(files.kineto.path) if files.kineto else None,
        "host_trace": str(files.host.path) if files.host else None,
        "schema": files.host.schema if files.host else None,
        "known_schema": files.host.is_known if files.host else None,
        "nodes": len(one.nodes),
        "host_operators": one.ops,
        "collectives": dict(Counter(_kind(placed) for placed in doing.placed[rank])),
        "lost": dict(Counter(doing.lost[rank])),
    }
    if not isinstance(one, RankNodes):
        return said
    kernels = [number for number, op in enumerate(one.work.ops) if not op.name.startswith(("Memcpy", "Memset"))]
    span_ns = one.links.span_ns(one.kineto) if files.host is not None and one.links.host else None
    unlinked = {number: _why(one, number, files.host is not None, span_ns) for number in range(len(one.work.ops))}
    unlinked = {number: why for number, why in unlinked.items() if why}
    return said | {
        "is_merged": one.kineto.is_merged,
        "linked_by": one.links.way,
        "linked_operators": len(one.links.host),
        "places_that_fit": one.links.windows,
        "is_of_a_part": doing.step is None and is_of_a_part(one.links, one.kineto),
        "kernels": len(kernels),
        "device_operations": len(one.work.ops),
        "device_operations_of_all_steps": len(one.kineto.device_ops),
        "linked_kernels": len([number for number in kernels if number not in unlinked]),
        "linked_device_operations": len(one.work.ops) - len(unlinked),
        "not_linked": [
            {"name": one.work.ops[number].name, "start_us": (one.work.ops[number].start_ns - one.begin_ns) / 1000,
             "why": why}
            for number, why in unlinked.items()
        ],
        "stream_waits_said": one.order.said,
        "stream_waits_inferred": one.order.inferred,
        "span_us": (one.end_ns - one.begin_ns) / 1000,
        "kernels_side_by_side_us": one.overlap_ns / 1000,
        "clock_offset_us": doing.clocks.offset_ns[rank] / 1000,
        "clock_offset_removed_us": doing.offset_ns[rank] / 1000,
        "clock_spread_us": doing.clocks.spread_ns[rank] / 1000,
        "clock_collectives": doing.clocks.collectives[rank],
        "waited_us": doing.waited_ns.get(rank, 0) / 1000,
        "host_threads_us": one.thread_ns / 1000,
        "python_functions_left_out": files.kineto.python_functions if files.kineto else 0,
    }  # fmt: skip


def _kind(placed: PlacedCall) -> str:
    kind = placed.call.kind
    return {SEND: "send", RECV: "recv"}.get(kind) or CollectiveCommType(kind).name.lower().replace("_", "-")


def _why(one: RankNodes, number: int, has_host: bool, span_ns: tuple[int, int] | None) -> str:
    """Return why a device operation has no operator of the host, "" if it has one.

    Args:
        one: Nodes of the rank.
        number: Number of the device operation.
        has_host: Whether the rank has a host trace.
        span_ns: When the host trace begins and ends on the clock of the Kineto trace; None = not known.
    """
    if number in one.work.lost:
        return one.work.lost[number]
    if not has_host:
        return ""
    caller = one.work.caller[number]
    if one.linked_above(caller) is not None:
        return ""
    start_ns = one.kineto.ops[caller].start_ns
    if span_ns is not None and not span_ns[0] <= start_ns < span_ns[1]:
        where = "before the host trace begins" if start_ns < span_ns[0] else "after the host trace ends"
        return f"launched {where}"
    return f"{one.name_of(caller)} is not in the host trace"


def notes_of(report: Mapping[str, Any]) -> Iterator[str]:
    """What a user should know, a sentence each."""
    timed = [rank for rank in report["ranks"] if "linked_by" in rank]
    yield from _of_files(report["ranks"], timed)
    yield from _of_links(report["ranks"], timed)
    yield from _of_times(timed)
    if report["missing_ranks"]:
        missing = report["missing_ranks"]
        yield f"{len(missing)} of {report['world']} ranks have no trace: {_ranks(missing[:_MOST_LISTED])}"
    if report["groups_whose_members_disagree"]:
        count = report["groups_whose_members_disagree"]
        yield f"{count} groups whose members have other collectives: their waiting is not taken out"
    early_us = report["left_too_early_us"]
    if early_us:
        yield (
            f"clocks: {len(early_us):,} times a rank leaves a collective before another has come, up to "
            f"{early_us[0]:,.1f} us; its waiting is not taken out"
        )


def _of_files(ranks: _Ranks, timed: _Ranks) -> Iterator[str]:
    bare = [rank["rank"] for rank in timed if rank["host_trace"] is None]
    if bare:
        yield (
            f"{_ranks(bare)} without a host trace: ids and tensors of operators are lost, and groups and sizes of "
            "collectives that Kineto does not say"
        )
    untimed = [rank["rank"] for rank in ranks if "linked_by" not in rank]
    if untimed:
        yield (
            f"{_ranks(untimed)} without a Kineto trace: kernels, times and waits are lost, and nodes take no time: "
            "a run has communication only; for times record both traces (`nadi trace collect`), convert them together"
        )
    unknown = sorted({rank["schema"] for rank in ranks if rank["known_schema"] is False})
    if unknown:
        yield f"schema {', '.join(unknown)} of host traces is not known, and read as those that are"


def _of_links(ranks: _Ranks, timed: _Ranks) -> Iterator[str]:
    failed = [r["rank"] for r in timed if r["host_trace"] is not None and r["linked_by"] == NOT_AT_ALL]
    if failed:
        yield f"{_ranks(failed)}: the host trace fits no part of the Kineto trace and is not used"
    by_order = [rank["rank"] for rank in timed if rank["linked_by"] == BY_ORDER]
    if by_order:
        yield f"{_ranks(by_order)}: no record function ids that fit, operators linked by order and name"
    part = [rank for rank in timed if rank["is_of_a_part"]]
    if part and part[0]["device_operations"] < part[0]["device_operations_of_all_steps"]:
        yield (
            f"{_ranks([rank['rank'] for rank in part])}: the host trace is of a part of the Kineto trace, and only "
            f"that part is converted: {sum(rank['device_operations'] for rank in part):,} of "
            f"{sum(rank['device_operations_of_all_steps'] for rank in part):,} device operations; "
            "--from pytorch:step=all converts all"
        )
    several = max((rank["places_that_fit"] for rank in timed), default=0)
    if several > 1:
        yield f"the host trace fits {several} places of the Kineto trace, the first is taken"
    devices = sum(rank["device_operations"] for rank in timed)
    if devices:
        yield f"{sum(rank['linked_device_operations'] for rank in timed):,} of {devices:,} device operations linked"
    for why, count in Counter(entry["why"] for rank in timed for entry in rank["not_linked"]).most_common(_MOST_LISTED):
        yield f"{count:,} not linked: {why}"
    for sentence, count in _lost(ranks).most_common(_MOST_LISTED):
        yield f"{count:,} collectives lost, kept as computations: {sentence}"
    merged = [rank["rank"] for rank in timed if rank["is_merged"]]
    if merged:
        yield (
            f"{_ranks(merged)}: files of chakra_trace_link do not say waits between streams and when kernels began: "
            "each begins when it is launched and its stream is free; convert the two original files where there are any"
        )
    inferred = sum(rank["stream_waits_inferred"] for rank in timed)
    if inferred:
        yield f"{inferred:,} waits between streams found by place and time, as the traces do not say them"


def _of_times(timed: _Ranks) -> Iterator[str]:
    offsets = [rank for rank in timed if rank["clock_collectives"]]
    if offsets:
        most = max(offsets, key=lambda rank: abs(rank["clock_offset_us"]))
        spread = max(rank["clock_spread_us"] for rank in offsets)
        removed = [rank["rank"] for rank in offsets if rank["clock_offset_removed_us"]]
        yield (
            f"clocks: collectives end up to {abs(most['clock_offset_us']):.1f} us apart from rank {timed[0]['rank']}'s "
            f"(rank {most['rank']}), and spread by {spread:.1f} us: "
            + (f"offsets of {_ranks(removed)} removed" if removed else "no offset of clocks beyond that, none removed")
        )
    waited = sum(rank["waited_us"] for rank in timed)
    if waited:
        yield f"waiting for late ranks, taken out of collectives: {waited / 1000:,.1f} ms of all ranks"
    elif any(rank["collectives"] for rank in timed):
        yield "waiting of collectives cannot be told from transfer without other ranks, and is not taken out"
    threads = sum(rank["host_threads_us"] for rank in timed)
    if threads:
        yield (
            f"threads of the host that carry out collectives: {threads / 1000:,.1f} ms of all ranks until they begin "
            "and beyond what the fastest transfers take, kept as computations"
        )
    beside = max((rank["kernels_side_by_side_us"] for rank in timed), default=0)
    if beside:
        yield f"kernels of several streams overlap by up to {beside:,.0f} us; an NPU runs them one after another"


def _lost(ranks: list[dict[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for rank in ranks:
        total.update(rank["lost"])
    return total


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
