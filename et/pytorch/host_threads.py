"""Calls that threads of the host execute (gloo's): the threads' own time is work of the host.

A kernel of NCCL has the device to itself. A thread of gloo shares the processors with the computation and with the
other programs of the machine, so that a recorded call holds more than its transfer:

- After a call is handed over, and its thread has finished the call before, some time passes until it begins.
- Between processes of one host there is no network that others could use. So among equal calls of a recording the
  fastest shows how long a transfer takes, and in the rest of a member's time its threads had no processor.

Both become nodes before and after the call, with the times that were recorded, like those of operators. They are in
the accelerator's lane, which is otherwise empty: a rank with a device has no such nodes.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from nadi.et.pytorch import clocks, comm_calls
from nadi.et.pytorch.nodes import Node
from nadi.et.schema import NodeType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nadi.et.pytorch.kineto import HostOperator, KinetoTrace
    from nadi.et.pytorch.rank_nodes import RankNodes

BEGINS, ENDS = "(thread begins)", "(thread ends)"  # endings, after the name of a call, of the names of its two nodes

_Key = tuple[str, str, str]
_Taken = list[tuple[int, int]]


def add_beginnings(rank_nodes: RankNodes, handover_ns: Mapping[int, int]) -> None:
    """Add the time from each call's handover to its begin, as a node before the call.

    Args:
        rank_nodes: The nodes of a rank, which are extended.
        handover_ns: The time at which the host handed over each call, by the call's place in `comms.calls`.
    """
    if rank_nodes.work.ops:
        return
    by_thread: dict[int, list[int]] = collections.defaultdict(list)
    for place in handover_ns:
        comm = rank_nodes.comms.calls[place]
        if comm.on_host >= 0 and comm.call.kind >= 0:
            by_thread[rank_nodes.kineto.ops[comm.on_host].thread].append(place)
    for places in by_thread.values():
        before_end_ns, before = 0, -1
        for place in sorted(places, key=lambda place: rank_nodes.comms.calls[place].start_ns):
            comm, number = rank_nodes.comms.calls[place], rank_nodes.node_of_comm[place]
            free_ns = handover_ns[place]
            # The thread was still busy with the call before: the wait begins at that call's end
            if before_end_ns > free_ns:
                rank_nodes.nodes[number].after.append(before)
                free_ns = before_end_ns
            took_ns = comm.start_ns - free_ns
            # Traces have whole microseconds; a shorter wait would be a node of no time
            if took_ns >= 1000:
                node = rank_nodes.nodes[number]
                rank_nodes.nodes.append(_node(f"{comm.name} {BEGINS}", free_ns, took_ns, node.after))
                node.after = [len(rank_nodes.nodes) - 1]
                rank_nodes.thread_ns += took_ns
            before_end_ns, before = comm.end_ns, number


def add_ends(
    members_of_collective: Mapping[int, tuple[RankNodes, int]], fastest_transfer_ns: Mapping[_Key, int]
) -> None:
    """Add the time that members' threads took beyond the transfer of a collective, as nodes after it.

    The collective's node then takes the time of the transfer, and begins when the last member has arrived.

    Args:
        members_of_collective: The nodes of each rank, which are extended, and the call's place in `comms.calls`.
        fastest_transfer_ns: The shortest transfer among equal calls, from `fastest_ns`.
    """
    taken = {rank: step.comms.calls[place] for rank, (step, place) in members_of_collective.items()}
    last_ns = max(comm.start_ns for comm in taken.values())
    transfer_ns = min(comm.end_ns for comm in taken.values()) - last_ns
    if transfer_ns < 0:  # the clocks disagree
        return
    step, place = next(iter(members_of_collective.values()))
    transfer_ns = min(
        transfer_ns, fastest_transfer_ns.get(_key(step.kineto.ops[step.comms.calls[place].on_host]), transfer_ns)
    )
    # The fastest equal call of the recording is the transfer; in the rest a thread waited for a processor
    for rank, (step, place) in members_of_collective.items():
        over_ns = last_ns + transfer_ns
        took_ns = taken[rank].end_ns - over_ns
        if took_ns < 1000:
            continue
        number = step.node_of_comm[place]
        call, own = step.nodes[number], len(step.nodes)
        # The call's node keeps the transfer; a new node takes the rest
        call.micros = transfer_ns // 1000
        for node in step.nodes:
            if number in node.after:
                node.after = [own if parent == number else parent for parent in node.after]
        step.nodes.append(_node(f"{taken[rank].name} {ENDS}", over_ns, took_ns, [number]))
        step.thread_ns += took_ns


def take_turns(rank_nodes: RankNodes) -> None:
    """Count times when two threads ran at once only once, because their nodes share one lane.

    Each node keeps at least a microsecond, about what rounding down takes, because no time would look unmeasured.

    Args:
        rank_nodes: The nodes of a rank, which are changed.
    """
    own = [node for node in rank_nodes.nodes if node.name.endswith((BEGINS, ENDS))]
    free_ns = 0
    for node in sorted(own, key=lambda node: node.start_ns):
        end_ns = node.start_ns + node.micros * 1000
        node.start_ns = max(node.start_ns, free_ns)
        node.micros = max(end_ns - node.start_ns, 1000) // 1000
        free_ns = max(free_ns, end_ns)


def fastest_ns(kinetos: Sequence[KinetoTrace]) -> dict[_Key, int]:
    """Return the shortest transfer in ns among equal calls of a group, in the whole recording.

    A transfer lasts from the last arrival to the first departure. Calls are matched in order of issue if all members
    have equally many; calls that are never open on all members at once do not count.

    Args:
        kinetos: The Kineto traces of the group's members.
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


def waits_for_all(rank_nodes: RankNodes, call_place: int) -> bool:
    """Return whether the host alone executes a call, and no member can leave before the last one has arrived.

    Args:
        rank_nodes: The nodes of a rank.
        call_place: The place of the call in `comms.calls`.
    """
    comm = rank_nodes.comms.calls[call_place]
    return comm.on_host >= 0 and not rank_nodes.work.ops and comm.call.kind in clocks.TOGETHER


def _taken(ops: Iterable[HostOperator]) -> dict[_Key, _Taken]:
    """Return begin and end of the host's communication calls by kind, group and sizes, in order of issue."""
    taken: dict[_Key, _Taken] = collections.defaultdict(list)
    for op in sorted(ops, key=lambda op: (op.rf_id, op.start_ns)):
        annotation = comm_calls.backend_and_kind(op.name)
        if annotation is not None and annotation[0] in comm_calls.ON_HOST and "Input Dims" in op.args:
            taken[_key(op)].append((op.start_ns, op.end_ns))
    return taken


def _key(op: HostOperator) -> _Key:
    return op.name, str(op.args.get("Input Dims")), str(op.args.get("Input type"))


def _node(name: str, start_ns: int, took_ns: int, after: list[int]) -> Node:
    micros = (start_ns + took_ns) // 1000 - start_ns // 1000
    return Node(name, NodeType.COMP_NODE, start_ns, micros, after=after)
