"""The nodes of a rank that has a host trace only: operators in order of calls, without times.

A collective comes after the operator that issues it. Operators that use one of its tensors come after it.
"""

from dataclasses import dataclass, field
from pathlib import Path

from nadi.et.pytorch import comm_calls
from nadi.et.pytorch.comms import Comm, Comms, complete
from nadi.et.pytorch.host_trace import HostTrace
from nadi.et.pytorch.nodes import Node
from nadi.et.schema import NodeType


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
