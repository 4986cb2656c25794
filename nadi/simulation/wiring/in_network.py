"""Runs in which switches reduce: the engine gets a fabric and a program with aggregators, the user results without."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import pdes
from partition import TrafficWeights
from topologies import Graph
from topologies.aggregators import folded, with_aggregators, with_aggregators_of
from workload import Program
from workload.program.aggregation import extended, switches_of


def with_reducers(
    graph: Graph, program: Program, owner: NDArray[np.int32] | None = None, *, acting: bool = True
) -> tuple[Graph, Program, NDArray[np.int32] | None]:
    """What the engine runs: as given where no switch reduces, else with an aggregator in each that does.

    Args:
        graph: the fabric.
        program: of the user.
        owner: int32[nodes], the LP of each node; an aggregator's is that of its switch. None = one LP.
        acting: False = another rank's program tells what aggregators send.

    Raises:
        pdes.RunError: switches reduce for a program of fewer NPUs than the fabric has.
    """
    switches = switches_of(program)
    if not switches:
        return graph, program, owner
    if program.npus != graph.npus:
        raise pdes.RunError(f"the program has {program.npus} NPUs, the fabric {graph.npus}; aggregators come after all")
    owners = None if owner is None else with_aggregators_of(owner, graph, switches)
    return with_aggregators(graph, switches), extended(program, acting=acting), owners


def without_reducers(results: pdes.Results, graph: Graph) -> pdes.Results:
    """Results as of a fabric and NPUs without aggregators: their links, trace rows and messages are left out.

    Args:
        results: of a run.
        graph: the user's fabric.
    """
    if len(results.npu_node_ptr) == graph.npus + 1:
        return results
    rows = int(results.npu_node_ptr[graph.npus])
    flows = (results.flows["src"] < graph.npus) & (results.flows["dst"] < graph.npus)
    return replace(
        results,
        npu_node_ptr=results.npu_node_ptr[: graph.npus + 1],
        node_start_ps=results.node_start_ps[:rows],
        node_finish_ps=results.node_finish_ps[:rows],
        flows={name: column[flows] for name, column in results.flows.items()},
        links={name: column[: graph.links] for name, column in results.links.items()},
        queues=_of_links(results.queues, graph.links),
        pauses=_of_links(results.pauses, graph.links),
    )


def folded_weights(weights: TrafficWeights, graph: Graph, program: Program) -> TrafficWeights:
    """Weights of `with_reducers`' fabric as those of the user's: what aggregators do counts for their switches."""
    switches = switches_of(program)
    return TrafficWeights(folded(weights.node, graph, switches), weights.link[: graph.links])


def _of_links(table: dict[str, NDArray], links: int) -> dict[str, NDArray]:
    """Rows of a table that are of the first so many links."""
    if not table:
        return table
    keep = table["link"] < links
    return {name: column[keep] for name, column in table.items()}
