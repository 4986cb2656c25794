"""Mixed fidelity: collectives of one NVLink domain at their closed forms, and collectives as coupled flows.

A proxy replaces the schedule of a collective of one NVLink domain, while everything else crosses the network: every
member reports to member 0 with a message of a byte, and member 0 answers each when it has all reports and a delay has
passed. The delay makes the proxy take the closed form if all members begin at once; otherwise the members end that long
after the last one begins. Collectives that share NVLinks do not slow each other down, and NVLinks carry only the
messages of proxies.

Coupled flows (pdes/messages/coupled.py) replace the messages of a collective; this module decides which ones of a
run, and computes their times alone.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64
from nadi.pdes import LONGEST_RUN_PS, CoupledCollectives
from nadi.pdes.wire import is_nvlink
from nadi.simulation.assembly.fault_schedule import with_slow_links
from nadi.simulation.assembly.resource_checks import Estimate, estimate
from nadi.simulation.closed_forms.advancing.equivalence import CollectiveKeys, ranges, slots_of
from nadi.simulation.closed_forms.costs import PLANNER_EFFORT, CollectiveCosts
from nadi.simulation.closed_forms.isolated import idle_fabric
from nadi.topologies import Graph, route
from nadi.workload import CollectiveSettings, Program
from nadi.workload.collectives.plans import MAX_CONNECTIONS, Lane, Plans, each_its_own
from nadi.workload.collectives.schedules import appended, pack
from nadi.workload.node_kinds import COLLECTIVE, MEMORY_LANE

_ONE_BYTE = (1, (1 << 31) - 1)  # Attributes.wire of messages of one byte, for buffers of up to 2 GiB
_TRIAL_DELAY_PS = 10**6  # by then, the acknowledgements of reports no longer wait for the ports that answers need
_CONNECTION = MAX_CONNECTIONS - 1  # connection of the reports, at line rate; algorithms number theirs from 0 on
# messages of a run up to which collectives in stages of single messages are not coupled: 10 s at 10 us per message
MAX_STAGED_MESSAGES = 1 << 20


class _Slots(NamedTuple):
    """E slots of distinct traces, each with an NPU and a group as an example."""

    position: Int64  # int64[E], position of the slot's groups if each lies in one NVLink domain, else -1
    group: Int64  # int64[E]
    npu: Int64  # int64[E]


def with_nvlink_closed_forms(
    graph: Graph, program: Program, settings: pdes.Settings, collectives: CollectiveSettings
) -> Program:
    """Return the program with proxies for the collectives of groups in one NVLink domain.

    ConfigError: NVLinks have faults that closed forms cannot have, or one trace has groups with different NVLinks.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: The engine's settings of the run (`pdes.Settings`).
        collectives: Algorithms of collectives that the user has chosen.
    """
    costs = CollectiveCosts(_with_slow_nvlinks(graph, settings.faults), settings, PLANNER_EFFORT, planned_on=graph)
    inside = _inside_domains(graph)
    slots = _slots(graph, inside, program, costs)
    entry = np.repeat(np.arange(len(slots.position)), np.diff(program.coll_ptr))
    first_node = np.repeat(program.trace_ptr[:-1], np.diff(program.trace_slot_ptr))
    node = program.coll_node + first_node[entry]
    replaced = np.flatnonzero((slots.position[entry] >= 0) & (program.node_schedule[node] >= 0))
    if not len(replaced):
        return program
    entry, node = entry[replaced], node[replaced]
    columns = [
        *(slots.position[entry], program.node_schedule[node], program.node_bytes[node]),
        *(program.node_collective[node], program.node_lane[node] == MEMORY_LANE),
    ]
    # one closed form for all collectives of a kind, size and position
    keys, example, key_of_node = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True)
    npu = slots.npu[entry[example]]
    row = node[example] - program.trace_ptr[program.trace_of_npu[npu]]
    group = slots.group[entry[example]]
    wanted = CollectiveKeys(group, keys[:, 1], keys[:, 2], npu, row)
    time_ps = costs.of_collectives(program, collectives, wanted, keys[:, 3].astype(np.int8)).time_ps
    number: dict[tuple[int, int, int], int] = {}
    proxies: list[Plans] = []
    schedule_of_key = []
    own_ps: dict[int, float] = {}  # time of a proxy without launch and delay, by position
    for position, schedule, members, duration_ps in zip(
        keys[:, 0].tolist(), keys[:, 1].tolist(), _members(program, group), time_ps.tolist(), strict=True
    ):
        if position not in own_ps:
            own_ps[position] = _own_ps(graph, settings, members)
        # the proxy takes some time itself, which its delay must not count again
        left_ps = max(0, duration_ps - round(own_ps[position]))
        launch_ps = min(left_ps, int(program.schedules.launch_ps[schedule]))
        kind = len(members), launch_ps, left_ps - launch_ps
        if kind not in number:
            number[kind] = len(program.schedules.members) + len(proxies)
            proxies.append(_proxy(*kind))
        schedule_of_key.append(number[kind])
    node_schedule = program.node_schedule.copy()
    node_schedule[node] = np.array(schedule_of_key, np.int32)[key_of_node.reshape(-1)]
    return program._replace(
        node_schedule=node_schedule,
        schedules=appended(program.schedules, pack(proxies)),
        in_network=tuple(use for use in program.in_network if not _is_domain(graph, inside, use.members)),
    )


def _with_slow_nvlinks(graph: Graph, faults: pdes.Faults) -> Graph:
    """Return the fabric with the NVLinks that are slow for the whole run; ConfigError if NVLinks have other faults."""
    inside = _inside_domains(graph)
    own = tuple(fault for fault in faults.links if np.any(inside[list(fault.links)]))
    for fault in own:
        if fault.at_ps > 0 or fault.until_ps < LONGEST_RUN_PS or fault.down or fault.error_rate:
            node = graph.node_name(int(graph.link_src[fault.links[0]]))
            raise ConfigError(
                f"[[faults]]: {node} has NVLinks that fail, lose packets or change during the run, "
                'which closed forms do not support; expected [network] nvlink = "messages"'
            )
    return with_slow_links(graph, replace(faults, links=own))


def _slots(graph: Graph, inside: NDArray[np.bool_], program: Program, costs: CollectiveCosts) -> _Slots:
    """Return the slots of the program's traces; ConfigError if a trace's groups differ in position, some in a domain.

    A trace has one schedule per collective, so that all its NPUs need one time.
    """
    owner, slot = slots_of(program)
    used = np.unique(program.slot_group)
    groups = _members(program, used)
    of_domains = [index for index, members in enumerate(groups) if _is_domain(graph, inside, members)]
    position_of_group = np.full(len(program.group_ptr) - 1, -1)
    position_of_group[used[of_domains]] = costs.positions.numbers([groups[index] for index in of_domains])
    entry = program.trace_slot_ptr[program.trace_of_npu[owner]] + slot
    position = position_of_group[program.slot_group]
    example = np.zeros(int(program.trace_slot_ptr[-1]), np.int64)
    # some slot of each entry of a trace; all must have its position
    example[entry] = np.arange(len(entry))
    of_entry = position[example] if len(entry) else np.full(len(example), -1)
    unlike = np.flatnonzero(of_entry[entry] != position)
    if len(unlike):
        npus = owner[example[entry[unlike[0]]]], owner[unlike[0]]
        raise ConfigError(
            f'[network] nvlink: found "closed-form", but NPUs {min(npus)} and {max(npus)} have one trace and groups '
            'with different NVLinks; expected "messages"'
        )
    return _Slots(of_entry, program.slot_group[example].astype(np.int64), owner[example])


def _members(program: Program, groups: NDArray[np.integer]) -> list[Int64]:
    """Return the NPUs of each group, in member order."""
    ends = zip(program.group_ptr[groups].tolist(), program.group_ptr[groups + 1].tolist(), strict=True)
    return [program.group_member[first:end].astype(np.int64) for first, end in ends]


def _inside_domains(graph: Graph) -> NDArray[np.bool_]:
    """Return bool[links]: links of NVSwitches, and direct links between NPUs."""
    return is_nvlink(graph) | ((graph.link_src < graph.npus) & (graph.link_dst < graph.npus))


def _is_domain(graph: Graph, inside: NDArray[np.bool_], members: NDArray[np.integer]) -> bool:
    """Return whether the members are of one host, with only links inside domains between neighbours."""
    if len(members) < 2 or np.any(graph.host[members] != graph.host[members[0]]):
        return False
    links = [link for src, dst in zip(members, np.roll(members, -1), strict=True) for link in route(graph, src, dst)]
    return bool(inside[links].all())


def _own_ps(graph: Graph, settings: pdes.Settings, members: Int64) -> float:
    """Return the time in ps of a proxy without launch and delay for a group alone on the fabric."""
    pairs = [(0, member) for member in range(1, len(members))]
    fabric = idle_fabric(graph, settings, members.tolist(), pairs)
    return fabric.time_ps(pack([_proxy(len(members), 0, _TRIAL_DELAY_PS)]), 0, 1) - _TRIAL_DELAY_PS


def _proxy(num_members: int, launch_ps: int, delay_ps: int) -> Plans:
    """Return the plans of a proxy: reports to member 0, and its answers `delay_ps` after the last report."""
    reports = Lane(wire=_ONE_BYTE, connection=_CONNECTION)
    for member in range(1, num_members):
        reports.step(receive_from=member)
    # a lane for each answer, as steps of one lane would wait for each other
    answers = [Lane(wire=_ONE_BYTE, connection=_CONNECTION, latency_ps=delay_ps) for _ in range(1, num_members)]
    for member, answer in enumerate(answers, start=1):
        # lane 0 has num_members - 1 steps, the last of which receives the last report
        answer.step(send_to=member, after=(0, num_members - 2))
    report = Lane(wire=_ONE_BYTE, connection=_CONNECTION).step(send_to=0, receive_from=0)
    return each_its_own(1, [[reports, *answers], *([report] for _ in answers)], launch_ps=launch_ps)


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
    position = costs.positions.numbers([members[each] for each in used.tolist()])
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
