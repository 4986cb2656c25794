"""The nodes of a rank of which there is a host trace alone: operators in order of calls, without times.

A collective comes after the operator that issues it, and what reads or writes a tensor that it had comes after it.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from et.pytorch import comm_calls
from et.pytorch.comms import Comm, Comms
from et.pytorch.host_trace import HostTrace
from et.pytorch.nodes import Node
from et.schema import NodeType


@dataclass
class HostNodes:
    """As RankNodes, without times."""

    rank: int
    path: Path
    nodes: list[Node]
    comms: Comms
    node_of_comm: dict[int, int] = field(default_factory=dict)
    ops: int = 0
    begin_ns: int = 0

    def order_of(self, place: int) -> tuple[int, int]:
        """Where a call stands among others."""
        return (place, 0)


def host_nodes(rank: int, host: HostTrace) -> HostNodes:
    """Make the nodes: one for each operator, and one for each call beside its operator."""
    made = HostNodes(rank, host.path, [], Comms(), ops=len(host.ops))
    waits: dict[int, int] = {}  # by storage the node of the last call that has had it
    place_of: dict[int, int] = {}  # by op_id of a call's operator and all within it
    last = -1
    for op in host.ops:
        node = Node(op.name, NodeType.COMP_NODE, 0, is_cpu_op=True)
        node.attributes.append(("rf_id", "int64", op.rf_id))
        node.after = [last] if last >= 0 else []
        inside = place_of.get(op.parent)
        if inside is None:
            had = {waits.pop(storage) for storage in comm_calls.storages(op.inputs) & waits.keys()}
            node.after.extend(had)
        last = len(made.nodes)
        made.nodes.append(node)
        call = comm_calls.of_host(op)
        if inside is not None:
            place_of[op.op_id] = inside
            _complete(made.comms.calls[inside], op.name, call)
            continue
        found = comm_calls.annotated(op.name)
        if found is not None and found[1] is None:
            made.comms.lost.append(f"{op.name}: no collective of this name is known")
        if call is None:
            continue
        place = place_of[op.op_id] = len(made.comms.calls)
        made.comms.calls.append(Comm(call, -1, op.name if op.name != comm_calls.RECORD else call.name))
        made.node_of_comm[place] = len(made.nodes)
        made.nodes.append(Node(made.comms.calls[place].name, NodeType.COMP_NODE, 0, after=[last]))
        for storage in comm_calls.storages([*op.inputs, *op.outputs]):
            waits[storage] = made.node_of_comm[place]
    for place, node_number in made.node_of_comm.items():
        made.nodes[node_number].name = made.comms.calls[place].name
    return made


def _complete(comm: Comm, name: str, call: comm_calls.CommCall | None) -> None:
    """What the annotation within a record says that the record does not."""
    if call is not None:
        comm.name = name
        if comm.call.size_bytes <= 0:
            comm.call = replace(comm.call, size_bytes=call.size_bytes)
