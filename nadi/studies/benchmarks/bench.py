"""Benchmarks: packet-hops per second on this machine, relative to the machine's speed on a plain event heap.

A benchmark builds its fabric and program, runs several times, checks that every run gives the same digest, and reports
the fastest run, because other load on a shared machine only slows runs down. `calibration_per_s` is the fastest of the
calibrations between the runs in the same process (`instruments.calibration`), so that `ratio` is comparable between
machines; `ratio_median` is the median over the runs, each relative to the two adjacent calibrations.

The benchmark of exact reuse is a training step, with collectives of NVLink domains replayed and by all of its packets.
Nearly all packets of the step belong to all-reduces of tensor parallelism inside hosts, which have one size. The model
is GPT-3 175B: the members of an all-reduce of its size end so that the next one starts with the same offsets.

`nadi bench NAME --scaling` measures the speed-up of two workers in one session. `capacity` is the rate of two
independent serial runs side by side over the rate of one; shared caches, memory and turbo clocks keep it below two. The
pair ends when its slower run ends, as a parallel run does. Each configuration runs in its own processes, several turns
after each other. Its metric is that of its fastest round over all turns, as everywhere in `nadi bench`: other load only
slows a round down, and slows two workers that synchronise in every window more than two independent runs. The metrics
of each turn are reported too.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nadi import pdes, topologies, workload
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.et import CollectiveCommType, coll_node, metadata, table_of
from nadi.inputs.units import MIB
from nadi.launching.installation import nadi_command
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.workers import SERIAL, Workers
from nadi.pdes import RunError, fidelity, parallel
from nadi.simulation.assembly.partitioning import owner_by_traffic
from nadi.simulation.closed_forms import CollectiveCosts
from nadi.simulation.mixed_fidelity import coupled_collectives
from nadi.simulation.resolving import Resolver
from nadi.simulation.run import execute, run_program
from nadi.studies.benchmarks.instruments.calibration import pairs_per_second
from nadi.topologies import Graph, clusters
from nadi.workload import CollectiveSettings, Program

SPEC = "leaf-spine:npus=128,hosts_per_leaf=16,spines=8,rate=100Gbps,delay=1us"  # half as much uplink as hosts have
PARTNERS = 8  # receivers of each NPU, drawn at random
SIZE_BYTES = 6 * 10**6  # mean size of a message; sizes are uniform from a sixth of it to eleven sixths
CLUSTER, CLUSTER_NPUS = "llama3-24k", 16_384  # fabric of the bench of coupled flows
EXPERTS, ALL_TO_ALLS, RING_BYTES = 64, 4, 1 << 30  # members of an all-to-all; all-to-alls in a row; all-reduce
ALL_TO_ALL_BYTES = 64 << 20


@dataclass(frozen=True)
class Bench:
    """A benchmark."""

    name: str  # name of the benchmark
    spec: str  # topology specification of the fabric
    size_bytes: int  # bytes that each NPU sends, or of the collective
    # function that builds the program from fabric, size in bytes and seed
    program: Callable[[Graph, int, int], Program]
    choices: Mapping[str, Any] = field(default_factory=dict)  # fields of pdes.Settings that differ from the defaults


def _permutation(graph: Graph, size_bytes: int, seed: int) -> Program:
    """Return the program of sends of `size_bytes` from every NPU to its partner in a random permutation."""
    return workload.pairs_program(workload.permutation(graph.npus, seed), size_bytes)


def _all_reduce(graph: Graph, size_bytes: int, seed: int) -> Program:  # noqa: ARG001 - no randomness
    """Return a program of one all-reduce of `size_bytes` of all NPUs in a ring."""
    return workload.collective_program("all-reduce", graph.npus, size_bytes, "ring")


def _hierarchical(graph: Graph, size_bytes: int, seed: int) -> Program:  # noqa: ARG001 - no randomness
    """Return a hierarchical all-reduce of `size_bytes`: in servers, along rails, in servers; else groups of eight."""
    group = int(np.bincount(graph.host).max())
    return workload.hierarchical_program(graph.npus, group if group > 1 else 8, size_bytes)


def _pairs(graph: Graph, size_bytes: int, seed: int) -> Program:  # noqa: ARG001 - no randomness
    """Return the program of sends from every NPU to the NPU half the fabric away: in another pod if there are pods."""
    return workload.pairs_program((np.arange(graph.npus) + graph.npus // 2) % graph.npus, size_bytes)


_ROCE = {"switch": pdes.SharedBuffer(), "congestion_control": pdes.congestion.control("dcqcn")}
"""Settings of RoCE: shared buffers, ECN, PFC and DCQCN."""

BENCHES = {
    bench.name: bench
    for bench in (
        Bench("permutation", "fat-tree:k=16,rate=100Gbps,delay=1us", 4 * MIB, _permutation),
        Bench("allreduce", "fat-tree:k=16,rate=100Gbps,delay=1us", 64 * MIB, _all_reduce),
        Bench("hierarchical", "rail-optimised:npus=16384,rate=400Gbps,delay=1us", 4 * MIB, _hierarchical),
        Bench("roce", "fat-tree:k=16,rate=100Gbps,delay=1us", 4 * MIB, _permutation, _ROCE),
        Bench("pairs", "fat-tree:npus=16384,rate=100Gbps,delay=1us", MIB, _pairs),
    )
}


def run_bench(
    name: str,
    progress: Progress | NoProgress,
    *,
    spec: str = "",
    size_bytes: int = 0,
    seed: int = 1,
    runs: int = 5,
    workers: Workers = SERIAL,
) -> dict[str, Any]:
    """Run a benchmark of BENCHES; on several ranks all call it and get the same metrics, those of the fastest run.

    `spec` and `size_bytes` replace the benchmark's topology and size unless "" and 0; `seed` is that of permutation and
    ECMP. Of several `workers`, METIS partitions the fabric by the traffic. A failed run, or two digests, is a RunError.

    The result is for JSON. `first_event_s` is the time from the start of the first run's set-up to its first event,
    compilation included; `compile_s` is the part spent compiling or loading kernels; `waiting_shares` is the share of
    all workers' time spent waiting for each other, per run.

    Args:
        name: The name of the benchmark, a key of BENCHES.
        spec: The topology; "" means that of the benchmark.
        size_bytes: The size of messages or buffers in bytes; 0 means that of the benchmark.
        seed: The number that hashed path choices depend on.
        workers: Threads, processes or ranks that simulate.
        progress: The display of the run.
        runs: The number of runs, whose fastest counts.
    """
    bench = BENCHES[name]
    bench = replace(bench, spec=spec or bench.spec, size_bytes=size_bytes or bench.size_bytes)
    start_s = time.perf_counter()
    graph = topologies.build(bench.spec)
    program = bench.program(graph, bench.size_bytes, seed)
    owner = owner_by_traffic(graph, program, workers)
    built_s = time.perf_counter() - start_s
    settings = pdes.Settings(seed=seed, record_nodes=False, record_flows=False, nvlink_framing=False, **bench.choices)
    # a calibration before the first run and after each run: pairwise() gives those next to each run
    results, calibrations = [], [pairs_per_second(runs=1)]
    for _ in range(runs):
        results.append(run_program(graph, program, settings, progress, workers, owner))
        calibrations.append(pairs_per_second(runs=1))
    if len({result.digest for result in results}) > 1:
        raise pdes.RunError(f"bench {name}: {runs} runs with the same input gave different digests")
    first = results[0]
    adjacent = [statistics.fmean(pair) for pair in pairwise(calibrations)]
    rates = [result.counters["packet_hops"] / result.wall_s for result in results]
    ratios = [rate / calibration for rate, calibration in zip(rates, adjacent, strict=True)]
    best, rate, calibration = results[rates.index(max(rates))], max(rates), max(calibrations)
    return {
        "bench": name,
        "topology": graph.name,
        "npus": graph.npus,
        "bytes": bench.size_bytes,
        "seed": seed,
        "runs": runs,
        **best.counters,
        "finish_time_ps": best.finish_time_ps,
        "digest": best.digest,
        "ranks": workers.ranks.size,
        "threads": workers.threads,
        "processes": workers.processes,
        "lps": workers.lps,
        "wall_s": best.wall_s,
        "walls_s": [result.wall_s for result in results],
        "waiting_shares": [waiting_share(result) for result in results],
        "packet_hops_per_s": rate,
        "calibration_per_s": calibration,
        "ratio": rate / calibration,
        "ratio_median": statistics.median(ratios),
        "setup_s": built_s + first.setup_s,
        "compile_s": first.compile_s,
        "first_event_s": built_s + first.setup_s + first.compile_s + first.first_event_s,
        "peak_rss_bytes": sum(workers.ranks.exchange(parallel.peak_rss_bytes())) + best.workers_rss_bytes,
        "version": {"python": sys.version.split()[0], "numpy": np.__version__},
    }


def waiting_share(results: pdes.Results) -> float:
    """Return the share of all workers' time, 0 to 1, spent waiting; 0 if it was not recorded.

    Args:
        results: The results of a run with the times of its workers.
    """
    waiting_s, working_s = (float(np.sum(results.workers.get(name, 0.0))) for name in ("waiting_s", "working_s"))
    return waiting_s / (waiting_s + working_s) if waiting_s else 0.0


def run_flow_bench(*, spec: str = "", size_bytes: int = 0, seed: int = 1, runs: int = 5) -> dict[str, Any]:
    """Run flows between random pairs of NPUs that all begin at once, and return metrics of the fastest run for JSON.

    `spec` and `size_bytes` (the mean) replace SPEC and SIZE_BYTES unless "" and 0; `seed` is that of pairs, sizes and
    ECMP. A flow event is a begin or an end of a message; `solver_share` is the share of the run's time in the solver,
    and `flows_per_solution` the mean number of flows whose rates it sets. A failed run, or two digests, is a RunError.

    Args:
        spec: The topology; "" means SPEC.
        size_bytes: The mean size of a flow in bytes; 0 means SIZE_BYTES.
        seed: The number that pairs, sizes and hashed path choices depend on.
        runs: The number of runs, whose fastest counts.
    """
    graph = topologies.build(spec or SPEC)
    size_bytes = size_bytes or SIZE_BYTES
    random = np.random.default_rng(seed)
    matrix = np.zeros((graph.npus, graph.npus), np.int64)
    for npu in range(graph.npus):
        others = np.delete(np.arange(graph.npus), npu)
        receivers = random.choice(others, min(PARTNERS, len(others)), replace=False)
        # the mean of 1/6 and 11/6 is 1
        matrix[npu, receivers] = random.integers(size_bytes // 6, 11 * size_bytes // 6, len(receivers), endpoint=True)
    program = workload.uneven_program(matrix, "direct")
    return _measured(
        fidelity.FLUID, graph, program, size_bytes, _settings(seed), runs, lambda found: found.counters["flows"]
    )


def run_coupled_bench(*, spec: str = "", size_bytes: int = 0, seed: int = 1, runs: int = 5) -> dict[str, Any]:
    """Run all-to-alls of groups of 64 beside ring all-reduces of all NPUs with the same rank, as coupled flows.

    The metrics are those of `run_flow_bench`; a flow event is a begin or an end of a collective. `spec` replaces the
    16,384 GPUs of the cluster llama3-24k, and `size_bytes` the size of an all-to-all. ConfigError: the fabric's NPUs do
    not make groups of 64.

    Args:
        spec: The topology; "" means the GPUs of CLUSTER.
        size_bytes: The size of an all-to-all in bytes; 0 means ALL_TO_ALL_BYTES.
        seed: The number that hashed path choices depend on.
        runs: The number of runs, whose fastest counts.
    """
    graph = topologies.build(spec or clusters.find(CLUSTER).topology(CLUSTER_NPUS))
    size_bytes = size_bytes or ALL_TO_ALL_BYTES
    if graph.npus % EXPERTS:
        raise ConfigError(f"bench coupled: {graph.name} has {graph.npus} NPUs; expected a multiple of {EXPERTS}")
    npus = np.arange(graph.npus).reshape(-1, EXPERTS)
    # npus: int64[groups, 64]. Rows are the groups of experts; a column has the same rank of all groups.
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
    """Return metrics of the fastest run; flows_of: number of flows of the results."""
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
        "peak_rss_bytes": parallel.peak_rss_bytes(),
    }


REUSE = "reuse"
MODEL, PLAN, _REUSE_CLUSTER = "gpt3-175b", "tp8,pp2,mb1,gb2", "selene"


def run_reuse_bench(
    progress: Progress, *, model: str = MODEL, plan: str = PLAN, seed: int = 1, runs: int = 5
) -> dict[str, Any]:
    """Run a training step with `reuse` "exact", the fastest of `runs`, then once with "off"; return metrics for JSON.

    `packet_hops` are those of the step, `episode_hops` those that were simulated in worlds of their own, and
    `replayed_hops` those that were not simulated in the fabric. Errors: those of `Resolver.plan` and `execute`.

    Args:
        progress: The display of the runs.
        model: The name of a model of the library.
        plan: The parallel plan of the model on as many GPUs of the cluster selene as it needs.
        seed: The seed of the run.
        runs: The number of runs with exact reuse, whose fastest counts.
    """

    def measured(reuse: str) -> pdes.Results:
        progress.begin(f'reuse = "{reuse}"')
        sections: dict[str, dict[str, Any]] = {
            "workload": {"model": model, "plan": plan},
            "topology": {"cluster": _REUSE_CLUSTER},
            "engine": {"reuse": reuse, "seed": seed, "workers": 1},
            "output": {"flows": "none"},
        }
        return execute(Resolver(load_config(None, sections=sections)).plan(), progress).results

    exact = min((measured("exact") for _ in range(runs)), key=lambda results: results.wall_s)
    off = measured("off")
    return {
        "bench": REUSE,
        "model": model,
        "plan": plan,
        "cluster": _REUSE_CLUSTER,
        "seed": seed,
        "runs": runs,
        "exact_s": exact.wall_s,
        "off_s": off.wall_s,
        "ratio": off.wall_s / exact.wall_s,
        "packet_hops": off.counters["packet_hops"],
        **exact.reuse,
        "finish_time_ps": exact.finish_time_ps,
        "digest": exact.digest,
        "digest_off": off.digest,
        "same_digest": exact.digest == off.digest,
        "peak_rss_bytes": parallel.peak_rss_bytes(),
    }


TIMEOUT_S = 600  # maximum wall time in seconds of one configuration in one turn
TURNS = 3  # number of times that every configuration is measured
MPIEXEC = Path(sys.executable).parent / "mpiexec"


def measure_pairs(
    benchmark: str, progress: Progress | NoProgress, *, topology: str = "", size: str = "", runs: int = 5
) -> dict[str, Any]:
    """Measure one serial run, two side by side, one and two MPI ranks, two that send messages, processes, threads.

    `topology` and `size` replace the benchmark's unless ""; each process does `runs` runs. The result has `capacity`
    and `rows`: workers, packet_hops_per_s, of_turns (the rate in each turn), speed_up over serial, share of capacity,
    waiting (minimum share of the workers' time spent waiting, over all rounds); and the digest. A failed run, or two
    digests, is a RunError; a Python installation without mpiexec a ConfigError.

    Args:
        benchmark: The name of the benchmark.
        topology: The topology; "" means that of the benchmark.
        size: The size of messages or buffers as text; "" means that of the benchmark.
        runs: The number of rounds.
        progress: The display that names the current measurement.
    """
    if not MPIEXEC.exists():
        raise ConfigError(f"{MPIEXEC}: not found; expected mpiexec in Python's folder, pip install mpi4py mpich")
    nadi = nadi_command(["bench", benchmark, "--json", "--quiet", "--runs", str(runs)])
    nadi += ["--topology", topology] * bool(topology) + ["--size", size] * bool(size)
    configurations = {
        "serial": [nadi],
        "2 serial side by side": [nadi, nadi],
        "1 MPI rank": [[str(MPIEXEC), "-n", "1", *nadi]],
        "2 MPI ranks": [[str(MPIEXEC), "-n", "2", *nadi]],
        "2 MPI ranks, by messages": [[str(MPIEXEC), "-n", "2", *nadi, "--no-share-memory"]],
        "2 processes": [[*nadi, "--workers", "2", "--backend", "processes"]],
        "2 threads": [[*nadi, "--workers", "2", "--backend", "threads"]],
    }
    rates: dict[str, list[float]] = {configuration: [] for configuration in configurations}
    waiting = dict.fromkeys(configurations, 1.0)
    digests = set()
    # all configurations in each turn: a machine that becomes slower, as by heat, slows all of them
    for turn in range(TURNS):
        for configuration, commands in configurations.items():
            progress.say(f"turn {turn + 1} of {TURNS}: {configuration}")
            metrics = run_side_by_side(commands)
            rates[configuration].append(joint_rate(metrics))
            waiting[configuration] = min(waiting[configuration], *metrics[0]["waiting_shares"])
            digests |= {run["digest"] for run in metrics}
    if len(digests) > 1:
        raise RunError(f"bench {benchmark}: configurations gave {len(digests)} different digests")
    serial = max(rates["serial"])
    # two runs that share nothing but caches and memory: the most that two workers of one run can reach
    capacity = max(rates["2 serial side by side"]) / serial
    rows = [
        {
            "workers": configuration,
            "packet_hops_per_s": max(turn_rates),
            "of_turns": turn_rates,
            "speed_up": max(turn_rates) / serial,
            "share": max(turn_rates) / serial / capacity,
            "waiting": waiting[configuration],
        }
        for configuration, turn_rates in rates.items()
    ]
    return {"bench": benchmark, "capacity": capacity, "turns": TURNS, "digest": digests.pop(), "rows": rows}


def joint_rate(metrics: list[dict[str, Any]]) -> float:
    """Return packet-hops per second of runs side by side, in the best round; a round ends when its slowest run ends.

    Args:
        metrics: Metrics of the runs side by side, as `nadi bench --json` prints them.
    """
    rounds = zip(*(each["walls_s"] for each in metrics), strict=True)
    return max(sum(each["packet_hops"] for each in metrics) / max(walls) for walls in rounds)


def run_side_by_side(commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run commands concurrently, without an MPI launcher's variables, and return the JSON document of each."""
    # with these variables a run would take itself for a rank of the job that started this process
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDRA"))}
    processes = [
        subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)  # noqa: S603
        for each in commands
    ]
    metrics = []
    for command, process in zip(commands, processes, strict=True):
        out, errors = process.communicate(timeout=TIMEOUT_S)
        if process.returncode:
            raise RunError(f"{' '.join(command)}: exit code {process.returncode}: {errors.strip()}")
        metrics.append(json.loads(out))
    return metrics
