"""PyTorch's traces of all ranks to Chakra traces: one step, on one clock.

A rank with a Kineto trace becomes nodes with times; a rank with a host trace alone becomes nodes without. The report
says what was linked, what was lost, and why.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from et.errors import TraceError
from et.pytorch import clocks, comm_calls
from et.pytorch.clocks import ClockOffsets, CollectiveIntervals
from et.pytorch.comm_calls import RECV, SEND, CommCall
from et.pytorch.groups import Groups, ranks_of, said_by, world_of
from et.pytorch.host_only import HostNodes, host_nodes
from et.pytorch.host_threads import add_ends, fastest_ns, take_turns, waits_for_all
from et.pytorch.kineto import KinetoTrace
from et.pytorch.linking import Links, is_of_a_part, link
from et.pytorch.nodes import Node, table
from et.pytorch.rank_nodes import RankNodes, rank_nodes
from et.pytorch.ranks import RankFiles, rank_files
from et.pytorch.report import notes_of, report_of
from et.schema import CollectiveCommType, NodeType
from et.trace_tables import TraceTables
from et.waiting import WAIT_MICROS
from inputs.limits import MAX_NPUS

ALL = "all"
LATE = "(ranks that begin sooner)"


@dataclass
class PlacedCall:
    """A call of a rank with its group.

    Attributes:
        made: nodes of the rank.
        place: of the call in made.comms.calls.
        ranks: members of its group, None = not known.
        group: its name in the traces that are made.
    """

    made: RankNodes | HostNodes
    place: int
    ranks: tuple[int, ...] | None
    group: str

    @property
    def call(self) -> CommCall:
        """What it is."""
        return self.made.comms.calls[self.place].call

    @property
    def node(self) -> Node:
        """Its node."""
        return self.made.nodes[self.made.node_of_comm[self.place]]


@dataclass
class Conversion:
    """All ranks while they are converted.

    Attributes:
        step: number of the step, None = all that there is.
        ranks: files by rank.
        made: nodes by rank.
        groups: of processes.
        placed: calls by rank, in the order in which they are carried out.
        clocks: of the ranks.
        offset_ns: what is added to a rank's times.
        waited_ns: by rank, how long its collectives waited for other ranks.
        early_ns: how long before another began a collective members left it.
        lost: by rank, sentences.
        unmatched: groups whose members have other collectives.
    """

    step: int | None
    ranks: list[RankFiles]
    made: dict[int, RankNodes | HostNodes]
    groups: Groups
    placed: dict[int, list[PlacedCall]] = field(default_factory=dict)
    clocks: ClockOffsets = field(default_factory=ClockOffsets)
    offset_ns: dict[int, int] = field(default_factory=dict)
    waited_ns: dict[int, int] = field(default_factory=dict)
    early_ns: list[int] = field(default_factory=list)
    lost: dict[int, list[str]] = field(default_factory=dict)
    unmatched: int = 0


def convert(paths: Sequence[Path], step: str = "") -> TraceTables:
    """Convert files, or folders of files, of one run.

    Args:
        paths: host traces and Kineto traces, of all ranks.
        step: number of a ProfilerStep, "all", or "": the last step that all ranks have, else all.

    Raises:
        TraceError: a file is wrong, ranks do not fit together, or there is no such step.
    """
    ranks = rank_files(paths)
    for files in ranks:
        most = max(files.rank + 1, *_world_sizes(files))
        if most > MAX_NPUS:
            raise TraceError(f"{files.path}: a run of {most:,} ranks, expected at most {MAX_NPUS:,}")
    links = {files.rank: link(files.host, files.kineto) for files in ranks if files.kineto is not None}
    number, windows = _windows(ranks, step, links)
    made: dict[int, RankNodes | HostNodes] = {}
    for files in ranks:
        if files.kineto is not None:
            begin_ns, end_ns = windows[files.rank]
            own = links[files.rank]
            if number is None and step != ALL and is_of_a_part(own, files.kineto):
                begin_ns, end_ns = own.span_ns(files.kineto)
            made[files.rank] = rank_nodes(files.rank, files.kineto, own, begin_ns, end_ns)
        elif files.host is not None:
            made[files.rank] = host_nodes(files.rank, files.host)
    sizes = [size for files in ranks for size in _world_sizes(files)]
    doing = Conversion(number, ranks, made, Groups(world_of(list(made), sizes)))
    _place(doing)
    _set_clocks(doing)
    _finish(doing)
    begin_ns = min(one.begin_ns + doing.offset_ns[rank] for rank, one in made.items())
    tables = {
        rank: table(one.nodes, str(one.path), _schema(files), begin_ns)
        for (rank, one), files in zip(sorted(made.items()), ranks, strict=True)
    }
    report = report_of(doing)
    return TraceTables(tables, doing.groups.members, tuple(notes_of(report)), report)


def _world_sizes(files: RankFiles) -> list[int]:
    """What a rank's traces say of how many ranks there are."""
    hosts = list(files.host.group_sizes.values()) if files.host is not None else []
    return [*hosts, files.kineto.world_size if files.kineto is not None else 1]


