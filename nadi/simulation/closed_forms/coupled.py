"""Times alone of the collectives of a run in which each collective is a coupled flow."""

import numpy as np

import pdes
from nadi.simulation.closed_forms.advancing.folded_program import CollectiveKeys, ranges
from nadi.simulation.closed_forms.costs import CollectiveCosts
from pdes import CoupledCollectives
from workload import CollectiveSettings, Program
from workload.node_kinds import COLLECTIVE

COUPLED_ABOVE_MESSAGES = 1 << 22  # messages of a run above which collectives = "auto" couples the flows of a collective


def couples(settings: pdes.Settings, num_messages: float) -> bool:
    """Return whether the collectives of a run with about this number of messages are coupled flows."""
    way = settings.fidelity.collectives
    has_flows = settings.fidelity.hooks.settle is not None
    return has_flows and (way == "coupled" or (way == "auto" and num_messages > COUPLED_ABOVE_MESSAGES))


def coupled_collectives(
    program: Program, costs: CollectiveCosts, collective_settings: CollectiveSettings
) -> CoupledCollectives:
    """Return the kinds of collectives of a program, with their times alone on the fabric of `costs`, without faults."""
    group, schedule, size_bytes, npu, row = _kinds(program)
    used, group_index = np.unique(group, return_inverse=True)
    members = np.split(program.group_member, program.group_ptr[1:-1])
    position = costs.standing.numbers([members[each] for each in used.tolist()])
    places = np.stack([position[group_index.reshape(-1)], schedule, size_bytes], axis=1)
    _, first, place = np.unique(places, axis=0, return_index=True, return_inverse=True)
    examples = CollectiveKeys(*(column[first] for column in (group, schedule, size_bytes, npu, row)))
    node = program.trace_ptr[program.trace_of_npu[examples.npu]] + examples.row
    times = costs.of_collectives(program, collective_settings, examples, program.node_collective[node])
    ptr = np.searchsorted(group, np.arange(len(program.group_ptr)))
    return CoupledCollectives(ptr, schedule, size_bytes, times.time_ps[place.reshape(-1)])


def _kinds(program: Program) -> tuple[np.ndarray, ...]:
    """Return group, schedule, bytes, an NPU and its trace row of each kind of collective: int64[K] each, by group."""
    node = np.flatnonzero((program.node_kind == COLLECTIVE) & (program.node_schedule >= 0))
    trace = np.searchsorted(program.trace_ptr, node, side="right") - 1
    sizes, size = np.unique(program.node_bytes[node], return_inverse=True)
    key = (trace << 20 | program.node_group[node]) * len(program.schedules.members) + program.node_schedule[node]
    _, first = np.unique(key * len(sizes) + size.reshape(-1), return_index=True)  # once per trace
    node, trace = node[first], trace[first]
    users = np.argsort(program.trace_of_npu, kind="stable")
    begin = np.searchsorted(program.trace_of_npu[users], np.arange(len(program.trace_ptr)))
    counts = np.diff(begin)[trace]
    npu = users[ranges(begin[trace], counts)]
    node, row = np.repeat(node, counts), np.repeat(node - program.trace_ptr[trace], counts)
    group = program.slot_group[program.slot_ptr[npu] + program.node_group[node]].astype(np.int64)
    columns = group, program.node_schedule[node].astype(np.int64), program.node_bytes[node]
    _, first = np.unique(np.stack(columns, axis=1), axis=0, return_index=True)
    return *(column[first] for column in columns), npu[first], row[first]
