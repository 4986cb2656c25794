"""Speed of the flow model: `nadi bench flow`."""

from typing import Any

import numpy as np

import pdes
import topologies
import workload
from pdes import fidelity

SPEC = "leaf-spine:npus=128,hosts_per_leaf=16,spines=8,rate=100Gbps,delay=1us"  # half as much uplink as hosts have
PARTNERS = 8  # receivers of each NPU, drawn at random
SIZE_BYTES = 6 * 10**6  # mean size of a message; sizes are uniform from a sixth of it to eleven sixths


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
    fluid = fidelity.fidelity(fidelity.FLUID)
    settings = pdes.Settings(fidelity=fluid, seed=seed, record_nodes=False, record_flows=False)
    rows = []
    for _ in range(runs):
        simulation = pdes.build_world(graph, program, settings)
        results = pdes.run(simulation)
        state = simulation.lps[0].world.flows.state
        rows.append((results, int(state.stamp), int(state.solved), float(state.solve_ns) * 1e-9))
    if len({results.digest for results, *_ in rows}) > 1:
        raise pdes.RunError(f"bench flow: {runs} runs with the same input gave different digests")
    results, solutions, solved, solver_s = min(rows, key=lambda row: row[0].wall_s)
    flow_events = 2 * results.counters["flows"]
    return {
        "bench": fidelity.FLUID,
        "topology": graph.name,
        "npus": graph.npus,
        "bytes": size_bytes,
        "seed": seed,
        "runs": runs,
        "flows": results.counters["flows"],
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
