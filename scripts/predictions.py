"""Predict steps of models, plans and clusters, as tables in Markdown (docs/explanation/predictions.md).

    python scripts/predictions.py [LIST ...] [--only NAME] [--exact] [-o predictions.json]

Each row is a closed-form step on a named cluster; long steps are extrapolated from two short ones, as in `nadi plan`.
To predict another run, add a row to `LISTS`.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inputs.units import PS_PER_S
from nadi.studies.planner.step import StepTime, step_time, target_machine
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
_THEN_DDP = f"{_THEN},overlap_grad_reduce=true"
_THEN_PIPELINED = f"{_THEN},overlap_grad_reduce=false,scatter_gather=true"
_TODAY = "sp,zero1"
_SELECTIVE = "sp,recompute=selective,attention=unfused,dtype=fp16,grad_dtype=fp16"


class Run(NamedTuple):
    """A training run to predict."""

    name: str  # name of the row
    model: str  # name of a model of the library, or path of a file
    plan: str  # parallel plan as text
    cluster: str  # name of the cluster
    framework: rules.Framework = "megatron"  # training framework of the plan
    gpu: str = ""  # name of the GPU in place of the cluster's; "" = the cluster's


_MEGATRON = (
    ("megatron-1.7b", "dp32,mb16,gb512", _THEN_DDP),
    ("megatron-3.6b", "tp2,dp32,mb16,gb512", _THEN_DDP),
    ("megatron-7.5b", "tp4,dp32,mb16,gb512", _THEN_DDP),
    ("megatron-18.4b", "tp8,dp32,mb8,gb1024", _THEN_DDP),
    ("megatron-39.1b", "tp8,pp2,dp32,mb4,gb1536", _THEN_PIPELINED),
    ("megatron-76.1b", "tp8,pp4,dp32,vpp3,mb2,gb1792", _THEN_PIPELINED),
    ("megatron-145.6b", "tp8,pp8,dp24,vpp2,mb2,gb2304", _THEN_PIPELINED),
    ("megatron-310.1b", "tp8,pp16,dp15,vpp2,mb1,gb2160", _THEN_PIPELINED),
    ("megatron-529.6b", "tp8,pp35,dp9,vpp3,mb1,gb2520", _THEN_PIPELINED),
    ("megatron-1t", "tp8,pp64,dp6,mb1,gb3072", _THEN_PIPELINED),
)
_GPT_2021 = "GPT-3 175B on 1,024 A100, Megatron-LM of 2021"
_OPT = "tp8,dp124,zero3,mb8,gb992,recompute=full,attention=unfused,dtype=fp16,grad_dtype=fp16"
_BLOOM = "tp4,pp12,dp8,mb2,gb2048,uneven,zero1,recompute=full,attention=unfused"
_LLAMA_LONG = "tp8,pp16,vpp8,cp16,dp8,gb128,seq131072,sp,uneven,zero1,context=all-gather"
_DEEPSEEK = "pp16,dp128,ep64,dualpipe,gb15360,seq4096,zero1,fp8,uneven"
_TRAINING = (
    Run(_GPT_2021, "gpt3-175b", f"tp8,pp16,vpp3,dp8,gb1536,{_THEN_PIPELINED}", "selene"),
    Run("MT-NLG 530B on 2,240 A100", "megatron-529.6b", f"tp8,pp35,dp8,gb1920,{_THEN_PIPELINED}", "selene"),
    Run("MT-NLG 530B on 3,360 A100", "megatron-529.6b", f"tp8,pp35,dp12,gb1920,{_THEN_PIPELINED}", "selene"),
    Run("GPT 175B on 64 A100, sequence parallel", "gpt3-175b", f"tp8,pp8,vpp3,gb64,{_SELECTIVE}", "selene"),
    Run("GPT 530B on 280 A100, sequence parallel", "megatron-529.6b", f"tp8,pp35,vpp3,gb280,{_SELECTIVE}", "selene"),
    Run("GPT 1T on 512 A100, sequence parallel", "megatron-1t", f"tp8,pp64,gb512,{_SELECTIVE}", "selene"),
    Run("BLOOM 176B on 384 A100", "bloom-176b", _BLOOM, "selene"),
    Run("OPT 175B on 992 A100", "gpt3-175b", _OPT, "selene", "fsdp"),
    Run("Nemotron-4 340B on 1,536 H100", "nemotron4-340b", "tp8,pp12,vpp8,dp16,gb768,sp,zero1", "dgx-h100-superpod"),
    Run("Nemotron-4 340B on 6,144 H100", "nemotron4-340b", "tp8,pp12,vpp8,dp64,gb2304,sp,zero1", "dgx-h100-superpod"),
    Run("Llama 3 405B on 8,192 H100", "llama3-405b", "tp8,pp16,vpp8,dp64,gb2048,sp,uneven,zero1", "llama3-24k"),
    Run("Llama 3 405B on 16,384 H100", "llama3-405b", "tp8,pp16,vpp8,dp128,gb2048,sp,uneven,zero1", "llama3-24k"),
    Run("Llama 3 405B, 131,072 tokens, 16,384 H100", "llama3-405b", _LLAMA_LONG, "llama3-24k"),
    Run("DeepSeek-V3 on 2,048 H800", "deepseek-v3", _DEEPSEEK, "deepseek-h800"),
)
_STEPS_H100 = ((2, 576), (8, 144), (19, 64), (20, 56), (32, 40), (64, 24))
_STEPS_GB200 = ((4, 112), (32, 24), (39, 24))
_STEPS_FP4 = ((8, 144), (40, 24), (80, 16))
"""Replicas, and micro-batches of each, of Llama 3.1 405B."""
_FSDP_2023 = ",software=fsdp-2023"
_FP8 = "fp8,software=megatron-mlperf,defer_embedding_wgrad=50"
_GRAPHS = "software=megatron-mlperf-graphs,defer_embedding_wgrad=50"
_H100, _H200, _B200 = "dgx-h100-superpod", "dgx-h200-superpod", "dgx-b200-superpod"


def _llama(name: str, cluster: str, tp: int, dp: int, micro_batches: int, rest: str) -> Run:
    """Return a step of Llama 3.1 405B with pp8, cp2 and vpp8, as in the configurations of NVIDIA's submissions."""
    plan = f"tp{tp},pp8,cp2,vpp8,dp{dp},mb1,gb{dp * micro_batches},uneven,{rest}"
    return Run(f"405B, {name}", "llama3-405b", plan, cluster)


