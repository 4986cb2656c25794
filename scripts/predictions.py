"""Predict steps of models, plans and clusters, as tables in Markdown (docs/explanation/predictions.md).

    python scripts/predictions.py [LIST ...] [--only NAME] [--exact] [-o predictions.json]

Each row is a step at closed forms on a cluster by name; long steps are told by two short ones (`nadi plan` does the
same). A further run is a row of `LISTS`.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from inputs.units import PS_PER_S
from nadi.studies.planner.step import StepTime, site, step_time
from topologies import clusters
from workload.compute import IN_STEPS, ComputeTimes, find_gpu
from workload.generators.memory import does_not_fit
from workload.generators.models import find, training_flops
from workload.generators.training import ParallelPlan, parallel_plan, rules

_AXES = ("tp", "cp", "ep", "dp", "pp")
_THEN = (
    "recompute=full,attention=unfused,dtype=fp16,grad_dtype=fp16,async_tp=false,fused_accumulation=false,"
    "overlap_p2p=false"
)
_TODAY = "sp,zero1"


class Run(NamedTuple):
    """What is predicted.

    Attributes:
        name: of the row.
        model: a name of the library, or a file.
        plan: as users write it.
        cluster: by name.
        framework: by which.
        gpu: in place of the cluster's, "" = that.
    """

    name: str
    model: str
    plan: str
    cluster: str
    framework: rules.Framework = "megatron"
    gpu: str = ""


_MEGATRON = (
    ("megatron-1.7b", "dp32,mb16,gb512", "overlap_grad_reduce=true"),
    ("megatron-3.6b", "tp2,dp32,mb16,gb512", "overlap_grad_reduce=true"),
    ("megatron-7.5b", "tp4,dp32,mb16,gb512", "overlap_grad_reduce=true"),
    ("megatron-18.4b", "tp8,dp32,mb8,gb1024", "overlap_grad_reduce=true"),
    ("megatron-39.1b", "tp8,pp2,dp32,mb4,gb1536", "overlap_grad_reduce=false,scatter_gather=true"),
    ("megatron-76.1b", "tp8,pp4,dp32,vpp3,mb2,gb1792", "overlap_grad_reduce=false,scatter_gather=true"),
    ("megatron-145.6b", "tp8,pp8,dp24,vpp2,mb2,gb2304", "overlap_grad_reduce=false,scatter_gather=true"),
    ("megatron-310.1b", "tp8,pp16,dp15,vpp2,mb1,gb2160", "overlap_grad_reduce=false,scatter_gather=true"),
    ("megatron-529.6b", "tp8,pp35,dp9,vpp3,mb1,gb2520", "overlap_grad_reduce=false,scatter_gather=true"),
    ("megatron-1t", "tp8,pp64,dp6,mb1,gb3072", "overlap_grad_reduce=false,scatter_gather=true"),
)
_TRAINING = (
    Run(
        "GPT-3 175B on 1,024 A100, Megatron-LM of 2021",
        "gpt3-175b",
        f"tp8,pp16,vpp3,dp8,gb1536,{_THEN},overlap_grad_reduce=false,scatter_gather=true",
        "selene",
    ),
    Run(
        "MT-NLG 530B on 2,240 A100",
        "megatron-529.6b",
        f"tp8,pp35,dp8,gb1920,{_THEN},overlap_grad_reduce=false,scatter_gather=true",
        "selene",
    ),
    Run(
        "MT-NLG 530B on 3,360 A100",
        "megatron-529.6b",
        f"tp8,pp35,dp12,gb1920,{_THEN},overlap_grad_reduce=false,scatter_gather=true",
        "selene",
    ),
    Run(
        "GPT 175B on 64 A100, sequence parallel",
        "gpt3-175b",
        "tp8,pp8,vpp3,gb64,sp,recompute=selective,attention=unfused,dtype=fp16,grad_dtype=fp16",
        "selene",
    ),
    Run(
        "GPT 530B on 280 A100, sequence parallel",
        "megatron-529.6b",
        "tp8,pp35,vpp3,gb280,sp,recompute=selective,attention=unfused,dtype=fp16,grad_dtype=fp16",
        "selene",
    ),
    Run(
        "GPT 1T on 512 A100, sequence parallel",
        "megatron-1t",
        "tp8,pp64,gb512,sp,recompute=selective,attention=unfused,dtype=fp16,grad_dtype=fp16",
        "selene",
    ),
    Run(
        "BLOOM 176B on 384 A100",
        "bloom-176b",
        "tp4,pp12,dp8,mb2,gb2048,uneven,zero1,recompute=full,attention=unfused",
        "selene",
    ),
    Run(
        "OPT 175B on 992 A100",
        "gpt3-175b",
        "tp8,dp124,zero3,mb8,gb992,recompute=full,attention=unfused,dtype=fp16,grad_dtype=fp16",
        "selene",
        "fsdp",
    ),
    Run("Nemotron-4 340B on 1,536 H100", "nemotron4-340b", "tp8,pp12,vpp8,dp16,gb768,sp,zero1", "dgx-h100-superpod"),
    Run("Nemotron-4 340B on 6,144 H100", "nemotron4-340b", "tp8,pp12,vpp8,dp64,gb2304,sp,zero1", "dgx-h100-superpod"),
    Run("Llama 3 405B on 8,192 H100", "llama3-405b", "tp8,pp16,vpp8,dp64,gb2048,sp,uneven,zero1", "llama3-24k"),
    Run("Llama 3 405B on 16,384 H100", "llama3-405b", "tp8,pp16,vpp8,dp128,gb2048,sp,uneven,zero1", "llama3-24k"),
    Run(
        "Llama 3 405B, 131,072 tokens, 16,384 H100",
        "llama3-405b",
        "tp8,pp16,vpp8,cp16,dp8,gb128,seq131072,sp,uneven,zero1,context=all-gather",
        "llama3-24k",
    ),
    Run(
        "DeepSeek-V3 on 2,048 H800",
        "deepseek-v3",
        "pp16,dp128,ep64,dualpipe,gb15360,seq4096,zero1,fp8,uneven",
        "deepseek-h800",
    ),
)
LISTS: dict[str, tuple[Run, ...]] = {
    "megatron-then": tuple(
        Run(model, model, f"{plan},{_THEN},{reduction}", "dgx-h100-superpod") for model, plan, reduction in _MEGATRON
    ),
    "megatron-today": tuple(Run(model, model, f"{plan},{_TODAY}", "dgx-h100-superpod") for model, plan, _ in _MEGATRON),
    "training-runs": _TRAINING,
}
"""Tables of docs/explanation/predictions.md; those of well-known training runs are the last."""


class Prediction(NamedTuple):
    """A row of a table.

    Attributes:
        run: what.
        plan: settled.
        step: its time.
        tokens_per_s: of all GPUs.
        mfu: operations that the model needs over the peak of all GPUs, in the plan's data type, 0 to 1; of attention's
            pairs of query and key those that a causal mask leaves.
        hfu: the same with what is worked out again.
        mfu_all_pairs: mfu with all pairs.
        does_not_fit: why the plan does not fit in memory, "" = it does.
        took_s: to predict.
    """

    run: Run
    plan: ParallelPlan
    step: StepTime
    tokens_per_s: float
    mfu: float
    hfu: float
    mfu_all_pairs: float
    does_not_fit: str
    took_s: float


def settled(run: Run) -> ParallelPlan:
    """Its plan.

    Raises:
        WorkloadError: the model is not known, or its plan breaks a rule.
        TopologyError: the cluster has no fabric of so many GPUs.
    """
    model = find(run.model)
    plan = rules.settle(model, parallel_plan(run.plan), run.framework)
    rules.check(model, plan, run.framework)
    clusters.find(run.cluster).topology(plan.gpus)
    return plan


def predicted(run: Run, *, exact: bool = False) -> Prediction:
    """Predict one.

    Raises:
        WorkloadError, TopologyError: as `settled`.
    """
    begun = time.perf_counter()
    plan, model, cluster = settled(run), find(run.model), clusters.find(run.cluster)
    gpu = find_gpu(run.gpu or cluster.gpu)
    where = site(cluster, plan.gpus, ComputeTimes(gpu, pace=IN_STEPS))
    step = step_time(where, model, plan, run.framework, exact=exact)
    seconds = step.step_ps / PS_PER_S
    could = gpu.peak_of(plan.dtype) * plan.gpus * seconds
    batch, tokens = plan.global_batch, plan.sequence
    needed, done = (
        training_flops(model, batch, tokens, recompute=again, causal=True) for again in ("none", plan.recompute)
    )
    return Prediction(
        run=run,
        plan=plan,
        step=step,
        tokens_per_s=plan.global_batch * plan.sequence / seconds,
        mfu=needed / could,
        hfu=done / could,
        mfu_all_pairs=training_flops(model, batch, tokens) / could,
        does_not_fit=does_not_fit(model, plan, gpu.memory_bytes, run.framework),
        took_s=time.perf_counter() - begun,
    )


def heading() -> str:
    """The first two lines of a table in Markdown."""
    axes = " | ".join(_AXES)
    columns = f"| run | cluster | GPUs | plan | step (s) | tokens/s | MFU | HFU | all pairs | {axes} | bubble |"
    return f"{columns}\n|{' --- |' * (10 + len(_AXES))}"


def line(row: Prediction) -> str:
    """A row in Markdown."""
    shares = " | ".join(_percent(row.step.of(axis)) for axis in (*_AXES, "bubble"))
    return (
        f"| {row.run.name} | {row.run.cluster} | {row.plan.gpus:,} | {_shown(row.run.plan)} | "
        f"{row.step.step_ps / PS_PER_S:.3f} | {row.tokens_per_s:,.0f} | {row.mfu:.1%} | {row.hfu:.1%} | "
        f"{row.mfu_all_pairs:.1%} | {shares} |"
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if share else "-"


def _shown(plan: str) -> str:
    """A plan without what a whole list has in common."""
    parts = [part for part in plan.split(",") if part not in {*_THEN.split(","), *_TODAY.split(",")}]
    return ",".join(part for part in parts if "overlap_grad_reduce" not in part and "scatter_gather" not in part)


def document(row: Prediction) -> dict[str, Any]:
    """A row as JSON."""
    return {
        **row.run._asdict(),
        "plan": str(row.plan),
        "gpus": row.plan.gpus,
        "step_s": row.step.step_ps / PS_PER_S,
        "tokens_per_s": row.tokens_per_s,
        "mfu": row.mfu,
        "hfu": row.hfu,
        "mfu_all_pairs": row.mfu_all_pairs,
        "shares": {axis: row.step.of(axis) for axis in ("compute", *_AXES, "bubble")},
        "is_whole": row.step.is_whole,
        "does_not_fit": row.does_not_fit,
        "took_s": row.took_s,
    }


def asked(names: Sequence[str], only: str | None) -> Iterator[tuple[str, list[Run]]]:
    """Lists that have any, each with its chosen runs."""
    for name in names or LISTS:
        runs = [run for run in LISTS[name] if only in (None, run.name)]
        if runs:
            yield name, runs


def main() -> None:
    """Print the tables, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"of {', '.join(LISTS)}; none = all")
    parser.add_argument("--only", metavar="NAME", help="only the runs of this name")
    parser.add_argument("--exact", action="store_true", help="run whole steps, not two short ones")
    parser.add_argument("-o", "--out", metavar="FILE.json", help="the rows as JSON")
    given = parser.parse_args()
    unknown = sorted(set(given.lists) - set(LISTS))
    if unknown:
        parser.error(f"no list {unknown[0]}; expected {', '.join(LISTS)}")
    chosen = dict(asked(given.lists, given.only))
    for run in (run for runs in chosen.values() for run in runs):
        try:
            settled(run)
        except ValueError as error:
            parser.exit(2, f"{parser.prog}: error: {run.name}: {error}\n")
    found: dict[str, list[dict[str, Any]]] = {}
    for name, runs in chosen.items():
        print(f"{name}:\n\n{heading()}", flush=True)
        rows = []
        for run in runs:
            rows.append(predicted(run, exact=given.exact))
            print(line(rows[-1]), flush=True)
        found[name] = [document(row) for row in rows]
        print()
        for row in rows:
            if row.does_not_fit:
                print(f"{row.run.name} {row.does_not_fit}\n")
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:  # noqa: PTH123 - a script
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
