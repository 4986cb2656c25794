"""Predict steps of models, plans and clusters, as tables in Markdown (docs/explanation/predictions.md, studies.md).

    python scripts/predictions.py [LIST ...] [--only NAME] [--exact] [-o predictions.json]

Each row is a closed-form step on a named cluster; long steps are extrapolated from two short ones, as in `nadi plan`.
The runs are in scripts/predictions.toml.
"""

import argparse
import functools
import json
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from nadi.inputs.units import PS_PER_S
from nadi.studies.planner.step import StepTime, TargetMachine, step_time, target_machine
from nadi.topologies import clusters
from nadi.workload.compute import IN_STEPS, ComputeTimes, find_gpu
from nadi.workload.generators.memory import does_not_fit
from nadi.workload.generators.models import Model, find, training_flops
from nadi.workload.generators.training import ParallelPlan, parallel_plan, rules

_AXES = ("tp", "cp", "ep", "dp", "pp")


class Run(NamedTuple):
    """A training run to predict: a row of predictions.toml."""

    name: str  # name of the row
    model: str  # name of a model of the library, or path of a file
    plan: str  # parallel plan as text, without the keys of `manner`
    cluster: str  # name of the cluster
    manner: str = ""  # name of further keys of the plan; "" = none
    framework: rules.Framework = "megatron"  # training framework of the plan
    changes: Mapping[str, Any] = MappingProxyType({})  # keys of the model to replace
    network: Mapping[str, Any] = MappingProxyType({})  # keys of [network]
    published: float | None = None  # published TFLOP/s of a GPU; None if there is no number


_LISTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MANNERS: dict[str, str] = {"": "", **_LISTS.pop("manners")}
"""Keys of plans by manner."""
TITLES: dict[str, str] = {name: each.pop("title") for name, each in _LISTS.items()}
"""Title of each list."""
LISTS = {name: tuple(Run(**each, **row) for row in each.pop("rows")) for name, each in _LISTS.items()}
"""Runs of each list."""


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
    tflops: (
        float  # TFLOP/s of a GPU with recomputed operations and all query-key pairs counted, as Megatron-LM's papers do
    )
    does_not_fit: str  # reason why the plan does not fit in memory; "" = it fits
    took_s: float  # wall time of the prediction in seconds


def model_of(run: Run) -> Model:
    """Return the model of a run."""
    return find(run.model).model_copy(update=run.changes)


def settled(run: Run) -> ParallelPlan:
    """Return the settled plan of a run; WorkloadError, or TopologyError without a fabric for its number of GPUs."""
    model = model_of(run)
    plan = rules.settle(model, parallel_plan(",".join(filter(None, (run.plan, MANNERS[run.manner])))), run.framework)
    rules.check(model, plan, run.framework)
    clusters.find(run.cluster).topology(plan.gpus)
    return plan


@functools.lru_cache(maxsize=2)  # rows of the same machine follow each other
def _machine(cluster_name: str, gpus: int, network: tuple[tuple[str, Any], ...]) -> TargetMachine:
    """Return a number of GPUs of a cluster with keys of [network]."""
    cluster = clusters.find(cluster_name)
    times = ComputeTimes(find_gpu(cluster.gpu), pace=IN_STEPS.among(gpus), vendor_tables=False)
    return target_machine(cluster, gpus, times, network_keys=dict(network))


def predicted(run: Run, *, exact: bool = False) -> Prediction:
    """Return the predicted step of a run; exact: simulate all of it, do not extrapolate; raises what `settled` does."""
    start_s = time.perf_counter()
    plan, model = settled(run), model_of(run)
    gpu = find_gpu(clusters.find(run.cluster).gpu)
    machine = _machine(run.cluster, plan.gpus, tuple(run.network.items()))
    step = step_time(machine, model, plan, run.framework, exact=exact)
    seconds = step.step_ps / PS_PER_S
    peak_operations = gpu.peak_of(plan.dtype) * plan.gpus * seconds
    needed, done, needed_all, done_all = (
        training_flops(model, plan.global_batch, plan.sequence, recompute=recompute, causal=causal, lora=plan.lora)
        for causal in (True, False)
        for recompute in ("none", plan.recompute)
    )
    return Prediction(
        run=run,
        plan=plan,
        step=step,
        tokens_per_s=plan.global_batch * plan.sequence / seconds,
        mfu=needed / peak_operations,
        hfu=done / peak_operations,
        mfu_all_pairs=needed_all / peak_operations,
        tflops=done_all / plan.gpus / seconds / 1e12,
        does_not_fit=does_not_fit(model, plan, gpu.memory_bytes, run.framework),
        took_s=time.perf_counter() - start_s,
    )


def heading() -> str:
    """Return the first two lines of a Markdown table."""
    axes = " | ".join(_AXES)
    columns = (
        f"| run | cluster | GPUs | plan | step (s) | tokens/s | MFU | HFU | all pairs | TFLOP/s | {axes} | bubble |"
    )
    return f"{columns}\n|{' --- |' * (11 + len(_AXES))}"


def line(row: Prediction) -> str:
    """Return a prediction as a row of a Markdown table."""
    shares = " | ".join(f"{share:.1%}" if (share := row.step.of(axis)) else "-" for axis in (*_AXES, "bubble"))
    published = f" ({row.run.published:g} published)" if row.run.published else ""
    return (
        f"| {row.run.name} | {row.run.cluster} | {row.plan.gpus:,} | {row.run.plan} | "
        f"{row.step.step_ps / PS_PER_S:.3f} | {row.tokens_per_s:,.0f} | {row.mfu:.1%} | {row.hfu:.1%} | "
        f"{row.mfu_all_pairs:.1%} | {row.tflops:.1f}{published} | {shares} |"
    )


def document(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON."""
    return {
        **prediction.run._asdict(),
        "changes": dict(prediction.run.changes),
        "network": dict(prediction.run.network),
        "plan": str(prediction.plan),
        "gpus": prediction.plan.gpus,
        "step_s": prediction.step.step_ps / PS_PER_S,
        "tokens_per_s": prediction.tokens_per_s,
        "mfu": prediction.mfu,
        "hfu": prediction.hfu,
        "mfu_all_pairs": prediction.mfu_all_pairs,
        "tflops": prediction.tflops,
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
        print(f"{name}: {TITLES[name]}\n\n{heading()}", flush=True)
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
