"""How good synthetic traces are: `python scripts/synthesis_study.py`, about a minute on one core.

Learns from training steps of small models under many parallel plans, whose times a roofline of an H100 gives, and
compares with held-out steps, half of them with a pipeline and half without: distances of distributions, and simulated
step times on two fabrics of sets that are generated for the layout, the length, the passes and the sizes of each.
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
    SynthesisError,
    generate,
    learn,
    request_of,
    stream_of,
)
from et.synthesis.novelty import Originals
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
    """Of what model and plan a trace set is a training step."""

    plan: str
    stages: int
    layers: int
    hidden: int
    sequence: int

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return KINDS[self.stages > 1]

    def traces(self) -> TraceSet:
        """With the times that an H100 takes."""
        model = Model(
            name="drawn",
            layers=self.layers,
            hidden=self.hidden,
            heads=self.hidden // 128,
            vocab=32_000,
            sequence=self.sequence,
        )
        found = generate_steps(model, parallel_plan(self.plan))
        return dataclasses.replace(found, traces=[with_recorded_times(table, TIMES) for table in found.traces])


def drawn_step(draw: random.Random) -> Step:
    """By chance: 4 to 32 GPUs, 4 to 8 layers."""
    while True:
        tp, pp, dp = draw.choice([1, 2, 4]), draw.choice([1, 2, 4]), draw.choice([1, 2, 4, 8])
        layers, hidden = draw.choice([4, 6, 8]), draw.choice([512, 1024, 1536, 2048, 3072, 4096])
        if 4 <= tp * pp * dp <= 32 and layers % pp == 0:
            break
    sequence = draw.choice([1024, 2048, 4096])
    return Step(f"tp{tp},pp{pp},dp{dp},gb{dp * draw.choice([4, 6])}", pp, layers, hidden, sequence)


def drawn_steps(seed: int, many: int) -> list[Step]:
    """To learn from."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    return [drawn_step(draw) for _ in range(many)]


def held_out_steps(seed: int, many: int, learned: Sequence[Step]) -> list[Step]:
    """So many of each kind, none of them learned from and none twice."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    found: list[Step] = []
    while len(found) < many * len(KINDS):
        step = drawn_step(draw)
        if step not in learned and step not in found and sum(other.kind == step.kind for other in found) < many:
            found.append(step)
    return sorted(found, key=lambda step: KINDS.index(step.kind))


def step_time_ps(folder: str, ranks: int, fabric: str) -> int:
    """Simulated, collectives at their closed forms."""
    spec = fabric.format(ranks=max(ranks, 8), quarter=max(ranks // 4, 1))
    overrides = [f"workload.traces={folder}", f"topology.spec={spec}", "network.fidelity=closed-form"]
    return simulate(load_config(None, overrides), NoProgress()).results.finish_time_ps


def tables_of(sets: Sequence[TraceSet | Generated]) -> list[TraceTable]:
    """All distinct traces."""
    return [table for each in sets for table in each.traces]


def times_of(sets: Sequence[TraceSet | Generated], folder: str) -> dict[str, list[int]]:
    """Step times on each fabric."""
    found: dict[str, list[int]] = {name: [] for name in FABRICS}
    for number, each in enumerate(sets):
        as_set = TraceSet(each.traces, each.trace_of_npu, each.example_npu, each.families)
        path = str(write_set(f"{folder}/{number}", as_set, "set"))
        for name, fabric in FABRICS.items():
            found[name].append(step_time_ps(path, as_set.npus, fabric))
        print(f"{folder}: {number + 1} of {len(sets)} simulated", end="\r", file=sys.stderr)
    return found


def generated_for(model: Learned, sets: Sequence[TraceSet], seed: int) -> list[Generated | None]:
    """A new set for each; None = it was refused, as an original would have come out."""
    found: list[Generated | None] = []
    for number, each in enumerate(sets):
        try:
            found.append(generate(model, request_of(stream_of(each)), seed + number))
        except SynthesisError:
            found.append(None)
    return found


def errors(made: Sequence[int], held_out: Sequence[int]) -> dict[str, float]:
    """Of step times: of their mean, and of each against its own."""
    own, other = np.array(made, np.float64), np.array(held_out, np.float64)
    each = own / other - 1
    return {
        "mean": float(own.mean() / other.mean() - 1),
        "each, mean size": float(np.abs(each).mean()),
        "each, deviation": float(each.std()),
        "each, worst": float(each[np.argmax(np.abs(each))]),
    }


def generated_figures(
    model: Learned, tests: Sequence[Step], others: Sequence[TraceSet], simulated: dict[str, list[int]], folder: str
) -> dict[str, Any]:
    """Of sets that a model generates, one like each of those held out."""
    made = generated_for(model, others, 1)
    kept = [number for number, each in enumerate(made) if each is not None]
    new = [each for each in made if each is not None]
    repeats = [Originals(others[number].traces).found_in(each.traces) for number, each in zip(kept, new, strict=True)]
    times = times_of(new, folder)
    rows = {}
    for kind in (*KINDS, "all"):
        places = [place for place, number in enumerate(kept) if kind in {tests[number].kind, "all"}]
        for fabric, held in simulated.items():
            own = [held[kept[place]] for place in places]
            of_pair = errors([times[fabric][place] for place in places], own)
            rows[f"{kind}, {fabric}"] = {"sets": len(places), "held out, ms": float(np.mean(own)) / 1e9, **of_pair}
    return {
        "refused": len(made) - len(new),
        "with eight values in a row of the set that they are like": sum("in a row" in repeat for repeat in repeats),
        "distances": distances(tables_of(new), tables_of(others)),
        "step times": rows,
    }


def distances(tables: Sequence[TraceTable], others: Sequence[TraceTable]) -> dict[str, float]:
    """Distances between the nodes of traces and those of others, all traces of a side together.

    Jensen-Shannon divergences in bits, 0 = alike, 1 = nothing in common: kinds of nodes with those of collectives, and
    fan-in. Wasserstein distances of logarithms to base 2, so that 1 is a factor of 2 in the mean: sizes, durations, and
    the depth of each trace.
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
    places = np.union1d(values, others)
    counts = [np.bincount(np.searchsorted(places, side), minlength=len(places)) for side in (values, others)]
    return float(jensenshannon(*counts, base=2) ** 2)