_MLPERF = (
    *(_llama(f"FP8, {128 * dp:,} H100", _H100, 8, dp, n, _FP8) for dp, n in _STEPS_H100),
    *(_llama(f"FP8, {64 * dp:,} GB200", "gb200-nvl72", 4, dp, n, f"fp8,{_GRAPHS}") for dp, n in _STEPS_GB200),
    *(_llama(f"FP4, {64 * dp:,} GB200", "gb200-nvl72", 4, dp, n, f"fp4,{_GRAPHS}") for dp, n in _STEPS_FP4),
    _llama("FP4, 256 GB300", "gb300-nvl72", 2, 8, 144, f"fp4,{_GRAPHS}"),
    _llama("FP4, 512 GB300", "gb300-nvl72", 2, 16, 72, f"fp4,{_GRAPHS}"),
    _llama("FP8, 512 H200", _H200, 8, 4, 288, _FP8),
    _llama("FP8, 512 B200", _B200, 4, 8, 112, f"fp8,{_GRAPHS}"),
    *(
        Run(f"175B, FP8, {32 * dp:,} H100", "gpt3-175b", f"tp4,pp8,vpp6,dp{dp},mb2,gb2048,{_FP8}", _H100)
        for dp in (32, 64)
    ),
    Run("175B, FP8, 10,752 H100", "gpt3-175b", f"tp4,pp6,vpp8,dp448,mb1,gb2688,fp8,{_GRAPHS}", _H100),
    Run("175B, FP8, 11,616 H100", "gpt3-175b", f"tp4,pp6,vpp8,dp484,mb1,gb2904,fp8,{_GRAPHS}", _H100),
    *(
        Run(
            f"MPT-{size}, {gpus} A100",
            f"mpt-{size}",
            f"dp{gpus},mb{mb},gb{gpus * mb}{_FSDP_2023}{rest}",
            "selene",
            "fsdp",
        )
        for size, mb, rest in (("1b", 10, ""), ("7b", 18, ",recompute=full"), ("13b", 16, ",recompute=full"))
        for gpus in (8, 64, 256, 512)
    ),
)
_LORA_HOPPER = {gpus: f"tp4,cp2,dp{gpus // 8},gb{gpus // 8}" for gpus in (64, 512, 1024)}
_LORA_BLACKWELL = {8: "dp8,gb8", **{gpus: f"cp8,dp{gpus // 8},gb{gpus // 8}" for gpus in (64, 512, 1024)}}
_LORA = {
    "H100": (_H100, {8: "tp4,dp2,gb8", **_LORA_HOPPER}),
    "H200": (_H200, {8: "cp2,dp4,gb8", **_LORA_HOPPER}),
    "B200": (_B200, _LORA_BLACKWELL),
    "GB200": ("gb200-nvl72", _LORA_BLACKWELL),
    "GB300": ("gb300-nvl72", _LORA_BLACKWELL),
}
"""Cluster, and plan by number of GPUs, of Llama 2 70B LoRA by GPU."""
_LORA_RUNS = tuple(
    Run(
        f"70B LoRA, {gpus:,} {gpu}",
        "llama2-70b",
        f"{plan},seq8192,fp8,lora=16,software=megatron-mlperf{'' if gpu[0] == 'H' and gpus == 8 else '-graphs'}",
        cluster,
    )
    for gpu, (cluster, plans) in _LORA.items()
    for gpus, plan in plans.items()
)
LISTS: dict[str, tuple[Run, ...]] = {
    "megatron-then": tuple(Run(model, model, f"{plan},{then}", "dgx-h100-superpod") for model, plan, then in _MEGATRON),
    "megatron-today": tuple(Run(model, model, f"{plan},{_TODAY}", "dgx-h100-superpod") for model, plan, _ in _MEGATRON),
    "training-runs": _TRAINING,
    "mlperf": _MLPERF,
    "mlperf-lora": _LORA_RUNS,
}
"""Tables of docs/explanation/predictions.md; `mlperf` has the steps of MLPerf and LLM Foundry."""


