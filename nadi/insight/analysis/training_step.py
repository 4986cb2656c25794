"""Metrics of a training step: time by axis, tokens per second, and model FLOP utilisation."""

from typing import Any, NamedTuple

from nadi.inputs.arrays import Int64
from nadi.inputs.units import PS_PER_S
from nadi.insight.analysis.done_steps import DoneSteps
from nadi.insight.analysis.step_times import CATEGORIES
from nadi.simulation.run import FinishedRun


class Throughput(NamedTuple):
    """Throughput of a run's training steps; fractions are of the peak of the plan's GPUs for the plan's data type.

    Of attention's pairs of query and key, those that a causal mask leaves count, about half (FlashAttention, arXiv
    2205.14135). With `all_pairs`, all count, as in Megatron-LM's papers (arXiv 2104.04473) and PaLM's definition of MFU
    (arXiv 2204.02311, appendix B).
    """

    steps: int  # number of optimizer steps
    time_ps: float  # mean time of a step
    tokens_per_s: float  # training tokens per second over all replicas
    model_flops: int  # floating-point operations that a step needs without recomputation
    hardware_flops: int  # model_flops plus the operations of recomputation
    mfu: float | None  # model_flops over the peak; None if the GPU is not known
    hfu: float | None  # hardware_flops over the peak
    model_flops_all_pairs: int
    mfu_all_pairs: float | None
    hfu_all_pairs: float | None


def throughput(simulation: FinishedRun, so_far: DoneSteps | None = None) -> Throughput | None:
    """Return the throughput of a run that simulates a model; None for other runs and for runs that take no time.

    `so_far`: Steps that a run which is not over has done.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        so_far: Steps that a run which is not over has done; None = the run is over.
    """
    found, results = simulation.training, simulation.results
    finish_ps = results.finish_time_ps if results.snapshot_ps is None else so_far.end_ps if so_far else 0
    if found is None or finish_ps == 0:
        return None
    from nadi.workload.generators.models import training_flops

    model, plan, peak, iterations = found
    steps = so_far.steps if so_far else plan.steps * iterations
    step_s = finish_ps / steps / PS_PER_S
    batch, tokens = plan.global_batch, plan.sequence
    needed, needed_all = (
        training_flops(model, batch, tokens, causal=causal, lora=plan.lora) for causal in (True, False)
    )
    done, done_all = (
        training_flops(model, batch, tokens, recompute=plan.recompute, causal=causal, lora=plan.lora)
        for causal in (True, False)
    )
    # operations that the GPUs could have done at their peak in the time of a step
    could = None if peak is None else peak * plan.gpus * step_s
    return Throughput(
        steps=steps,
        time_ps=finish_ps / steps,
        tokens_per_s=plan.global_batch * plan.sequence / step_s,
        model_flops=needed,
        hardware_flops=done,
        mfu=None if could is None else needed / could,
        hfu=None if could is None else done / could,
        model_flops_all_pairs=needed_all,
        mfu_all_pairs=None if could is None else needed_all / could,
        hfu_all_pairs=None if could is None else done_all / could,
    )


def document(simulation: FinishedRun, times: Int64 | None, so_far: DoneSteps | None = None) -> dict[str, Any]:
    """Return the `step` table of summary.json.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        times: int64[npus, len(CATEGORIES)], time of each NPU by category in ps; None = no name has an axis.
        so_far: Steps that a run which is not over has done; None = the run is over.
    """
    fields: dict[str, Any] = {}
    rates = throughput(simulation, so_far)
    # runs without a model have times, but no rates
    if rates is not None:
        fields |= {key: value for key, value in rates._asdict().items() if value is not None}
    if times is not None:
        busy = at_work(times)
        fields["npus"] = len(busy)
        fields |= {f"{name}_ps": float(value) for name, value in zip(CATEGORIES, busy.mean(axis=0), strict=True)}
    return fields


def at_work(times: Int64) -> Int64:
    """Return the rows of NPUs that have any work.

    Args:
        times: int64[npus, len(CATEGORIES)], time of each NPU by category in ps.
    """
    # NPUs without work would lower all means
    busy = times[times[:, : CATEGORIES.index("idle")].sum(axis=1) > 0]
    return busy if len(busy) else times