def _schema(files: RankFiles) -> str:
    return files.host.schema if files.host is not None else "Kineto"


def _windows(
    ranks: Sequence[RankFiles], step: str, links: Mapping[int, Links]
) -> tuple[int | None, dict[int, tuple[int, int]]]:
    """Find the step to convert, and from when to when it is on each rank's own clock.

    Args:
        ranks: Files of all ranks.
        step: As of `convert`.
        links: By rank, operators of the Kineto trace that are in the host trace; of several steps the last one is
            taken in which most of them are.

    Raises:
        TraceError: a rank lacks it.
    """
    kinetos = {files.rank: files.kineto for files in ranks if files.kineto is not None}
    shared = sorted(set.intersection(*(set(kineto.steps) for kineto in kinetos.values()))) if kinetos else []
    if step not in {"", ALL}:
        if not step.isdecimal() or int(step) not in shared:
            found = f"steps {', '.join(map(str, shared))}" if shared else "none that all ranks have"
            raise TraceError(f"{ranks[0].path}: step {step!r}, found {found}; expected one of these, or {ALL}")
        number: int | None = int(step)
    else:
        number = _best_step(shared, kinetos, links) if shared and step != ALL else None
    if number is not None:
        return number, {rank: kineto.steps[number] for rank, kineto in kinetos.items()}
    windows = {}
    for rank, kineto in kinetos.items():
        times = [(op.start_ns, op.end_ns) for op in kineto.ops] + [
            (call.start_ns, call.end_ns) for call in kineto.calls
        ]
        times = times or [(op.start_ns, op.end_ns) for op in kineto.device_ops]
        windows[rank] = (min(start for start, _ in times), max(end for _, end in times) + 1)
    return None, windows


def _best_step(shared: Sequence[int], kinetos: Mapping[int, KinetoTrace], links: Mapping[int, Links]) -> int:
    """Return the last of the steps with at least half as many linked operators as any, on the first rank with links."""
    rank = next((rank for rank in sorted(kinetos) if links[rank].host), None)
    if rank is None:
        return shared[-1]
    kineto, starts = kinetos[rank], sorted(kinetos[rank].ops[i].start_ns for i in links[rank].host)
    linked = {
        number: bisect.bisect_left(starts, end_ns) - bisect.bisect_left(starts, begin_ns)
        for number in shared
        for begin_ns, end_ns in [kineto.steps[number]]
    }
    return max(number for number in shared if 2 * linked[number] >= max(linked.values()))


def _place(doing: Conversion) -> None:
    """Find the group of every call."""
    for files in doing.ranks:
        one = doing.made[files.rank]
        said = said_by(files.kineto, files.host.groups if files.host is not None else {})
        lost = doing.lost.setdefault(files.rank, list(one.comms.lost))
        placed = doing.placed.setdefault(files.rank, [])
        for place in sorted(one.node_of_comm, key=one.order_of):
            comm = one.comms.calls[place]
            ranks = ranks_of(files.rank, comm.call, said, doing.groups.world)
            if ranks is None:
                lost.append(f"{comm.name}: the {comm.call.group_size or '?'} members of its group are not said")
            elif comm.call.kind == comm_calls.UNKNOWN:
                lost.append(f"{comm.name}: its kind is not said")
            elif comm.call.size_bytes < 0 or (comm.call.size_bytes == 0 and not _may_be_empty(comm.call)):
                lost.append(f"{comm.name}: its size is not said")
            else:
                name = doing.groups.name(files.rank, ranks, comm.call.group)
                placed.append(PlacedCall(one, place, ranks, name))


def _may_be_empty(call: CommCall) -> bool:
    return call.kind == CollectiveCommType.BARRIER or call.kind in {SEND, RECV} or bool(call.in_split)


