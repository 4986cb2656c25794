"""Trends that Megatron-LM published of A100 (Narayanan et al., arXiv 2104.04473), each run at closed forms on selene.

    python scripts/megatron_trends.py [NAME ...] [-o trends.json]

Nothing is fitted to them. Models and plans are those of the paper's own scripts (Megatron-LM, examples/sc21,
run_figure_12.sh, 13, 16, 18), of section 5.2 for ZeRO-3, in the manner of DeepSpeed of then. Rates are as published:
operations of the paper's formula F, with all layers worked out again, for each second and GPU.
"""

import argparse
import json
from collections.abc import Sequence
from typing import NamedTuple

from nadi.studies.planner.step import StepTime, TargetMachine, site, step_time
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
"""NCCL 2.8.3, which the paper's scripts ran (SRUN.sh: NGC 20.12), has both GPUs of a pair of PCIe switches send their
messages over the same one of its two HCAs: docs/explanation/nccl.md, "Messages between hosts"."""
_SHOWN = ("compute", "tp", "dp", "pp", "bubble")


class Case(NamedTuple):
    """One point of a figure.

    Attributes:
        label: of the point.
        plan: as users write it.
        published: TFLOP/s of a GPU, where the paper prints the number.
    """

    label: str
    plan: str
    published: float | None = None


class Trend(NamedTuple):
    """A figure or table.

    Attributes:
        says: what the paper says of it.
        model: what is trained.
        cases: its points.
        framework: by which all of them are trained.
    """

    says: str
    model: Model
    cases: tuple[Case, ...]
    framework: rules.Framework = "megatron"


def gpt(layers: int, hidden: int, heads: int) -> Model:
    """A GPT of the paper: 2,048 tokens, a vocabulary of 51,200."""
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
    """A case that was run."""

    case: Case
    plan: ParallelPlan
    step: StepTime
    tflops: float


def point(where: TargetMachine, trend: Trend, case: Case) -> Point:
    """Run a case.

    Raises:
        WorkloadError: its plan breaks a rule.
    """
    plan = rules.settle(trend.model, parallel_plan(case.plan), trend.framework)
    rules.check(trend.model, plan, trend.framework)
    step = step_time(where, trend.model, plan, trend.framework)
    done = training_flops(trend.model, plan.global_batch, plan.sequence, recompute=plan.recompute)
    return Point(case, plan, step, done / step.step_ps / plan.gpus)


def run(trend: Trend, cluster: str = "selene") -> list[Point]:
    """All cases of a trend, on as many GPUs of the cluster as each has."""
    own = clusters.find(cluster)
    times = ComputeTimes(find_gpu(own.gpu), pace=IN_STEPS)
    sites: dict[int, TargetMachine] = {}
    points = []
    for case in trend.cases:
        gpus = parallel_plan(case.plan).gpus
        if gpus not in sites:
            sites = {gpus: site(own, gpus, times, network_keys=NETWORK)}
        points.append(point(sites[gpus], trend, case))
        print(line(points[-1]), flush=True)
    return points


def line(one: Point) -> str:
    """A point, for people."""
    published = f"{one.case.published:8.0f}" if one.case.published else 8 * " "
    shares = "  ".join(f"{name} {one.step.of(name):6.1%}" for name in _SHOWN)
    return f"{one.case.label:26s} {one.step.step_ps / 1e12:8.3f} s {one.tflops:7.1f} TFLOP/s {published}  {shares}"


def document(points: Sequence[Point]) -> list[dict[str, object]]:
    """Points as JSON."""
    return [
        {
            "label": one.case.label,
            "plan": str(one.plan),
            "step_s": one.step.step_ps / 1e12,
            "tflops": one.tflops,
            "published_tflops": one.case.published,
        }
        for one in points
    ]


def main() -> None:
    """Print the trends, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TRENDS)}; none = all")
    parser.add_argument("-o", "--out", metavar="FILE.json", help="the points as JSON")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(TRENDS))
    if unknown:
        parser.error(f"no trend {unknown[0]}; expected {', '.join(TRENDS)}")
    found = {}
    for name in given.names or TRENDS:
        print(f"{name}: {TRENDS[name].says}", flush=True)
        found[name] = document(run(TRENDS[name]))
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:  # noqa: PTH123 - a script
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
