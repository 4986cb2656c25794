"""Accuracy of synthetic traces: `python scripts/synthesis_study.py`, about a minute on one core.

The study learns from training steps of small models under many parallel plans, with times from an H100 roofline. It
compares with held-out steps, half of them with a pipeline and half without: distances between distributions, and
simulated step times on two fabrics, of trace sets generated for the layout, length, passes and sizes of each step.
"""

import argparse
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance

from et import TraceTable
from et.order import depth
from et.synthesis import (
    Generated,
    Learned,
    Originals,
    SynthesisError,
    generate,
    learn,
    request_of,
    stream_of,
)
from nadi.configuration.run_file import load_config
from nadi.launching.progress import NoProgress
from nadi.simulation.run import simulate
from workload import TraceSet, write_set
from workload.compute import ComputeTimes, find_gpu
from workload.compute.efficiency import IN_STEPS
from workload.generators.models.model import Model
from workload.generators.training import parallel_plan
from workload.generators.training.generator import generate as generate_steps
from workload.program.recorded import with_recorded_times

FABRICS = {
    "DGX H100 pods": "dgx-h100:npus={ranks}",
    "leaf and spine, 100 Gb/s": "leaf-spine:leaves=4,hosts_per_leaf={quarter},spines=4,rate=100Gbps,delay=1us",
}
KINDS = ("one stage", "pipeline")
TIMES = ComputeTimes(find_gpu("h100"), pace=IN_STEPS)


Floats = NDArray[np.float64]


class Step(NamedTuple):
    """Model and plan of a training step.

    Attributes:
        plan: Parallel plan of the step.
        stages: Number of pipeline stages.
        layers: Number of layers.
        hidden: Hidden size of the model.
        sequence: Sequence length in tokens.
    """

    plan: str
    stages: int
    layers: int
    hidden: int
    sequence: int

    @property
    def kind(self) -> str:
        """Kind of the step, one of KINDS."""
        return KINDS[self.stages > 1]

    def traces(self) -> TraceSet:
        """Return the traces of the step with the times of an H100."""
        model = Model(
            name="drawn",
            layers=self.layers,
            hidden=self.hidden,
            heads=self.hidden // 128,
            vocab=32_000,
            sequence=self.sequence,
        )
        traces = generate_steps(model, parallel_plan(self.plan))
        return dataclasses.replace(traces, traces=[with_recorded_times(table, TIMES) for table in traces.traces])


def drawn_step(rng: random.Random) -> Step:
    """Return a random step of 4 to 32 GPUs and 4 to 8 layers."""
    while True:
        tp, pp, dp = rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.choice([1, 2, 4, 8])
        layers, hidden = rng.choice([4, 6, 8]), rng.choice([512, 1024, 1536, 2048, 3072, 4096])
        if 4 <= tp * pp * dp <= 32 and layers % pp == 0:
            break
    sequence = rng.choice([1024, 2048, 4096])
    return Step(f"tp{tp},pp{pp},dp{dp},gb{dp * rng.choice([4, 6])}", pp, layers, hidden, sequence)


def drawn_steps(seed: int, count: int) -> list[Step]:
    """Return random steps to learn from."""
    rng = random.Random(seed)  # noqa: S311 - not cryptographic
    return [drawn_step(rng) for _ in range(count)]


def held_out_steps(seed: int, count: int, learned: Sequence[Step]) -> list[Step]:
    """Return `count` distinct steps of each kind that are not among the learned ones."""
    rng = random.Random(seed)  # noqa: S311 - not cryptographic
    steps: list[Step] = []
    while len(steps) < count * len(KINDS):
        step = drawn_step(rng)
        if step not in learned and step not in steps and sum(other.kind == step.kind for other in steps) < count:
            steps.append(step)
    return sorted(steps, key=lambda step: KINDS.index(step.kind))


