"""Trends that Megatron-LM published for A100 (Narayanan et al., arXiv 2104.04473), simulated at closed forms on selene.

    python scripts/megatron_trends.py [NAME ...] [-o trends.json]

Nothing is fitted to them. Models and plans are those of the paper's own scripts (Megatron-LM, examples/sc21,
run_figure_12.sh, 13, 16, 18), and of section 5.2 for ZeRO-3 in the style of DeepSpeed of 2021. Rates are as published:
operations of the paper's formula F, with full recomputation, per second and GPU.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nadi.studies.planner.step import StepTime, TargetMachine, step_time, target_machine
from topologies import clusters
from workload.compute import IN_STEPS, ComputeTimes, find_gpu
from workload.generators.models import Model, training_flops
from workload.generators.training import ParallelPlan, parallel_plan, rules

CODE = (
    "recompute=full,attention=unfused,dtype=fp16,grad_dtype=fp16,async_tp=false,fused_accumulation=false,"
    "overlap_grad_reduce=false,overlap_p2p=false"
)
SCATTER = f"{CODE},scatter_gather=true"
ZERO = (
    "zero3,gather=list,prefetch=0,recompute=full,attention=unfused,dtype=fp16,grad_dtype=fp16,fused_accumulation=false"
)
NETWORK = {"p2p_share": 0.5}
"""NCCL 2.8.3, which the paper used (SRUN.sh: NGC 20.12), makes both GPUs of a pair of PCIe switches send their
messages over the same one of its two HCAs: docs/explanation/nccl.md, "Messages between hosts"."""
_SHOWN = ("compute", "tp", "dp", "pp", "bubble")


class Case(NamedTuple):
    """One point of a figure."""

    label: str  # label of the point
    plan: str  # parallel plan as text
    published: float | None = None  # published TFLOP/s per GPU; None if the paper has no number


class Trend(NamedTuple):
    """A figure or table of the paper."""

    claim: str  # statement of the paper
    model: Model  # model to train
    cases: tuple[Case, ...]  # points of the figure
    framework: rules.Framework = "megatron"  # training framework of all points


def gpt(layers: int, hidden: int, heads: int) -> Model:
    """Return the paper's GPT model with these sizes: 2,048 tokens, a vocabulary of 51,200."""
    name = f"gpt-{layers}x{hidden}"
    return Model(name=name, layers=layers, hidden=hidden, heads=heads, vocab=51200, sequence=2048, dropout=True)


_GPT_175B = gpt(96, 12288, 96)
_BATCHES = (12, 24, 36, 48, 60)
TRENDS = {
    "interleaving": Trend(
        "figure 12: interleaving gains 10 % or more at small batch, less at large",
        _GPT_175B,
        tuple(
            Case(f"batch {batch}, {word}", f"tp8,pp12,{chunks}mb1,gb{batch},{SCATTER}")
            for batch in _BATCHES
            for word, chunks in (("plain", ""), ("interleaved", "vpp4,"))
        ),
    ),
    "scatter-gather": Trend(
        "figure 18: scatter/gather gains up to 11 % with interleaving",
        _GPT_175B,
        tuple(
            Case(f"batch {batch}, {word}", f"tp8,pp12,vpp4,mb1,gb{batch},{CODE},scatter_gather={on}")
            for batch in _BATCHES
            for word, on in (("without", "false"), ("with", "true"))
        ),
    ),
    "tp-pp": Trend(
        "figure 13: of 64 GPUs, (TP, PP) = (8, 8) is best",
        gpt(32, 20480, 128),
        tuple(
            Case(f"batch {batch}, tp{64 // stages} pp{stages}", f"tp{64 // stages},pp{stages},mb1,gb{batch},{SCATTER}")
            for batch in (32, 128)
            for stages in (2, 4, 8, 16, 32)
        ),
    ),
    "micro-batch": Trend(
        "figure 16: micro-batches of 2 are best for the model of 91 billion parameters",
        gpt(32, 15360, 128),
        tuple(
            Case(f"batch {batch}, micro-batch {micro}", f"tp8,pp8,mb{micro},gb{batch},{SCATTER}")
            for batch in (128, 512)
            for micro in (1, 2, 4, 8)
        ),
    ),
    "zero3": Trend(
        "table 2: ZeRO-3 without model parallelism, 1,536 sequences",
        _GPT_175B,
        tuple(
            Case(f"{gpus} GPUs", f"dp{gpus},mb{1536 // gpus},gb1536,{ZERO}", published)
            for gpus, published in ((384, 144.0), (768, 88.0), (1536, 44.0))
        ),
        "deepspeed",
    ),
    "ptd-p": Trend(
        "table 2: tensor, pipeline and data parallelism, 1,536 sequences",
        _GPT_175B,
        tuple(
            Case(f"{gpus} GPUs", f"tp8,pp12,dp{gpus // 96},mb1,gb1536,{SCATTER}", published)
            for gpus, published in ((384, 153.0), (768, 149.0), (1536, 141.0))
        ),
    ),
}


