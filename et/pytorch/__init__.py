"""Conversion of PyTorch's records of all ranks of a training run to Chakra traces: one step, on one clock.

A rank with a Kineto trace becomes nodes with times; a rank with a host execution trace only becomes nodes without
times. The report lists what was linked, lost and assumed, and why, as values and as sentences.
"""

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nadi.et.errors import TraceError
from nadi.et.pytorch import comm_calls, ranks
from nadi.et.pytorch.comm_calls import RECV, SEND, CommCall
from nadi.et.pytorch.comms import Comm
from nadi.et.pytorch.host_trace import BY_ORDER, NOT_AT_ALL, Links, is_of_a_part, link
from nadi.et.pytorch.injected.nadi_collecting import collect
from nadi.et.pytorch.kineto import KinetoTrace
from nadi.et.pytorch.nodes import HostNodes, Node, add_ends, fastest_ns, host_nodes, table, take_turns, waits_for_all
from nadi.et.pytorch.rank_nodes import RankNodes, rank_nodes
from nadi.et.pytorch.ranks import ClockOffsets, Groups, RankFiles, rank_files, ranks_of
from nadi.et.schema import CollectiveCommType, NodeType
from nadi.et.table import WAIT_MICROS, TraceTables
from nadi.inputs.limits import MAX_NPUS

ALL = "all"
_MAY_BE_EMPTY = frozenset({CollectiveCommType.BARRIER, SEND, RECV})
LATE = "(ranks that begin earlier)"


@dataclass
class PlacedCall:
    """A call of a rank, with its group."""

    step: RankNodes | HostNodes  # nodes of the rank
    place: int  # place of the call in step.comms.calls
    ranks: tuple[int, ...]  # members of its group
    group: str  # name of the group in the resulting traces

    @property
    def comm(self) -> Comm:
        """The call with the times of its execution."""
        return self.step.comms.calls[self.place]

    @property
    def call(self) -> CommCall:
        """Kind, size and members of the call."""
        return self.comm.call

    @property
    def node(self) -> Node:
        """Node of the call."""
        return self.step.nodes[self.step.node_of_comm[self.place]]


@dataclass
class Conversion:
    """All ranks while they are converted."""

    step_number: int | None  # number of the step, None = everything that was recorded
    ranks: list[RankFiles]  # files of each rank
    steps: dict[int, RankNodes | HostNodes]  # nodes by rank
    groups: Groups  # process groups of all ranks
    placed: dict[int, list[PlacedCall]] = field(default_factory=dict)  # calls by rank, in order of execution
    clocks: ClockOffsets = field(default_factory=ClockOffsets)  # offsets of the ranks' clocks
    offset_ns: dict[int, int] = field(default_factory=dict)  # time added to all times of a rank
    waited_ns: dict[int, int] = field(default_factory=dict)  # time that a rank's collectives waited for other ranks
    early_ns: list[int] = field(default_factory=list)  # ends of members before another one begins, by how much
    lost: dict[int, list[str]] = field(default_factory=dict)  # sentences on lost calls, by rank
    unmatched: int = 0  # number of groups whose members recorded different collectives


def convert(paths: Sequence[Path], step: str = "") -> TraceTables:
    """Convert the host traces and Kineto traces of all ranks of one run.

    Args:
        paths: The files, or folders with the files.
        step: The number of a ProfilerStep; "all" = everything that was recorded; "" = the last step that all ranks
            have, otherwise everything.
    """
    ranks = rank_files(paths)
    for files in ranks:
        world_size = max(files.rank + 1, *_world_sizes(files))
        if world_size > MAX_NPUS:
            raise TraceError(f"{files.path}: a run of {world_size:,} ranks, expected at most {MAX_NPUS:,}")
    links = {files.rank: link(files.host, files.kineto) for files in ranks if files.kineto is not None}
    number, windows = _windows(ranks, step, links)
    steps: dict[int, RankNodes | HostNodes] = {}
    for files in ranks:
        if files.kineto is not None:
            begin_ns, end_ns = windows[files.rank]
            own = links[files.rank]
            if number is None and step != ALL and is_of_a_part(own, files.kineto):
                begin_ns, end_ns = own.span_ns(files.kineto)
            steps[files.rank] = rank_nodes(files.rank, files.kineto, own, begin_ns, end_ns)
        elif files.host is not None:
            steps[files.rank] = host_nodes(files.rank, files.host)
    # the ranks that have traces, and those that the traces mention
    world = range(max([max(steps) + 1, *(size for files in ranks for size in _world_sizes(files))]))
    conversion = Conversion(number, ranks, steps, Groups(tuple(world)))
    _place(conversion)
    _set_clocks(conversion)
    _finish(conversion)
    begin_ns = min(rank_step.begin_ns + conversion.offset_ns[rank] for rank, rank_step in steps.items())
    tables = {
        rank: table(rank_step.nodes, rank, str(rank_step.path), files.host.schema if files.host else "Kineto", begin_ns)
        for (rank, rank_step), files in zip(sorted(steps.items()), ranks, strict=True)
    }
    report = report_of(conversion)
    return TraceTables(tables, conversion.groups.members, tuple(notes_of(report)), report)