def step_time_ps(folder: str, ranks: int, fabric: str) -> int:
    """Return the simulated step time in ps with collectives at closed forms."""
    spec = fabric.format(ranks=max(ranks, 8), quarter=max(ranks // 4, 1))
    overrides = [f"workload.traces={folder}", f"topology.spec={spec}", "network.fidelity=closed-form"]
    return simulate(load_config(None, overrides), NoProgress()).results.finish_time_ps


def tables_of(sets: Sequence[TraceSet | Generated]) -> list[TraceTable]:
    """Return all distinct traces."""
    return [table for each in sets for table in each.traces]


def times_of(sets: Sequence[TraceSet | Generated], folder: str) -> dict[str, list[int]]:
    """Return step times in ps on each fabric."""
    step_times: dict[str, list[int]] = {name: [] for name in FABRICS}
    for number, each in enumerate(sets):
        trace_set = TraceSet(each.traces, each.trace_of_npu, each.example_npu, each.families)
        path = str(write_set(f"{folder}/{number}", trace_set, "set"))
        for name, fabric in FABRICS.items():
            step_times[name].append(step_time_ps(path, trace_set.npus, fabric))
        print(f"{folder}: {number + 1} of {len(sets)} simulated", end="\r", file=sys.stderr)
    return step_times


def generated_for(model: Learned, sets: Sequence[TraceSet], seed: int) -> list[Generated | None]:
    """Return a new set for each; None = refused, because an original would have been reproduced."""
    generated: list[Generated | None] = []
    for number, each in enumerate(sets):
        try:
            generated.append(generate(model, request_of(stream_of(each)), seed + number))
        except SynthesisError:
            generated.append(None)
    return generated


def errors(generated_ps: Sequence[int], held_out_ps: Sequence[int]) -> dict[str, float]:
    """Return the relative errors of step times: of their mean, and of each against its own held-out step."""
    own, other = np.array(generated_ps, np.float64), np.array(held_out_ps, np.float64)
    relative = own / other - 1
    return {
        "mean": float(own.mean() / other.mean() - 1),
        "each, mean size": float(np.abs(relative).mean()),
        "each, deviation": float(relative.std()),
        "each, worst": float(relative[np.argmax(np.abs(relative))]),
    }


def generated_figures(
    model: Learned, tests: Sequence[Step], others: Sequence[TraceSet], simulated: dict[str, list[int]], folder: str
) -> dict[str, Any]:
    """Return the figures of generated sets, one for each held-out set."""
    generated = generated_for(model, others, 1)
    kept = [number for number, each in enumerate(generated) if each is not None]
    new = [each for each in generated if each is not None]
    repeats = [Originals(others[number].traces).found_in(each.traces) for number, each in zip(kept, new, strict=True)]
    times = times_of(new, folder)
    rows = {}
    for kind in (*KINDS, "all"):
        places = [place for place, number in enumerate(kept) if kind in {tests[number].kind, "all"}]
        for fabric, held_out_ps in simulated.items():
            own = [held_out_ps[kept[place]] for place in places]
            of_pair = errors([times[fabric][place] for place in places], own)
            rows[f"{kind}, {fabric}"] = {"sets": len(places), "held out, ms": float(np.mean(own)) / 1e9, **of_pair}
    return {
        "refused": len(generated) - len(new),
        "with eight values in a row of the set that they are like": sum("in a row" in repeat for repeat in repeats),
        "distances": distances(tables_of(new), tables_of(others)),
        "step times": rows,
    }


def distances(tables: Sequence[TraceTable], others: Sequence[TraceTable]) -> dict[str, float]:
    """Return the distances between the node distributions of two groups of traces.

    Jensen-Shannon divergences in bits (0 = equal, 1 = disjoint): node kinds with kinds of collectives, and fan-in.
    Wasserstein distances of logarithms to base 2, so that 1 is a factor of 2 in the mean: sizes, durations, and the
    depth of each trace.
    """
    return {
        "node kinds (JS, bits)": _divergence(_joined(tables, _kinds), _joined(others, _kinds)),
        "fan-in (JS, bits)": _divergence(_joined(tables, _fan_in), _joined(others, _fan_in)),
        "sizes (Wasserstein, octaves)": _apart(_joined(tables, _sizes), _joined(others, _sizes)),
        "durations (Wasserstein, octaves)": _apart(_joined(tables, _micros), _joined(others, _micros)),
        "depth (Wasserstein, octaves)": _apart(_joined(tables, _depth), _joined(others, _depth)),
    }


def _joined(tables: Sequence[TraceTable], of_table: Callable[[TraceTable], Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *(of_table(table) for table in tables)])


def _kinds(table: TraceTable) -> Floats:
    """Return a number per node that encodes its kind."""
    return table.type.astype(np.float64) * 100 + table.is_cpu_op * 50 + table.comm_type


def _fan_in(table: TraceTable) -> Floats:
    return np.diff(table.dep_ptr).astype(np.float64)


def _sizes(table: TraceTable) -> Floats:
    return np.log2(table.comm_size[table.comm_size > 0].astype(np.float64))


def _micros(table: TraceTable) -> Floats:
    return np.log2(table.duration_micros[table.duration_micros > 0].astype(np.float64))


def _depth(table: TraceTable) -> Floats:
    return np.array([np.log2(max(depth(table), 1))])


def _divergence(values: Floats, others: Floats) -> float:
    """Return the Jensen-Shannon divergence in bits of two samples."""
    places = np.union1d(values, others)
    counts = [np.bincount(np.searchsorted(places, side), minlength=len(places)) for side in (values, others)]
    return float(jensenshannon(*counts, base=2) ** 2)


def _apart(values: Floats, others: Floats) -> float:
    """Return the Wasserstein distance of two samples."""
    return float(wasserstein_distance(values, others)) if len(values) and len(others) else float("nan")


def study(train: int, held_out: int, seed: int, test_seed: int, folder: str) -> dict[str, Any]:
    """Return all figures."""
    steps = drawn_steps(seed, train)
    tests = held_out_steps(test_seed, held_out, steps)
    sets, others = [step.traces() for step in steps], [step.traces() for step in tests]
    start_s = time.process_time()
    model = learn(sets)
    learned_s = time.process_time() - start_s
    simulated = times_of(others, f"{folder}/held-out")
    return {
        "learned from": train,
        "held out": len(tests),
        "nodes held out": sum(map(len, tables_of(others))),
        "distances of those learned from": distances(tables_of(sets), tables_of(others)),
        **generated_figures(model, tests, others, simulated, f"{folder}/generated"),
        "learning CPU s": learned_s,
        "CPU s": time.process_time() - start_s,
    }


def show(figures: dict[str, Any]) -> None:
    """Print all figures, as tables of docs/explanation/synthetic-traces.md."""
    print(
        f"learned from {figures['learned from']}, tested on {figures['held out']} of "
        f"{figures['nodes held out']:,} nodes; "
        f"learning took {figures['learning CPU s']:.0f} s, everything {figures['CPU s']:.0f} s of CPU time\n"
    )
    print("| simulated step time | sets | held out | mean | each: size, deviation, worst |")
    print("| --- | --- | --- | --- | --- |")
    for row, own in figures["step times"].items():
        each = f"{own['each, mean size']:.1%}, {own['each, deviation']:.1%}, {own['each, worst']:+.1%}"
        print(f"| {row} | {own['sets']} | {own['held out, ms']:.2f} ms | **{own['mean']:+.1%}** | {each} |")
    print("\n| distance from held out | generated | sets learned from |\n| --- | --- | --- |")
    for measure, learned in figures["distances of those learned from"].items():
        print(f"| {measure} | {figures['distances'][measure]:.4f} | {learned:.4f} |")
    for key in ("refused", "with eight values in a row of the set that they are like"):
        print(f"\n{key}: {figures[key]}")


def main() -> None:
    """Parse the arguments and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=160)
    parser.add_argument(
        "--held-out", type=int, default=8, help="number of held-out sets with a pipeline, and as many without"
    )
    parser.add_argument("--seed", type=int, default=1001, help="seed of the sets to learn from")
    parser.add_argument("--test-seed", type=int, default=20_261_123, help="seed of the held-out sets")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = study(args.train, args.held_out, args.seed, args.test_seed, folder)
    if args.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