class Prediction(NamedTuple):
    """A row of a table."""

    run: Run  # training run that was predicted
    plan: ParallelPlan  # settled parallel plan
    step: StepTime  # step time and its breakdown
    tokens_per_s: float  # throughput of all GPUs together in tokens per second
    # model operations over the peak of all GPUs in the plan's data type, 0 to 1; attention counts the query-key pairs
    # that a causal mask leaves
    mfu: float
    hfu: float  # same ratio with recomputed operations
    mfu_all_pairs: float  # MFU with all query-key pairs counted
    does_not_fit: str  # reason why the plan does not fit in memory; "" = it fits
    took_s: float  # wall time of the prediction in seconds


def settled(run: Run) -> ParallelPlan:
    """Return the settled plan of a run; WorkloadError, or TopologyError without a fabric for its number of GPUs."""
    model = find(run.model)
    plan = rules.settle(model, parallel_plan(run.plan), run.framework)
    rules.check(model, plan, run.framework)
    clusters.find(run.cluster).topology(plan.gpus)
    return plan


def predicted(run: Run, *, exact: bool = False) -> Prediction:
    """Return the predicted step of a run; exact: simulate all of it, do not extrapolate; raises what `settled` does."""
    start_s = time.perf_counter()
    plan, model, cluster = settled(run), find(run.model), clusters.find(run.cluster)
    gpu = find_gpu(run.gpu or cluster.gpu)
    machine = target_machine(cluster, plan.gpus, ComputeTimes(gpu, pace=IN_STEPS, vendor_tables=False))
    step = step_time(machine, model, plan, run.framework, exact=exact)
    seconds = step.step_ps / PS_PER_S
    peak_operations = gpu.peak_of(plan.dtype) * plan.gpus * seconds
    batch, tokens = plan.global_batch, plan.sequence
    model_operations, all_operations = (
        training_flops(model, batch, tokens, recompute=recompute, causal=True, lora=plan.lora)
        for recompute in ("none", plan.recompute)
    )
    return Prediction(
        run=run,
        plan=plan,
        step=step,
        tokens_per_s=plan.global_batch * plan.sequence / seconds,
        mfu=model_operations / peak_operations,
        hfu=all_operations / peak_operations,
        mfu_all_pairs=training_flops(model, batch, tokens, lora=plan.lora) / peak_operations,
        does_not_fit=does_not_fit(model, plan, gpu.memory_bytes, run.framework),
        took_s=time.perf_counter() - start_s,
    )


