"""Mixed fidelity: collectives of one NVLink domain take their closed forms, everything else crosses the network.

A stand-in replaces the schedule of such a collective: every member reports to member 0 with a message of a byte, and
member 0 answers each when it has all reports and a delay has passed. The delay makes the stand-in take the closed form
if all members begin at once; otherwise the members end that long after the last one begins. Collectives that share
NVLinks do not slow each other down, and NVLinks carry only the messages of stand-ins.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64
from nadi.pdes import LONGEST_RUN_PS
from nadi.pdes.wire import is_nvlink
from nadi.simulation.closed_forms.advancing.folded_program import CollectiveKeys
from nadi.simulation.closed_forms.advancing.likeness import slots_of
from nadi.simulation.closed_forms.costs import PLANNER_EFFORT, CollectiveCosts
from nadi.simulation.closed_forms.idle_fabric import idle_fabric
from nadi.simulation.wiring.fault_schedule import with_slow_links
from nadi.topologies import Graph, route
from nadi.workload import CollectiveSettings, Program
from nadi.workload.collectives.plans import MAX_CONNECTIONS, Lane, Plans, each_its_own
from nadi.workload.collectives.schedules import appended, pack
from nadi.workload.node_kinds import MEMORY_LANE

_ONE_BYTE = (1, (1 << 31) - 1)  # Attributes.wire of messages of one byte, for buffers of up to 2 GiB
_TRIAL_DELAY_PS = 10**6  # by then, the acknowledgements of reports no longer wait for the ports that answers need
_CONNECTION = MAX_CONNECTIONS - 1  # connection of the reports, at line rate; algorithms number theirs from 0 on


class _Slots(NamedTuple):
    """E slots of distinct traces, each with an NPU and a group as an example."""

    position: Int64  # int64[E], position of the slot's groups if each lies in one NVLink domain, else -1
    group: Int64  # int64[E]
    npu: Int64  # int64[E]


def with_nvlink_closed_forms(
    graph: Graph, program: Program, settings: pdes.Settings, collectives: CollectiveSettings
) -> Program:
    """Return the program with stand-ins for the collectives of groups in one NVLink domain.

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
    stand_ins: list[Plans] = []
    schedule_of_key = []
    own_ps: dict[int, float] = {}  # time of a stand-in without launch and delay, by position
    for position, schedule, members, duration_ps in zip(
        keys[:, 0].tolist(), keys[:, 1].tolist(), _members(program, group), time_ps.tolist(), strict=True
    ):
        if position not in own_ps:
            own_ps[position] = _own_ps(graph, settings, members)
        # the stand-in takes some time itself, which its delay must not count again
        left_ps = max(0, duration_ps - round(own_ps[position]))
        launch_ps = min(left_ps, int(program.schedules.launch_ps[schedule]))
        kind = len(members), launch_ps, left_ps - launch_ps
        if kind not in number:
            number[kind] = len(program.schedules.members) + len(stand_ins)
            stand_ins.append(_stand_in(*kind))
        schedule_of_key.append(number[kind])
    node_schedule = program.node_schedule.copy()
    node_schedule[node] = np.array(schedule_of_key, np.int32)[key_of_node.reshape(-1)]
    return program._replace(
        node_schedule=node_schedule,
        schedules=appended(program.schedules, pack(stand_ins)),
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
    position_of_group[used[of_domains]] = costs.standing.numbers([groups[index] for index in of_domains])
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
    """Return the time in ps of a stand-in without launch and delay for a group alone on the fabric."""
    pairs = [(0, member) for member in range(1, len(members))]
    fabric = idle_fabric(graph, settings, members.tolist(), pairs)
    return fabric.time_ps(pack([_stand_in(len(members), 0, _TRIAL_DELAY_PS)]), 0, 1) - _TRIAL_DELAY_PS


def _stand_in(num_members: int, launch_ps: int, delay_ps: int) -> Plans:
    """Return the plans of a stand-in: reports to member 0, and its answers `delay_ps` after the last report."""
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