def _world_sizes(files: RankFiles) -> list[int]:
    """Return the numbers of ranks that a rank's traces mention."""
    hosts = list(files.host.group_sizes.values()) if files.host is not None else []
    return [*hosts, files.kineto.world_size if files.kineto is not None else 1]


def _windows(
    ranks: Sequence[RankFiles], step: str, links_of_rank: Mapping[int, Links]
) -> tuple[int | None, dict[int, tuple[int, int]]]:
    """Return the step to convert, None = all, and its begin and end in ns by rank, on each rank's own clock."""
    kinetos = {files.rank: files.kineto for files in ranks if files.kineto is not None}
    shared = sorted(set.intersection(*(set(kineto.steps) for kineto in kinetos.values()))) if kinetos else []
    if step not in {"", ALL}:
        if not step.isdecimal() or int(step) not in shared:
            found = f"steps {', '.join(map(str, shared))}" if shared else "no step that all ranks have"
            raise TraceError(f"{ranks[0].path}: step {step!r}, found {found}; expected one of these, or {ALL}")
        number: int | None = int(step)
    else:
        number = _best_step(shared, kinetos, links_of_rank) if shared and step != ALL else None
    if number is not None:
        return number, {rank: kineto.steps[number] for rank, kineto in kinetos.items()}
    windows = {}
    for rank, kineto in kinetos.items():
        times = [(op.start_ns, op.end_ns) for op in kineto.ops]
        times += [(call.start_ns, call.end_ns) for call in kineto.calls]
        # A trace may have only the device's operations
        times = times or [(op.start_ns, op.end_ns) for op in kineto.device_ops]
        windows[rank] = (min(start for start, _ in times), max(end for _, end in times) + 1)
    return None, windows


def _best_step(
    shared_steps: Sequence[int], kineto_of_rank: Mapping[int, KinetoTrace], links_of_rank: Mapping[int, Links]
) -> int:
    """Return the last of the steps with at least half as many linked operators as any, on the first rank with links."""
    rank = next((rank for rank in sorted(kineto_of_rank) if links_of_rank[rank].host), None)
    if rank is None:
        return shared_steps[-1]
    kineto, starts = (
        kineto_of_rank[rank],
        sorted(kineto_of_rank[rank].ops[i].start_ns for i in links_of_rank[rank].host),
    )
    # Links of each step: the host trace may cover only some steps
    linked = {
        number: bisect.bisect_left(starts, end_ns) - bisect.bisect_left(starts, begin_ns)
        for number in shared_steps
        for begin_ns, end_ns in [kineto.steps[number]]
    }
    return max(number for number in shared_steps if 2 * linked[number] >= max(linked.values()))


def _place(conversion: Conversion) -> None:
    """Find the group of every call of a conversion, and keep the calls without one apart as lost."""
    for files in conversion.ranks:
        rank_step = conversion.steps[files.rank]
        in_kineto = {name: ranks for name, ranks in files.kineto.groups.items() if ranks} if files.kineto else {}
        listed = {**(files.host.groups if files.host else {}), **in_kineto}
        lost = conversion.lost.setdefault(files.rank, list(rank_step.comms.lost))
        placed = conversion.placed.setdefault(files.rank, [])
        for place in sorted(rank_step.node_of_comm, key=rank_step.order_of):
            comm = rank_step.comms.calls[place]
            ranks = ranks_of(files.rank, comm.call, listed, conversion.groups.world)
            if ranks is None:
                lost.append(f"{comm.name}: the {comm.call.group_size or '?'} members of its group are unknown")
            elif comm.call.kind == comm_calls.UNKNOWN:
                lost.append(f"{comm.name}: its kind is unknown")
            elif comm.call.size_bytes < (0 if comm.call.kind in _MAY_BE_EMPTY or comm.call.in_split else 1):
                lost.append(f"{comm.name}: its size is unknown")
            else:
                name = conversion.groups.name(files.rank, ranks, comm.call.group)
                placed.append(PlacedCall(rank_step, place, ranks, name))