def heading() -> str:
    """Return the first two lines of a Markdown table."""
    axes = " | ".join(_AXES)
    columns = f"| run | cluster | GPUs | plan | step (s) | tokens/s | MFU | HFU | all pairs | {axes} | bubble |"
    return f"{columns}\n|{' --- |' * (10 + len(_AXES))}"


def line(row: Prediction) -> str:
    """Return a prediction as a row of a Markdown table."""
    shares = " | ".join(f"{share:.1%}" if (share := row.step.of(axis)) else "-" for axis in (*_AXES, "bubble"))
    return (
        f"| {row.run.name} | {row.run.cluster} | {row.plan.gpus:,} | {_shown(row.run.plan)} | "
        f"{row.step.step_ps / PS_PER_S:.3f} | {row.tokens_per_s:,.0f} | {row.mfu:.1%} | {row.hfu:.1%} | "
        f"{row.mfu_all_pairs:.1%} | {shares} |"
    )


def _shown(plan_text: str) -> str:
    """Return a plan's text without the parts that all rows of a list share."""
    parts = [part for part in plan_text.split(",") if part not in {*_THEN.split(","), *_TODAY.split(",")}]
    return ",".join(part for part in parts if "overlap_grad_reduce" not in part and "scatter_gather" not in part)


def document(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON."""
    return {
        **prediction.run._asdict(),
        "plan": str(prediction.plan),
        "gpus": prediction.plan.gpus,
        "step_s": prediction.step.step_ps / PS_PER_S,
        "tokens_per_s": prediction.tokens_per_s,
        "mfu": prediction.mfu,
        "hfu": prediction.hfu,
        "mfu_all_pairs": prediction.mfu_all_pairs,
        "shares": {axis: prediction.step.of(axis) for axis in ("compute", *_AXES, "bubble")},
        "is_whole": prediction.step.is_whole,
        "does_not_fit": prediction.does_not_fit,
        "took_s": prediction.took_s,
    }


def chosen_runs(names: Sequence[str], run_name: str | None) -> Iterator[tuple[str, list[Run]]]:
    """Yield the named lists, all without names, with their runs, or only that of run_name."""
    for name in names or LISTS:
        runs = [run for run in LISTS[name] if run_name in (None, run.name)]
        if runs:
            yield name, runs


def main() -> None:
    """Print the tables, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"lists: {', '.join(LISTS)}; default: all")
    parser.add_argument("--only", metavar="NAME", help="name of the only run to predict")
    parser.add_argument(
        "--exact", action="store_true", help="simulate whole steps instead of extrapolating from two short ones"
    )
    parser.add_argument("-o", "--out", metavar="FILE.json", help="file for the rows as JSON")
    args = parser.parse_args()
    unknown = sorted(set(args.lists) - set(LISTS))
    if unknown:
        parser.error(f"no list {unknown[0]}; expected {', '.join(LISTS)}")
    chosen = dict(chosen_runs(args.lists, args.only))
    for run in (run for runs in chosen.values() for run in runs):
        try:
            settled(run)
        except ValueError as error:
            parser.exit(2, f"{parser.prog}: error: {run.name}: {error}\n")
    documents: dict[str, list[dict[str, Any]]] = {}
    for name, runs in chosen.items():
        print(f"{name}:\n\n{heading()}", flush=True)
        rows = []
        for run in runs:
            rows.append(predicted(run, exact=args.exact))
            print(line(rows[-1]), flush=True)
        documents[name] = [document(row) for row in rows]
        print()
        for row in rows:
            if row.does_not_fit:
                print(f"{row.run.name} {row.does_not_fit}\n")
    if args.out:
        Path(args.out).write_text(json.dumps(documents, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