def _apart(values: Floats, others: Floats) -> float:
    return float(wasserstein_distance(values, others)) if len(values) and len(others) else float("nan")


def study(train: int, held_out: int, seed: int, test_seed: int, folder: str) -> dict[str, Any]:
    """Return all figures."""
    steps = drawn_steps(seed, train)
    tests = held_out_steps(test_seed, held_out, steps)
    sets, others = [step.traces() for step in steps], [step.traces() for step in tests]
    began = time.process_time()
    model = learn(sets)
    learned_s = time.process_time() - began
    simulated = times_of(others, f"{folder}/held-out")
    return {
        "learned from": train,
        "held out": len(tests),
        "nodes held out": sum(map(len, tables_of(others))),
        "distances of those learned from": distances(tables_of(sets), tables_of(others)),
        **generated_figures(model, tests, others, simulated, f"{folder}/generated"),
        "learning CPU s": learned_s,
        "CPU s": time.process_time() - began,
    }


def show(found: dict[str, Any]) -> None:
    """Print all figures, as tables of docs/explanation/synthetic-traces.md."""
    print(
        f"{found['learned from']} learned from, {found['held out']} of {found['nodes held out']:,} nodes to test; "
        f"learning took {found['learning CPU s']:.0f} s, everything {found['CPU s']:.0f} s of CPU time\n"
    )
    print("| simulated step time | sets | held out | mean | each: size, deviation, worst |")
    print("| --- | --- | --- | --- | --- |")
    for row, own in found["step times"].items():
        each = f"{own['each, mean size']:.1%}, {own['each, deviation']:.1%}, {own['each, worst']:+.1%}"
        print(f"| {row} | {own['sets']} | {own['held out, ms']:.2f} ms | **{own['mean']:+.1%}** | {each} |")
    print("\n| distance from held out | generated | sets learned from |\n| --- | --- | --- |")
    for measure, learned in found["distances of those learned from"].items():
        print(f"| {measure} | {found['distances'][measure]:.4f} | {learned:.4f} |")
    for key in ("refused", "with eight values in a row of the set that they are like"):
        print(f"\n{key}: {found[key]}")


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=160)
    parser.add_argument("--held-out", type=int, default=8, help="with a pipeline, and as many without")
    parser.add_argument("--seed", type=int, default=1001, help="of the sets to learn from")
    parser.add_argument("--test-seed", type=int, default=20_261_123, help="of the held-out sets")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = study(given.train, given.held_out, given.seed, given.test_seed, folder)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