def _set_clocks(conversion: Conversion) -> None:
    """Match the collectives of all ranks, find the ranks' clocks and the waiting, and put all nodes on one clock."""
    matched = _matched(conversion)
    # Only these show clocks: their members end together
    instances = [
        {rank: placed.comm for rank, placed in by_rank.items()}
        for by_rank in matched
        if next(iter(by_rank.values())).call.kind in ranks.TOGETHER
    ]
    several = [instance for instance in instances if len(instance) > 1]
    conversion.clocks = ranks.estimate(sorted(conversion.steps), several)
    hosts = {files.rank: files.kineto.host_name if files.kineto is not None else "" for files in conversion.ranks}
    conversion.offset_ns = conversion.clocks.significant(hosts)
    for instance in matched:
        call = next(iter(instance.values())).call
        members = next(iter(instance.values())).ranks
        root = members[call.peer] if call.kind >= 0 and 0 <= call.peer < len(members) else None
        comms = {rank: placed.comm for rank, placed in instance.items()}
        waited, early = ranks.waited_and_early_ns(call.kind, comms, conversion.offset_ns, root)
        conversion.early_ns += early.values()
        for rank, waited_ns in waited.items():
            node = instance[rank].node
            node.attributes.append((WAIT_MICROS, "int64", waited_ns // 1000))
            # The node keeps the transfer, which begins when the last rank arrives; an attribute keeps the waiting
            node.start_ns += waited_ns
            node.micros = max(node.micros - waited_ns // 1000, 0)
            conversion.waited_ns[rank] = conversion.waited_ns.get(rank, 0) + waited_ns
    _set_ends(conversion, matched)
    for rank, rank_step in conversion.steps.items():
        for node in rank_step.nodes:
            node.start_ns += conversion.offset_ns[rank]


def _set_ends(conversion: Conversion, calls_of_rank: Sequence[Mapping[int, PlacedCall]]) -> None:
    """Separate the transfers of collectives within one host from the further time of the host's threads."""
    kinetos = {files.rank: files.kineto for files in conversion.ranks if files.kineto is not None}
    fastest: dict[tuple[int, ...], dict[tuple[str, str, str], int]] = {}
    for instance in calls_of_rank:
        members = {rank: (placed.step, placed.place) for rank, placed in instance.items()}
        timed = {rank: (step, place) for rank, (step, place) in members.items() if isinstance(step, RankNodes)}
        ranks = tuple(sorted(timed))
        hosts = {kinetos[rank].host_name for rank in ranks}
        if "" in hosts or len(hosts) > 1 or not all(waits_for_all(*member) for member in timed.values()):
            continue
        if ranks not in fastest:
            fastest[ranks] = fastest_ns([kinetos[rank] for rank in ranks])
        add_ends(timed, fastest[ranks])
    for rank_step in conversion.steps.values():
        if isinstance(rank_step, RankNodes):
            take_turns(rank_step)


def _matched(conversion: Conversion) -> list[dict[int, PlacedCall]]:
    """Return collectives with times, each by rank: the first one of a group on all its ranks, the second one, ...

    A group whose ranks disagree on the kinds or the number of its collectives gets none.
    """
    of_group: dict[str, dict[int, list[PlacedCall]]] = {}
    for rank, calls in conversion.placed.items():
        for placed in calls:
            if placed.call.kind >= 0 and placed.comm.end_ns > placed.comm.start_ns and len(placed.ranks) > 1:
                of_group.setdefault(placed.group, {}).setdefault(rank, []).append(placed)
    matched = []
    for by_rank in of_group.values():
        kinds = {tuple(placed.call.kind for placed in calls) for calls in by_rank.values()}
        if len(kinds) > 1:
            conversion.unmatched += 1
        elif len(by_rank) > 1:
            matched += [{rank: calls[i] for rank, calls in by_rank.items()} for i in range(len(next(iter(kinds))))]
    return matched


def _finish(conversion: Conversion) -> None:
    """Turn nodes of calls into collectives and messages, and delay ranks that began later."""
    begin_ns = {rank: rank_step.begin_ns + conversion.offset_ns[rank] for rank, rank_step in conversion.steps.items()}
    first_ns = min(begin_ns.values())
    for rank, rank_step in conversion.steps.items():
        for placed in conversion.placed[rank]:
            _set_call(rank, placed)
        # All ranks begin at time 0 of a run: a node delays those that began later
        late = (begin_ns[rank] - first_ns) // 1000
        if late and isinstance(rank_step, RankNodes):
            number = len(rank_step.nodes)
            for node in rank_step.nodes:
                if not node.after:
                    node.after.append(number)
            rank_step.nodes.append(Node(LATE, NodeType.COMP_NODE, first_ns, late, is_cpu_op=True))


def _set_call(rank: int, placed: PlacedCall) -> None:
    """Turn a call's node on a rank into a collective, send or receive."""
    call, node = placed.call, placed.node
    node.comm_size = call.size_bytes
    node.is_cpu_op = False
    if call.dtype:
        node.attributes.append(("dtype", "string", call.dtype))
    if call.kind in {SEND, RECV}:
        members = placed.ranks
        peer = members[call.peer] if 0 <= call.peer < len(members) else -1
        node.type = NodeType.COMM_SEND_NODE if call.kind == SEND else NodeType.COMM_RECV_NODE
        node.comm_src, node.comm_dst = (rank, peer) if call.kind == SEND else (peer, rank)
        node.comm_tag = call.tag
        return
    node.type = NodeType.COMM_COLL_NODE
    node.comm_type = call.kind
    node.group = placed.group
    if call.kind == CollectiveCommType.ALL_TO_ALL:
        node.in_split, node.out_split = call.in_split, call.out_split


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