def _set_clocks(doing: Conversion) -> None:
    """Match the collectives of all ranks, find the ranks' clocks and the waiting, and put all nodes on one clock."""
    matched = _matched(doing)
    instances = [
        {rank: _taken(placed) for rank, placed in some.items()}
        for some in matched
        if next(iter(some.values())).call.kind in clocks.TOGETHER
    ]
    ranks = sorted(doing.made)
    doing.clocks = clocks.estimate(ranks, [some for some in instances if len(some) > 1])
    hosts = {files.rank: files.kineto.host_name if files.kineto is not None else "" for files in doing.ranks}
    doing.offset_ns = doing.clocks.believed(hosts)
    for some in matched:
        call = next(iter(some.values())).call
        members = next(iter(some.values())).ranks or ()
        root = members[call.peer] if call.kind >= 0 and 0 <= call.peer < len(members) else None
        taken = {rank: _taken(placed) for rank, placed in some.items()}
        doing.early_ns += clocks.early_ns(call.kind, taken, doing.offset_ns, root).values()
        for rank, waited_ns in clocks.waited_ns(call.kind, taken, doing.offset_ns, root).items():
            node = some[rank].node
            node.attributes.append((WAIT_MICROS, "int64", waited_ns // 1000))
            node.start_ns += waited_ns
            node.micros = max(node.micros - waited_ns // 1000, 0)
            doing.waited_ns[rank] = doing.waited_ns.get(rank, 0) + waited_ns
    _set_ends(doing, matched)
    for rank, one in doing.made.items():
        for node in one.nodes:
            node.start_ns += doing.offset_ns[rank]


def _set_ends(doing: Conversion, matched: Sequence[Mapping[int, PlacedCall]]) -> None:
    """Tell the transfers of what processes of one host have carried out from what their threads took beyond."""
    kinetos = {files.rank: files.kineto for files in doing.ranks if files.kineto is not None}
    fastest: dict[tuple[int, ...], dict[tuple[str, str, str], int]] = {}
    for some in matched:
        members = {rank: (placed.made, placed.place) for rank, placed in some.items()}
        timed = {rank: (made, place) for rank, (made, place) in members.items() if isinstance(made, RankNodes)}
        ranks = tuple(sorted(timed))
        hosts = {kinetos[rank].host_name for rank in ranks}
        if "" in hosts or len(hosts) > 1 or not all(waits_for_all(*member) for member in timed.values()):
            continue
        if ranks not in fastest:
            fastest[ranks] = fastest_ns([kinetos[rank] for rank in ranks])
        add_ends(timed, fastest[ranks])
    for one in doing.made.values():
        if isinstance(one, RankNodes):
            take_turns(one)


def _taken(placed: PlacedCall) -> CollectiveIntervals:
    comm = placed.made.comms.calls[placed.place]
    return CollectiveIntervals(comm.start_ns, comm.end_ns)


def _matched(doing: Conversion) -> list[dict[int, PlacedCall]]:
    """Collectives with times, each by rank: the first of a group on all its ranks is one, the second, ...

    Where ranks disagree on the kind or the number of a group's collectives, the group has none.
    """
    of_group: dict[str, dict[int, list[PlacedCall]]] = {}
    for rank, some in doing.placed.items():
        for placed in some:
            comm = placed.made.comms.calls[placed.place]
            if placed.call.kind >= 0 and comm.end_ns > comm.start_ns and len(placed.ranks or ()) > 1:
                of_group.setdefault(placed.group, {}).setdefault(rank, []).append(placed)
    matched = []
    for by_rank in of_group.values():
        kinds = {tuple(placed.call.kind for placed in some) for some in by_rank.values()}
        if len(kinds) > 1:
            doing.unmatched += 1
        elif len(by_rank) > 1:
            matched += [{rank: some[i] for rank, some in by_rank.items()} for i in range(len(next(iter(kinds))))]
    return matched


def _finish(doing: Conversion) -> None:
    """Turn nodes of calls into collectives and messages, and let ranks begin when they did."""
    begin_ns = {rank: one.begin_ns + doing.offset_ns[rank] for rank, one in doing.made.items()}
    first_ns = min(begin_ns.values())
    for rank, one in doing.made.items():
        for placed in doing.placed[rank]:
            _set_call(rank, placed)
        late = (begin_ns[rank] - first_ns) // 1000
        if late and isinstance(one, RankNodes):
            number = len(one.nodes)
            for node in one.nodes:
                if not node.after:
                    node.after.append(number)
            one.nodes.append(Node(LATE, NodeType.COMP_NODE, first_ns, late, is_cpu_op=True))


def _set_call(rank: int, placed: PlacedCall) -> None:
    call, node = placed.call, placed.node
    node.comm_size = call.size_bytes
    node.is_cpu_op = False
    if call.dtype:
        node.attributes.append(("dtype", "string", call.dtype))
    if call.kind in {SEND, RECV}:
        members = placed.ranks or ()
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
