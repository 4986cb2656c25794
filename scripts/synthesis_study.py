"""How good synthetic traces are: `python scripts/synthesis_study.py --folder DIR [--train 64] [--epochs 32]`.

Trains the network and the n-gram on training steps of small models under many parallel plans, whose times a roofline of
an H100 gives, and compares with as many others that neither has seen: bits per node of the held-out ones, distances of
distributions, and simulated step times on two fabrics of sets generated for the layout, length and means of each.
"""

import argparse
import dataclasses
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from et import TraceTable
from et.synthesis import Generated, SynthesisError, bits_per_event, distances, generate, learn, stream_of, wanted_of
from et.synthesis.counts import Counts
from et.synthesis.tokens import encode
from nadi.launching.progress import Silence
from nadi.run_file import load_config
from nadi.simulation import simulate
from workload import TraceSet, write_set
from workload.compute import ComputeTimes, find_gpu
from workload.compute.efficiency import IN_STEPS
from workload.models.model import Model
from workload.program.recorded import with_recorded_times
from workload.training import parallel_plan
from workload.training.generator import generate as generate_steps

FABRICS = {
    "DGX H100 pods": "dgx-h100:npus={ranks}",
    "leaf and spine, 100 Gb/s": "leaf-spine:leaves=4,hosts_per_leaf={quarter},spines=4,rate=100Gbps,delay=1us",
}
ORDERS = (1, 2, 3, 4, 5)


def drawn_set(draw: random.Random, times: ComputeTimes) -> TraceSet:
    """A training step of a model and a plan, by chance: 4 to 32 GPUs, 4 to 8 layers."""
    while True:
        tp, pp, dp = draw.choice([1, 2, 4]), draw.choice([1, 2, 4]), draw.choice([1, 2, 4, 8])
        layers, hidden = draw.choice([4, 6, 8]), draw.choice([512, 1024, 1536, 2048, 3072, 4096])
        if 4 <= tp * pp * dp <= 32 and layers % pp == 0:
            break
    model = Model(
        name="drawn",
        layers=layers,
        hidden=hidden,
        heads=hidden // 128,
        vocab=32_000,
        sequence=draw.choice([1024, 2048, 4096]),
    )
    plan = parallel_plan(f"tp{tp},pp{pp},dp{dp},gb{dp * draw.choice([4, 6])}")
    traces = generate_steps(model, plan)
    return dataclasses.replace(traces, traces=[with_recorded_times(table, times) for table in traces.traces])


def step_time_ps(folder: str, ranks: int, fabric: str) -> int:
    """Simulated, collectives at their closed forms."""
    spec = fabric.format(ranks=max(ranks, 8), quarter=max(ranks // 4, 1))
    overrides = [f"workload.traces={folder}", f"topology.spec={spec}", "network.fidelity=closed-form"]
    return simulate(load_config(None, overrides), Silence()).results.finish_time_ps


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
    return found


def study(train: int, held_out: int, epochs: int, seed: int, folder: str) -> dict[str, Any]:
    """All figures."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    times = ComputeTimes(find_gpu("h100"), pace=IN_STEPS)
    sets = [drawn_set(draw, times) for _ in range(train)]
    others = [drawn_set(draw, times) for _ in range(held_out)]
    streams = [stream_of(each) for each in others]
    events = sum(len(stream.events) for stream in streams)
    began = time.process_time()
    models = {"network": learn(sets, "network", seed, epochs=epochs)}
    trained_s = time.process_time() - began
    models["n-gram"] = learn(sets, "counts", seed)
    told = sum(wanted_of(stream).told_bits for stream in streams) / events
    found: dict[str, Any] = {
        "sets": {"learned": train, "held out": held_out, "events held out": events},
        "training CPU s": trained_s,
        "bits per node": {name: bits_per_event(model, streams) for name, model in models.items()},
        "bits per node of conditions": told,
        "n-gram orders": {},
        "distances": {"learned": distances(tables_of(sets), tables_of(others))},
        "times": {"held out": times_of(others, f"{folder}/held-out")},
    }
    words = models["n-gram"].words
    for order in ORDERS:
        counts = Counts(order, words.sizes)
        counts.learn([encode(words, stream_of(each)) for each in sets])
        bits = sum(counts.bits(encode(words, stream), wanted_of(stream)).sum() for stream in streams)
        found["n-gram orders"][order] = float(bits) / events
    for name, model in models.items():
        made = []
        failed = 0
        for number, stream in enumerate(streams):
            try:
                made.append(generate(model, wanted_of(stream), seed + number))
            except SynthesisError:
                failed += 1
        found["distances"][name] = distances(tables_of(made), tables_of(others))
        found["times"][name] = times_of(made, f"{folder}/{name}")
        found[name] = {"failed": failed, "cut": sum(not each.is_whole for each in made), "sets": len(made)}
    return found


def show(found: dict[str, Any]) -> None:
    """Print all of it."""
    print(f"{found['sets']}; the network trained for {found['training CPU s']:.0f} s of CPU time")
    for name, bits in found["bits per node"].items():
        parts = ", ".join(f"{part:.3f}" for part in bits)
        print(f"bits per node, held out: {name:8} {sum(bits):6.3f} (what, value, parents: {parts})")
    print(f"  and for the network {found['bits per node of conditions']:.3f} more if its conditions are paid for")
    print("  n-grams by order:", {order: round(bits, 3) for order, bits in found["n-gram orders"].items()})
    for measure in found["distances"]["network"]:
        row = ", ".join(f"{name} {values[measure]:.3f}" for name, values in found["distances"].items())
        print(f"distance from held out, {measure}: {row}")
    for fabric, held in found["times"]["held out"].items():
        mean = np.mean(held)
        print(f"step time on {fabric}: held out {mean / 1e9:.2f} ms in the mean")
        for name in ("network", "n-gram"):
            own = found["times"][name][fabric]
            of_each = ""
            if len(own) == len(held):
                of_each = f"; of each by its own {np.mean(np.abs(np.array(own) / np.array(held) - 1)):.1%} in the mean"
            print(f"  {name:8} {np.mean(own) / 1e9:.2f} ms: {np.mean(own) / mean - 1:+.1%}{of_each}")
    for name in ("network", "n-gram"):
        print(f"{name}: {found[name]}")


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=64)
    parser.add_argument("--held-out", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=32)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--folder", required=True, help="for the trace sets that are simulated")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = study(given.train, given.held_out, given.epochs, given.seed, given.folder)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
