"""Kinds of traffic that are flows in a run of packets: [network] flows names groups, or point-to-point messages."""

from dataclasses import replace

import numpy as np

from nadi import pdes
from nadi.errors import ConfigError
from nadi.inputs.arrays import Mask
from nadi.workload import Program
from nadi.workload.node_kinds import NOOP, SEND

POINT_TO_POINT, ALL_NPUS = "p2p", "all"
# groups of plans (workload.generators.training.stages.families), of which a plan may lack some
PLAN_GROUPS = ("tp", "cp", "ep", "etp", "pp", "dp", "edp", "model", "embedding", "world")


def with_flows(settings: pdes.Settings, program: Program, names: tuple[str, ...]) -> pdes.Settings:
    """Return settings under which the messages of some groups are flows, and all others packets.

    Raises ConfigError: a name is unknown, or another setting does not support it.

    Args:
        settings: The engine's settings of the run (`pdes.Settings`).
        program: Work of all NPUs (`Program`).
        names: Names of groups in the traces, ALL_NPUS for groups without a name, and POINT_TO_POINT; without effect for
            models of the network without packets.
    """
    if not names or not settings.fidelity.model.has_packets:
        return settings
    # a group without a name is that of all NPUs
    groups = [name or ALL_NPUS for name in program.group_names]
    known = dict.fromkeys([POINT_TO_POINT, ALL_NPUS, *PLAN_GROUPS, *groups])
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ConfigError(f'[network] flows: found "{unknown}"; expected some of {", ".join(known)}')
    if settings.beyond_mixed():
        raise ConfigError(
            f"[network] flows: found {', '.join(names)} with {settings.beyond_mixed()}; expected one or the other"
        )
    return replace(settings, flow_groups=np.array([name in names for name in [*groups, POINT_TO_POINT]]))


def of_packets(program: Program, flow_groups: Mask) -> Program:
    """Return a program without the messages that are flows; flow_groups as in pdes.Settings."""
    # each slot of a trace, with a group of one of its NPUs
    slots = np.diff(program.slot_ptr)
    npu = np.repeat(np.arange(program.npus), slots)
    entry = program.trace_slot_ptr[program.trace_of_npu[npu]] + np.arange(len(npu)) - program.slot_ptr[npu]
    is_flow = np.zeros(int(program.trace_slot_ptr[-1]) + 1, bool)
    is_flow[entry] = flow_groups[program.slot_group]
    trace = np.repeat(np.arange(len(program.trace_ptr) - 1), np.diff(program.trace_ptr))
    # the last entry is False and answers for rows that are no collectives (-1)
    own = is_flow[np.where(program.node_schedule >= 0, program.trace_slot_ptr[trace] + program.node_group, -1)]
    return program._replace(
        node_schedule=np.where(own, -1, program.node_schedule).astype(np.int32),
        node_kind=np.where((program.node_kind == SEND) & flow_groups[-1], NOOP, program.node_kind).astype(np.int8),
    )
