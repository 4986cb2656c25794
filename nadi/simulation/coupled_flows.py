"""Collectives as coupled flows (pdes/messages/flows/coupled.py): which ones of a run, and their times alone."""

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.inputs.arrays import Int64
from nadi.pdes import CoupledCollectives
from nadi.simulation.closed_forms.advancing.folded_program import CollectiveKeys, ranges
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.wiring.resource_checks import Estimate, estimate
from nadi.topologies import Graph
from nadi.workload import CollectiveSettings, Program
from nadi.workload.node_kinds import COLLECTIVE

# messages of a run up to which collectives in stages of single messages are not coupled: 10 s at 10 us per message
MAX_STAGED_MESSAGES = 1 << 20


def coupled_schedules(program: Program) -> NDArray[np.bool_]:
    """Return bool[S], the schedules whose collectives are coupled flows where a run has any.

    In stages of single messages (PAT, Bruck, recursive doubling), no member waits for the slowest one of a stage, as
    the stages of a coupled flow do. So these collectives send message by message, unless they have more messages than
    MAX_STAGED_MESSAGES in the whole run. They are those in which a lane sends once at most, and all lanes of a member
    but the first wait for others before.

    Args:
        program: Work of all NPUs (`Program`).
    """
    s = program.schedules
    # sends of each lane, as differences of a running total
    sends = np.diff(np.append(0, np.cumsum(s.send_peer >= 0))[s.lane_ptr])
    # lanes that send and whose first step waits for no other lane
    unawaited = (sends > 0) & (np.append(s.dep_lane, -1)[s.lane_ptr[:-1]] < 0)
    sent, again, begins = (_by_schedule(program, lanes) for lanes in (sends, sends > 1, unawaited))
    staged = (again == 0) & (begins <= s.members) & (sent > s.members)
    node = np.flatnonzero((program.node_kind == COLLECTIVE) & (program.node_schedule >= 0))
    users = np.bincount(program.trace_of_npu[program.trace_of_npu >= 0], minlength=len(program.trace_ptr) - 1)
    started = users[np.searchsorted(program.trace_ptr, node, side="right") - 1]
    members = np.bincount(program.node_schedule[node], started, len(staged))
    return ~staged | bool((members * sent / s.members)[staged].sum() > MAX_STAGED_MESSAGES)


def _by_schedule(program: Program, lanes: NDArray[np.generic]) -> Int64:
    """Return int64[S], the sum over the lanes of all members of each schedule; lanes: a number for each lane."""
    s = program.schedules
    of_plan = np.diff(np.append(0, np.cumsum(lanes))[s.plan_ptr])
    of_plans = np.diff(np.append(0, np.cumsum(of_plan[s.plan_of]))[s.plan_of_ptr])
    # a relative schedule has one plan, which all its members run
    return of_plans * np.where(s.relative, s.members, 1)


def of_coupled(graph: Graph, program: Program, settings: pdes.Settings, all_messages: Estimate) -> Estimate:
    """Return the work of a run with coupled flows: of its other messages, and the bytes of all messages.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: The engine's settings of the run (`pdes.Settings`).
        all_messages: Work of the run without coupled flows.
    """
    is_coupled = np.append(coupled_schedules(program), True)  # the last one for nodes without a schedule, -1
    rest = program._replace(node_schedule=np.where(is_coupled[program.node_schedule], -1, program.node_schedule))
    return estimate(graph, rest, settings)._replace(wire_bytes=all_messages.wire_bytes)


def coupled_collectives(
    program: Program, costs: CollectiveCosts, collective_settings: CollectiveSettings
) -> CoupledCollectives:
    """Return the kinds of collectives of a program, with their times alone on the fabric of `costs`, without faults.

    Args:
        program: Work of all NPUs (`Program`).
        costs: Times of collectives on the fabric.
        collective_settings: Algorithms of collectives that the user has chosen.
    """
    is_coupled = coupled_schedules(program)
    group, schedule, size_bytes, npu, row = _kinds(program, is_coupled)
    used, group_index = np.unique(group, return_inverse=True)
    members = np.split(program.group_member, program.group_ptr[1:-1])
    # groups with equal positions take equal times
    position = costs.standing.numbers([members[each] for each in used.tolist()])
    places = np.stack([position[group_index.reshape(-1)], schedule, size_bytes], axis=1)
    # one closed form for all collectives with equal position, schedule and size
    _, first, place = np.unique(places, axis=0, return_index=True, return_inverse=True)
    examples = CollectiveKeys(*(column[first] for column in (group, schedule, size_bytes, npu, row)))
    node = program.trace_ptr[program.trace_of_npu[examples.npu]] + examples.row
    times = costs.of_collectives(program, collective_settings, examples, program.node_collective[node])
    ptr = np.searchsorted(group, np.arange(len(program.group_ptr)))
    return CoupledCollectives(ptr, schedule, size_bytes, times.time_ps[place.reshape(-1)], is_coupled)


def _kinds(program: Program, is_coupled: NDArray[np.bool_]) -> tuple[np.ndarray, ...]:
    """Return group, schedule, bytes, an NPU and its trace row of each coupled kind: int64[K] each, by group."""
    node = np.flatnonzero((program.node_kind == COLLECTIVE) & (program.node_schedule >= 0))
    node = node[is_coupled[program.node_schedule[node]]]
    trace = np.searchsorted(program.trace_ptr, node, side="right") - 1
    sizes, size = np.unique(program.node_bytes[node], return_inverse=True)
    key = (trace << 20 | program.node_group[node]) * len(program.schedules.members) + program.node_schedule[node]
    _, first = np.unique(key * len(sizes) + size.reshape(-1), return_index=True)  # once per trace
    node, trace = node[first], trace[first]
    users = np.argsort(program.trace_of_npu, kind="stable")
    begin = np.searchsorted(program.trace_of_npu[users], np.arange(len(program.trace_ptr)))
    # every NPU that runs the trace of a node has a node of its own; NPUs without a trace come before begin[0]
    counts = np.diff(begin)[trace]
    npu = users[ranges(begin[trace], counts)]
    node, row = np.repeat(node, counts), np.repeat(node - program.trace_ptr[trace], counts)
    group = program.slot_group[program.slot_ptr[npu] + program.node_group[node]].astype(np.int64)
    columns = group, program.node_schedule[node].astype(np.int64), program.node_bytes[node]
    _, first = np.unique(np.stack(columns, axis=1), axis=0, return_index=True)
    return *(column[first] for column in columns), npu[first], row[first]
