"""Traces of a stream: one for each role, whose nodes have names of their own."""

from collections import defaultdict
from collections.abc import Sequence

from et.blocks import Block, TraceColumns
from et.schema import CollectiveCommType, NodeType
from et.summary import collective_name
from et.synthesis.layout import Groups, SetLayout
from et.synthesis.streams import COLLECTIVE, COMPUTE, HOST, LOAD, RECEIVE, SEND, STORE, StreamEvent, taking_part
from et.table import TraceTable


def family_names(layout: SetLayout) -> dict[str, str]:
    """What groups of a slot are called in the traces, "g1" and so on; a slot that reaches over roles may be several."""
    slots = dict.fromkeys(family.slot for family in layout.families)
    return {slot: f"g{number}" for number, slot in enumerate(slots, 1)}


def families_of(layout: SetLayout) -> dict[str, Groups]:
    """The groups of each name."""
    found: dict[str, Groups] = defaultdict(tuple)
    names = family_names(layout)
    for family in layout.families:
        groups = layout.groups(family)
        if not set(groups) <= set(found[names[family.slot]]):
            found[names[family.slot]] += groups
    return dict(found)


def traces_of(layout: SetLayout, events: Sequence[StreamEvent]) -> list[TraceTable]:
    """The trace of each role, as its first NPU runs it.

    An event of several roles waits in its own role for what the stream says, in the others for what is before it.
    """
    blocks = [Block() for _ in range(layout.roles)]
    names = family_names(layout)
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in events:
        operation, value = event.operation, event.value
        other = (event.role + operation.roles_away) % layout.roles
        if operation.kind == SEND:
            sent[event.role, other].append(value)
        elif operation.kind == RECEIVE:
            value = sent[other, event.role].pop(0)
        for role in taking_part(layout, event):
            distances = event.parents if role == event.role else (1,)
            _add(blocks[role], event, value, other * layout.width, names, distances)
    found = []
    for role, block in enumerate(blocks):
        columns = TraceColumns(npu=role * layout.width)
        columns.stamp(block, "synthetic/")
        found.append(columns.table())
    return found


def _add(
    block: Block, event: StreamEvent, value: int, peer: int, names: dict[str, str], distances: Sequence[int]
) -> None:
    """One node, as the next of its role."""
    place = len(block)
    after = [place - distance for distance in distances if distance <= place]
    operation = event.operation
    if operation.kind in {COMPUTE, HOST}:
        is_host = operation.kind == HOST
        block.comp(f"{operation.kind}-{place}", duration_micros=value, is_cpu_op=is_host, after=after)
    elif operation.kind in {LOAD, STORE}:
        node_type = NodeType.MEM_LOAD_NODE if operation.kind == LOAD else NodeType.MEM_STORE_NODE
        block.mem(f"{operation.kind}-{place}", node_type, value, after=after)
    elif operation.kind == COLLECTIVE:
        kind = CollectiveCommType(operation.comm_type)
        name = f"{collective_name(kind)}-{place}"
        block.coll(name, kind, value, group=names[operation.slot], after=after)
    elif operation.kind == SEND:
        block.send(f"{operation.kind}-{place}", value, peer=peer, after=after)
    else:
        block.recv(f"{operation.kind}-{place}", value, peer=peer, after=after)
