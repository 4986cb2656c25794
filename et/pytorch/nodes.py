"""Nodes of a Chakra trace while they are put together: of threads of the host, and of a rank with a host trace only."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nadi.et.blocks import Block, TraceColumns
from nadi.et.pytorch import comm_calls, ranks
from nadi.et.pytorch.comms import Comm, Comms, complete
from nadi.et.pytorch.host_trace import HostTrace
from nadi.et.schema import NodeType, attribute
from nadi.et.table import TraceTable

if TYPE_CHECKING:
    from nadi.et.pytorch.kineto import HostOperator, KinetoTrace
    from nadi.et.pytorch.rank_nodes import RankNodes


_ABSENT = -1
_COLUMNS = ("is_cpu_op", "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "group")


@dataclass(slots=True)
class Node:
    """A node of a future table; `after` has the numbers of its parents, which may come later in the list."""

    name: str  # name of the node
    type: NodeType  # type of the node in Chakra's schema
    start_ns: int  # start time; on the common clock once the ranks' clocks are known
    micros: int = 0  # duration in microseconds
    is_cpu_op: bool = False  # whether the host executes the node
    after: list[int] = field(default_factory=list)  # numbers of the parents
    comm_type: int = _ABSENT  # kind of a collective, a CollectiveCommType; -1 for other nodes
    comm_size: int = _ABSENT  # size of a collective or message in bytes, -1 = none
    comm_src: int = _ABSENT  # sender of a message, -1 = unknown
    comm_dst: int = _ABSENT  # receiver of a message, -1 = unknown
    comm_tag: int = _ABSENT  # tag of a message
    group: str = ""  # name of a collective's group; "" = all ranks
    in_split: tuple[int, ...] = ()  # elements sent to each member of an uneven all-to-all; () = even
    out_split: tuple[int, ...] = ()  # elements received from each member; () = even
    # name, kind and value of further attributes, as et.attribute takes them
    attributes: list[tuple[str, str, Any]] = field(default_factory=list)


def table(nodes: Sequence[Node], rank: int, path: str, version: str, begin_ns: int) -> TraceTable:
    """Return the nodes of a rank as a table, parents before children.

    Args:
        nodes: The nodes of the rank; dependencies that close cycles are removed from them.
        rank: The rank, which becomes the NPU of the trace.
        path: The file for the table's path and for errors.
        version: The version of the host trace's schema; "Kineto" if there is no host trace.
        begin_ns: The time that becomes 0.
    """
    order = _parents_first(nodes)
    row = {number: place for place, number in enumerate(order)}
    block = Block()
    for node in (nodes[number] for number in order):
        values = {column: getattr(node, column) for column in _COLUMNS}
        values |= {"duration_micros": max(node.micros, 0)}
        values |= {"in_split_size": node.in_split, "out_split_size": node.out_split}
        # JSON can hold half a surrogate pair, protobuf cannot
        name = node.name.encode("utf-8", "replace").decode()
        attributes = [attribute(*fields) for fields in node.attributes]
        block.add(name, node.type, values, {"after": [row[parent] for parent in node.after], "attrs": attributes})
    columns = TraceColumns(rank, path)
    columns.stamp(block)
    # Blocks have no start times
    starts = [max(nodes[number].start_ns - begin_ns, 0) // 1000 for number in order]
    return replace(columns.table(), version=version, start_time_micros=np.array(starts, np.int64))


def _parents_first(nodes: Sequence[Node]) -> list[int]:
    """Return the numbers of the nodes, parents before children, otherwise in their order.

    A dependency that would close a cycle, which only wrong clocks cause, is removed from `after`.
    """
    order: list[int] = []
    state = [0] * len(nodes)  # 1 = its parents are being placed, 2 = placed
    for first in range(len(nodes)):
        unfinished = [first]
        while unfinished:
            number = unfinished[-1]
            if state[number] == 0:
                state[number] = 1
                nodes[number].after = [parent for parent in nodes[number].after if state[parent] != 1]
                unfinished.extend(parent for parent in sorted(nodes[number].after, reverse=True) if state[parent] == 0)
            else:
                unfinished.pop()
                if state[number] == 1:
                    state[number] = 2
                    order.append(number)
    return order


# Calls that threads of the host execute (gloo's): the threads' own time is work of the host.
#
# A kernel of NCCL has the device to itself. A thread of gloo shares the processors with the computation and with the
# other programs of the machine, so that a recorded call holds more than its transfer:
#
# - After a call is handed over, and its thread has finished the call before, some time passes until it begins.
# - Between processes of one host there is no network that others could use. So among equal calls of a recording the
#   fastest shows how long a transfer takes, and in the rest of a member's time its threads had no processor.
#
# Both become nodes before and after the call, with the times that were recorded, like those of operators. They are in
# the accelerator's lane, which is otherwise empty: a rank with a device has no such nodes.


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
    return comm.on_host >= 0 and not rank_nodes.work.ops and comm.call.kind in ranks.TOGETHER


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


# The nodes of a rank that has a host trace only: operators in order of calls, without times.
#
# A collective comes after the operator that issues it. Operators that use one of its tensors come after it.


@dataclass
class HostNodes:
    """The nodes of a rank as in RankNodes, without times."""

    rank: int  # number of the rank
    path: Path  # path of the host trace
    nodes: list[Node]  # all nodes of the rank
    comms: Comms  # collectives and messages
    node_of_comm: dict[int, int] = field(default_factory=dict)  # node of each call, by the call's place in comms.calls
    ops: int = 0  # number of operators of the host
    begin_ns: int = 0  # always 0, as there are no times

    def order_of(self, place: int) -> tuple[int, int]:
        """Return the sort key of a call: the order in the trace, because there are no times.

        Args:
            place: The place of the call in `comms.calls`.
        """
        return (place, 0)


def host_nodes(rank: int, host: HostTrace) -> HostNodes:
    """Make the nodes of a rank from its host trace: one for each operator, and another one for each call.

    Args:
        rank: The number of the rank.
        host: The host trace of the rank.
    """
    step = HostNodes(rank, host.path, [], Comms(), ops=len(host.ops))
    waits: dict[int, int] = {}  # node of the last call that used each storage
    place_of: dict[int, int] = {}  # place of a call, by op_id of its operator and those within
    last = -1
    for op in host.ops:
        node = Node(op.name, NodeType.COMP_NODE, 0, is_cpu_op=True)
        node.attributes.append(("rf_id", "int64", op.rf_id))
        node.after = [last] if last >= 0 else []
        inside = place_of.get(op.parent)
        if inside is None:
            # Only the first operator that uses a tensor needs to wait: later ones follow that operator
            parents = {waits.pop(storage) for storage in comm_calls.storages(op.inputs) & waits.keys()}
            node.after.extend(parents)
        last = len(step.nodes)
        step.nodes.append(node)
        call = comm_calls.call_of_host(op)
        if inside is not None:
            place_of[op.op_id] = inside
            complete(step.comms.calls[inside], op.name, call)
            continue
        found = comm_calls.backend_and_kind(op.name)
        if found is not None and found[1] is None:
            step.comms.lost.append(f"{op.name}: no known collective has this name")
        if call is None:
            continue
        place = place_of[op.op_id] = len(step.comms.calls)
        step.comms.calls.append(Comm(call, -1, op.name if op.name != comm_calls.RECORD else call.name))
        step.node_of_comm[place] = len(step.nodes)
        step.nodes.append(Node(step.comms.calls[place].name, NodeType.COMP_NODE, 0, after=[last]))
        for storage in comm_calls.storages([*op.inputs, *op.outputs]):
            waits[storage] = step.node_of_comm[place]
    for place, node_number in step.node_of_comm.items():
        step.nodes[node_number].name = step.comms.calls[place].name
    return step
