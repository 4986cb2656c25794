"""Speed of the flow model: `nadi bench flow` and `nadi bench coupled`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import pdes
import topologies
import workload
from et import CollectiveCommType, coll_node, metadata, table_of
from nadi.errors import ConfigError
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.closed_forms.coupled import coupled_collectives
from pdes import fidelity
from topologies import Graph, clusters
from workload import CollectiveSettings, Program

SPEC = "leaf-spine:npus=128,hosts_per_leaf=16,spines=8,rate=100Gbps,delay=1us"  # half as much uplink as hosts have
PARTNERS = 8  # receivers of each NPU, drawn at random
SIZE_BYTES = 6 * 10**6  # mean size of a message; sizes are uniform from a sixth of it to eleven sixths
CLUSTER, CLUSTER_NPUS = "llama3-24k", 16_384  # fabric of the bench of coupled flows
EXPERTS, ALL_TO_ALLS, RING_BYTES = 64, 4, 1 << 30  # members of an all-to-all; all-to-alls in a row; all-reduce
ALL_TO_ALL_BYTES = 64 << 20


def run_flow_bench(*, spec: str = "", size_bytes: int = 0, seed: int = 1, runs: int = 5) -> dict[str, Any]:
    """Run flows between random pairs of NPUs that all begin at once, and return figures of the fastest run for JSON.

    `spec` and `size_bytes` (the mean) replace SPEC and SIZE_BYTES unless "" and 0; `seed` is that of pairs, sizes and
    ECMP. A flow event is a begin or an end of a message; `solver_share` is the share of the run's time in the solver,
    and `flows_per_solution` the mean number of flows whose rates it sets. A failed run, or two digests, is a RunError.
    """
    graph = topologies.build(spec or SPEC)
    size_bytes = size_bytes or SIZE_BYTES
    random = np.random.default_rng(seed)
    matrix = np.zeros((graph.npus, graph.npus), np.int64)
    for npu in range(graph.npus):
        others = np.delete(np.arange(graph.npus), npu)
        receivers = random.choice(others, min(PARTNERS, len(others)), replace=False)
        matrix[npu, receivers] = random.integers(size_bytes // 6, 11 * size_bytes // 6, len(receivers), endpoint=True)
    program = workload.uneven_program(matrix, "direct")
    return _measured(
        fidelity.FLUID, graph, program, size_bytes, _settings(seed), runs, lambda found: found.counters["flows"]
    )


def run_coupled_bench(*, spec: str = "", size_bytes: int = 0, seed: int = 1, runs: int = 5) -> dict[str, Any]:
    """Run all-to-alls of groups of 64 beside ring all-reduces of all NPUs with the same rank, as coupled flows.

    The figures are those of `run_flow_bench`; a flow event is a begin or an end of a collective. `spec` replaces the
    16,384 GPUs of the cluster llama3-24k, and `size_bytes` the size of an all-to-all. ConfigError: the fabric's NPUs do
    not make groups of 64.
    """
    graph = topologies.build(spec or clusters.find(CLUSTER).topology(CLUSTER_NPUS))
    size_bytes = size_bytes or ALL_TO_ALL_BYTES
    if graph.npus % EXPERTS:
        raise ConfigError(f"bench coupled: {graph.name} has {graph.npus} NPUs; expected a multiple of {EXPERTS}")
    npus = np.arange(graph.npus).reshape(-1, EXPERTS)
    families = {name: tuple(map(tuple, lines.tolist())) for name, lines in (("experts", npus), ("replicas", npus.T))}
    nodes = [
        coll_node(number, "", CollectiveCommType.ALL_TO_ALL, size_bytes, pg_name="experts", deps=range(number)[-1:])
        for number in range(ALL_TO_ALLS)
    ]
    nodes.append(coll_node(ALL_TO_ALLS, "", CollectiveCommType.ALL_REDUCE, RING_BYTES, pg_name="replicas"))
    how = CollectiveSettings({"all-to-all": "direct", "all-reduce": "ring"})
    trace_of_npu = np.zeros(graph.npus, np.int32)
    traces = [table_of(metadata(), nodes)]
    program = workload.build_program(traces, trace_of_npu, graph.npus, settings=how, fabric=graph, families=families)
    settings = _settings(seed)
    settings = replace(settings, coupled=coupled_collectives(program, CollectiveCosts(graph, settings), how))
    collectives = ALL_TO_ALLS * len(npus) + len(npus.T)
    return _measured("coupled", graph, program, size_bytes, settings, runs, lambda _: collectives)


def _settings(seed: int) -> pdes.Settings:
    """Return settings of flows without records."""
    fluid = fidelity.fidelity(fidelity.FLUID)
    return pdes.Settings(fidelity=fluid, seed=seed, record_nodes=False, record_flows=False)


def _measured(
    bench: str,
    graph: Graph,
    program: Program,
    size_bytes: int,
    settings: pdes.Settings,
    runs: int,
    flows_of: Callable[[pdes.Results], int],
) -> dict[str, Any]:
    """Return figures of the fastest run; flows_of: number of flows of the results."""
    rows = []
    for _ in range(runs):
        simulation = pdes.build_world(graph, program, settings)
        results = pdes.run(simulation)
        state = simulation.lps[0].world.flows.state
        rows.append((results, int(state.stamp), int(state.solved), float(state.solve_ns) * 1e-9))
    if len({results.digest for results, *_ in rows}) > 1:
        raise pdes.RunError(f"bench {bench}: {runs} runs with the same input gave different digests")
    results, solutions, solved, solver_s = min(rows, key=lambda row: row[0].wall_s)
    flow_events = 2 * flows_of(results)
    return {
        "bench": bench,
        "topology": graph.name,
        "npus": graph.npus,
        "bytes": size_bytes,
        "seed": settings.seed,
        "runs": runs,
        "flows": flow_events // 2,
        "messages": results.counters["flows"],
        "flow_events": flow_events,
        "flow_events_per_s": flow_events / results.wall_s,
        "solutions": solutions,
        "flows_per_solution": solved / max(solutions, 1),
        "solver_share": solver_s / results.wall_s,
        "wall_s": results.wall_s,
        "finish_time_ps": results.finish_time_ps,
        "digest": results.digest,
        "peak_rss_bytes": pdes.peak_rss_bytes(),
    }
