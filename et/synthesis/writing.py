"""Writing of a stream as traces: one trace per role, with new names."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from et.blocks import Block, TraceColumns
from et.schema import CollectiveCommType, NodeType
from et.summary import collective_name
from et.synthesis.layout import Groups, SetLayout
from et.synthesis.streams import COLLECTIVE, COMPUTE, HOST, LOAD, RECEIVE, SEND, STORE, Operation, Stream
from et.table import TraceTable


def family_names(layout: SetLayout) -> dict[str, str]:
    """Return the name of each slot's groups in the traces: "g1", "g2" and so on."""
    slots = dict.fromkeys(family.slot for family in layout.families)
    return {slot: f"g{number}" for number, slot in enumerate(slots, 1)}


def families_of(layout: SetLayout) -> dict[str, Groups]:
    """Return the groups of each name."""
    found: dict[str, Groups] = defaultdict(tuple)
    names = family_names(layout)
    for family in layout.families:
        groups = layout.groups(family)
        if not set(groups) <= set(found[names[family.slot]]):
            found[names[family.slot]] += groups
    return dict(found)


def traces_of(stream: Stream) -> list[TraceTable]:
    """Return the trace of each role, as its first NPU runs it; a receive is as large as its send."""
    layout = stream.layout
    names = family_names(layout)
    sent: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    for role, events in enumerate(stream.roles):
        for operation, value, _ in events:
            if operation.kind == SEND:
                sent[role, (role + operation.roles_away) % layout.roles].append(value)
    tables = []
    for role, events in enumerate(stream.roles):
        block = Block()
        places: dict[Operation, list[int]] = defaultdict(list)
        for operation, value, parents in events:
            other = (role + operation.roles_away) % layout.roles
            size = sent[other, role].popleft() if operation.kind == RECEIVE else value
            after = [places[kind][-1 - back] for kind, back in parents if back < len(places[kind])]
            if parents and not after:
                after = [len(block) - 1] if len(block) else []
            places[operation].append(len(block))
            _add(block, operation, size, other * layout.width, names, sorted(set(after)))
        columns = TraceColumns(npu=role * layout.width)
        columns.stamp(block, "synthetic/")
        tables.append(columns.table())
    return tables


def _add(
    block: Block, operation: Operation, value: int, peer: int, names: Mapping[str, str], after: Sequence[int]
) -> None:
    """Add one node."""
    place = len(block)
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