class Point(NamedTuple):
    """A simulated case."""

    case: Case  # case that was simulated
    plan: ParallelPlan  # settled parallel plan
    step: StepTime  # step time and its breakdown
    tflops: float  # TFLOP/s per GPU


def point(machine: TargetMachine, trend: Trend, case: Case) -> Point:
    """Return a case of a trend simulated on a machine of its size. Raises WorkloadError: the plan breaks a rule."""
    plan = rules.settle(trend.model, parallel_plan(case.plan), trend.framework)
    rules.check(trend.model, plan, trend.framework)
    step = step_time(machine, trend.model, plan, trend.framework)
    operations = training_flops(trend.model, plan.global_batch, plan.sequence, recompute=plan.recompute)
    return Point(case, plan, step, operations / step.step_ps / plan.gpus)


def run(trend: Trend, cluster_name: str = "selene") -> list[Point]:
    """Simulate all cases of a trend, each on its number of GPUs of the cluster."""
    found_cluster = clusters.find(cluster_name)
    times = ComputeTimes(find_gpu(found_cluster.gpu), pace=IN_STEPS, vendor_tables=False)
    machines: dict[int, TargetMachine] = {}
    points = []
    for case in trend.cases:
        gpus = parallel_plan(case.plan).gpus
        if gpus not in machines:
            machines = {gpus: target_machine(found_cluster, gpus, times, network_keys=NETWORK)}
        points.append(point(machines[gpus], trend, case))
        print(line(points[-1]), flush=True)
    return points


def line(point: Point) -> str:
    """Return a point as a line of text."""
    published = f"{point.case.published:8.0f}" if point.case.published else 8 * " "
    shares = "  ".join(f"{name} {point.step.of(name):6.1%}" for name in _SHOWN)
    return (
        f"{point.case.label:26s} {point.step.step_ps / 1e12:8.3f} s {point.tflops:7.1f} TFLOP/s {published}  {shares}"
    )


def document(points: Sequence[Point]) -> list[dict[str, object]]:
    """Return points as JSON."""
    return [
        {
            "label": point.case.label,
            "plan": str(point.plan),
            "step_s": point.step.step_ps / 1e12,
            "tflops": point.tflops,
            "published_tflops": point.case.published,
        }
        for point in points
    ]


def main() -> None:
    """Print the trends, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"trends: {', '.join(TRENDS)}; default: all")
    parser.add_argument("-o", "--out", metavar="FILE.json", help="file for the points as JSON")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(TRENDS))
    if unknown:
        parser.error(f"no trend {unknown[0]}; expected {', '.join(TRENDS)}")
    results = {}
    for name in args.names or TRENDS:
        print(f"{name}: {TRENDS[name].claim}", flush=True)
        results[name] = document(run(TRENDS[name]))
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
