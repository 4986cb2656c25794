"""From a fabric and a program of traces to those that the engine runs, and from its results back to the traces.

The engine gets an aggregator as a further NPU behind each switch that reduces, and a row for each part of a message
that is divided over NICs. Results name switches and whole rows again.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.errors import ConfigError
from nadi.inputs.arrays import Mask
from nadi.partition import TrafficWeights
from nadi.topologies import Graph
from nadi.topologies.endpoints import added_to_switches, with_aggregators, with_aggregators_of
from nadi.workload import Program
from nadi.workload.node_kinds import NOOP, SEND
from nadi.workload.program import divided, extended, joined, switches_of

POINT_TO_POINT, ALL_NPUS = "p2p", "all"
# groups of plans (workload.generators.training.stages.families), of which a plan may lack some
PLAN_GROUPS = ("tp", "cp", "ep", "etp", "pp", "dp", "edp", "model", "embedding", "world")


def engine_inputs(
    graph: Graph, program: Program, owner: NDArray[np.int32] | None = None, *, counts_reducers: bool = True
) -> tuple[Graph, Program, NDArray[np.int32] | None]:
    """Return the inputs of the engine, with aggregators and divided sends; unchanged if there are none.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        owner: int32[nodes], LP of each node; None = one LP.
        counts_reducers: Whether the aggregators' traces are included, which only one of several ranks should do.
    """
    switches = switches_of(program)
    if not switches:
        return graph, divided(program), owner
    if program.npus != graph.npus:
        raise pdes.RunError(f"the program has {program.npus} NPUs, the fabric {graph.npus}; aggregators come after all")
    owners = None if owner is None else with_aggregators_of(owner, graph, switches)
    return with_aggregators(graph, switches), divided(extended(program, is_acting=counts_reducers)), owners


def results_of_traces(results: pdes.Results, graph: Graph, program: Program) -> pdes.Results:
    """Return results by the rows of traces, of which a divided send is one, without aggregators.

    Messages of aggregators are those of their switches; each part of a divided send stays a message.

    Args:
        results: Results of the engine.
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
    """
    results = _without_aggregators(results, graph, program)
    if not program.has_divided_sends:
        return results
    ptr, start_ps, finish_ps = joined(program, results.npu_node_ptr, results.node_start_ps, results.node_finish_ps)
    return replace(results, npu_node_ptr=ptr, node_start_ps=start_ps, node_finish_ps=finish_ps)


def _without_aggregators(results: pdes.Results, graph: Graph, program: Program) -> pdes.Results:
    """Return results without the links and trace rows of aggregators."""
    if len(results.npu_node_ptr) == graph.npus + 1:
        return results
    # aggregators come behind all NPUs, and their links behind all others: cutting the tails removes them
    rows = int(results.npu_node_ptr[graph.npus])
    node = np.concatenate([np.arange(graph.npus), switches_of(program), [-1]])  # of each endpoint; -1 = none
    return replace(
        results,
        npu_node_ptr=results.npu_node_ptr[: graph.npus + 1],
        node_start_ps=results.node_start_ps[:rows],
        node_finish_ps=results.node_finish_ps[:rows],
        flows=_with_nodes(results.flows, node),
        job_bytes=results.job_bytes[: graph.links],
        links={name: column[: graph.links] for name, column in results.links.items()},
        queues=_of_links(results.queues, graph.links),
        samples=_of_links(results.samples, graph.links),
        marks=_of_links(results.marks, graph.links),
        pauses=_of_links(results.pauses, graph.links),
        limits=_with_nodes(_of_links(results.limits, graph.links), node),
    )


def weights_without_aggregators(weights: TrafficWeights, graph: Graph, program: Program) -> TrafficWeights:
    """Return the weights of a fabric from those of the same fabric with aggregators, which count for their switches.

    Args:
        weights: Work of nodes and links of the fabric with aggregators.
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
    """
    switches = switches_of(program)
    return TrafficWeights(added_to_switches(weights.node, graph, switches), weights.link[: graph.links])


def _with_nodes(table: dict[str, NDArray], node_of_end: NDArray[np.int64]) -> dict[str, NDArray]:
    """Return a table whose columns src and dst name nodes of the fabric; node_of_end: int64[endpoints + 1]."""
    return {name: node_of_end[column] if name in {"src", "dst"} else column for name, column in table.items()}


def _of_links(table: dict[str, NDArray], num_links: int) -> dict[str, NDArray]:
    """Return the rows of a table for the first `num_links` links."""
    if not table:
        return table
    keep = table["link"] < num_links
    return {name: column[keep] for name, column in table.items()}


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
