"""Calls that threads of the host carry out (gloo's): what these threads take for themselves is work of the host.

A kernel of NCCL's has the device to itself. A thread of gloo's shares the processors with the computation and with
whatever else the machine does, so that a recorded call holds more than its transfer:

- From when a call is handed over, and its thread is done with the one before, some time passes until it begins.
- Between processes of one host there is no network that others could be using. So of equal calls of a recording the
  fastest shows what a transfer takes, and what a member takes beyond that, the threads were without a processor.

Both become nodes before and after the call, with the times that were recorded, as operators have theirs. They are in
the accelerator's lane, which has nothing else to do: a rank with a device has none of these nodes.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from et.pytorch import clocks, comm_calls
from et.pytorch.nodes import Node
from et.schema import NodeType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from et.pytorch.kineto import HostOperator, KinetoTrace
    from et.pytorch.rank_nodes import RankNodes

BEGINS, ENDS = "(thread begins)", "(thread ends)"
"""What follows the name of a call in those of its two nodes."""

_Key = tuple[str, str, str]
_Taken = list[tuple[int, int]]


def add_beginnings(made: RankNodes, handed_ns: Mapping[int, int]) -> None:
    """Let calls begin as late after they were handed over as their threads did.

    Args:
        made: a rank's nodes; those of calls come after what has handed them over.
        handed_ns: by place of a call, when that was.
    """
    if made.work.ops:
        return
    by_thread: dict[int, list[int]] = collections.defaultdict(list)
    for place in handed_ns:
        comm = made.comms.calls[place]
        if comm.on_host >= 0 and comm.call.kind >= 0:
            by_thread[made.kineto.ops[comm.on_host].thread].append(place)
    for places in by_thread.values():
        before_end_ns, before = 0, -1
        for place in sorted(places, key=lambda place: made.comms.calls[place].start_ns):
            comm, number = made.comms.calls[place], made.node_of_comm[place]
            free_ns = handed_ns[place]
            if before_end_ns > free_ns:
                made.nodes[number].after.append(before)
                free_ns = before_end_ns
            took_ns = comm.start_ns - free_ns
            if took_ns >= 1000:
                node = made.nodes[number]
                made.nodes.append(_node(f"{comm.name} {BEGINS}", free_ns, took_ns, node.after))
                node.after = [len(made.nodes) - 1]
                made.thread_ns += took_ns
            before_end_ns, before = comm.end_ns, number


def add_ends(members: Mapping[int, tuple[RankNodes, int]], fastest: Mapping[_Key, int]) -> None:
    """Let what comes after a collective wait for what its members' threads took beyond the transfer.

    The collective's node then takes the transfer, and begins when the last member had come.

    Args:
        members: by rank its nodes and the place of the call, all processes of one host.
        fastest: transfers, of `fastest_ns`.
    """
    taken = {rank: made.comms.calls[place] for rank, (made, place) in members.items()}
    last_ns = max(comm.start_ns for comm in taken.values())
    transfer_ns = min(comm.end_ns for comm in taken.values()) - last_ns
    if transfer_ns < 0:  # somebody's clock is wrong
        return
    made, place = next(iter(members.values()))
    transfer_ns = min(transfer_ns, fastest.get(_key(made.kineto.ops[made.comms.calls[place].on_host]), transfer_ns))
    for rank, (made, place) in members.items():
        over_ns = last_ns + transfer_ns
        took_ns = taken[rank].end_ns - over_ns
        if took_ns < 1000:
            continue
        number = made.node_of_comm[place]
        call, own = made.nodes[number], len(made.nodes)
        call.micros = transfer_ns // 1000
        for node in made.nodes:
            if number in node.after:
                node.after = [own if parent == number else parent for parent in node.after]
        made.nodes.append(_node(f"{taken[rank].name} {ENDS}", over_ns, took_ns, [number]))
        made.thread_ns += took_ns


def take_turns(made: RankNodes) -> None:
    """Count time in which two threads were at it once, as their nodes go one after another in their lane.

    A microsecond is left to each, about what rounding down takes: a computation without any time would look unmeasured.
    """
    own = [node for node in made.nodes if node.name.endswith((BEGINS, ENDS))]
    free_ns = 0
    for node in sorted(own, key=lambda node: node.start_ns):
        end_ns = node.start_ns + node.micros * 1000
        node.start_ns = max(node.start_ns, free_ns)
        node.micros = max(end_ns - node.start_ns, 1000) // 1000
        free_ns = max(free_ns, end_ns)


def fastest_ns(kinetos: Sequence[KinetoTrace]) -> dict[_Key, int]:
    """Of equal calls in the whole recording of the members of a group the least transfer: the last comes, one leaves.

    Calls are matched in order of issue, where all members have as many; those that are not open at one moment do not
    count.
    """
    found: dict[_Key, int] = {}
    all_taken = [_taken(kineto.ops) for kineto in kinetos]
    for key in set[_Key].intersection(*(set(taken) for taken in all_taken)):
        if len({len(taken[key]) for taken in all_taken}) > 1:
            continue
        for instance in zip(*(taken[key] for taken in all_taken), strict=True):
            transfer_ns = min(end for _, end in instance) - max(start for start, _ in instance)
            if transfer_ns > 0:
                found[key] = min(found.get(key, transfer_ns), transfer_ns)
    return found


def waits_for_all(made: RankNodes, place: int) -> bool:
    """Whether a call is carried out by the host alone, and ends nowhere before the last member has come."""
    comm = made.comms.calls[place]
    return comm.on_host >= 0 and not made.work.ops and comm.call.kind in clocks.TOGETHER


def _taken(ops: Iterable[HostOperator]) -> dict[_Key, _Taken]:
    """When equal calls were carried out by the host, in order of issue."""
    taken: dict[_Key, _Taken] = collections.defaultdict(list)
    for op in sorted(ops, key=lambda op: (op.rf_id, op.start_ns)):
        said = comm_calls.annotated(op.name)
        if said is not None and said[0] in comm_calls.ON_HOST and "Input Dims" in op.args:
            taken[_key(op)].append((op.start_ns, op.end_ns))
    return taken


def _key(op: HostOperator) -> _Key:
    return op.name, str(op.args.get("Input Dims")), str(op.args.get("Input type"))


def _node(name: str, start_ns: int, took_ns: int, after: list[int]) -> Node:
    micros = (start_ns + took_ns) // 1000 - start_ns // 1000
    return Node(name, NodeType.COMP_NODE, start_ns, micros, after=after)
