"""Rules for the parallel plans with which a model can be trained or served, and defaults for a plan's open fields.

Each rule's message is one line with the actual value, the expected value, and the nearest valid values. The rules are
those of the frameworks: Megatron-Core (megatron/training/arguments.py, core/transformer/transformer_config.py),
DeepSpeed (runtime/pipe/engine.py), DualPipe (github.com/deepseek-ai/DualPipe, dualpipe.py).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from nadi.inputs.limits import MAX_NPUS
from nadi.inputs.units import PS_PER_MS
from nadi.topologies import Graph
from nadi.workload.compute.gpu import Gpu
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import recomputation, stages
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.pipeline import schedule_of
from nadi.workload.generators.training.software import AUTO, profile

Framework = Literal["megatron", "deepspeed", "fsdp", "inference"]

_OPEN = {
    "global_batch": 0,
    "sequence": 0,
    "schedule": "auto",
    "dispatcher": "auto",
    "nvlink_domain": 0,
    "overlap_ep": None,
    "fused_experts": None,
}
"""Value of a plan's field that leaves the field open."""
_SPECIAL_FUNCTIONS = 16  # Number of exponentials per SM and clock of GPUs up to Blackwell
_HOST_GPUS = 8  # Maximum number of GPUs that NVLink connects in a host; more are a rack
_MICRO_BATCHES_PER_STAGE = 4
"""Micro-batches per stage of a step without a given global batch: the pipeline bubble is about a quarter."""


def settle(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> ParallelPlan:
    """Return the plan with all open fields set: sequence, global batch and schedule.

    Args:
        model: The architecture of the model.
        plan: The parallel plan.
        framework: The framework: "megatron", "deepspeed", "fsdp", or "inference" for serving.
    """
    # The global batch is the model's published one if all rules allow it, else 4 micro-batches per stage. FSDP implies
    # ZeRO-3 unless the plan sets zero. Sequence parallelism over one GPU is switched off, and so is `overlap_tp` with
    # FP4: NVIDIA's configurations have no userbuffers with NVFP4 (Megatron-Bridge, scripts/performance/configs/llama:
    # tp_comm_overlap; training_results_v5.1, llama31_405b: TP_COMM_OVERLAP).
    plan = _with_software(plan, framework)
    plan = plan.model_copy(
        update={
            "sequence": plan.sequence or model.sequence,
            "schedule": plan.pipeline_schedule,
            "sequence_parallel": plan.sequence_parallel and plan.tp > 1,
            "overlap_tp": plan.overlap_tp and plan.dtype != "fp4",
            "zero": 3 if framework == "fsdp" and plan.zero == 0 else plan.zero,
        }
    )
    if plan.global_batch:
        return plan
    # A published batch fits the cluster of its paper; on other numbers of GPUs it may break a rule
    published = plan.model_copy(update={"global_batch": model.global_batch})
    if model.global_batch and not any(_batch_rules(model, published, framework)):
        return published
    batch = plan.dp * plan.micro_batch * _MICRO_BATCHES_PER_STAGE * plan.pp
    return plan.model_copy(update={"global_batch": batch})


class TrainingMachine(NamedTuple):
    """What of a machine decides the keys of a plan that its user leaves open."""

    nvlink_domain: int = 8  # Number of consecutive GPUs that NVLink connects
    gpu: Gpu | None = None  # GPU that runs the work, None = unknown


ANY_MACHINE = TrainingMachine()
"""Hosts of 8 GPUs of an unknown kind."""


def machine_of(graph: Graph, gpu: Gpu | None) -> TrainingMachine:
    """Return the machine of a fabric and its GPU.

    Args:
        graph: The fabric as a graph of nodes and links.
        gpu: The GPU that runs the work; None = unknown.
    """
    return TrainingMachine(int(np.count_nonzero(graph.host[: graph.npus] == graph.host[0])), gpu)


def on_machine(model: Model, plan: ParallelPlan, framework: Framework, machine: TrainingMachine) -> ParallelPlan:
    """Return a settled plan with the keys that the user left open and that depend on the machine.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        framework: The framework: "megatron", "deepspeed", "fsdp", or "inference" for serving.
        machine: The machine that the plan runs on.
    """
    if framework == "inference":
        return plan
    if machine.gpu is not None and machine.gpu.step_host_ps and "host_ms" not in plan.model_fields_set:
        plan = plan.model_copy(update={"host_ms": machine.gpu.step_host_ps / PS_PER_MS})
    if model.experts is None:
        return plan
    is_fused = machine.gpu is not None and machine.gpu.has_fused_experts and plan.dtype == "fp8"
    update: dict[str, Any] = {
        "fused_experts": is_fused and framework == "megatron" if plan.fused_experts is None else plan.fused_experts,
    }
    if plan.ep > 1:
        update |= _exchange(plan, framework, machine, is_fused=is_fused)
    # NVIDIA's recipes with fused experts have attention in FP8; latent attention, whose exponentials bound it, only on
    # Blackwell Ultra, which has twice as many (Megatron-Bridge 0.5, perf_recipes/deepseek: GB300 and not GB200)
    is_fast = model.latent is None or (machine.gpu is not None and machine.gpu.special_functions > _SPECIAL_FUNCTIONS)
    if update["fused_experts"] and plan.attention == "flash" and is_fast and plan.attention_dtype == AUTO:
        update["attention_dtype"] = "fp8"
    if update["fused_experts"] and "scaling" not in plan.model_fields_set:
        update["scaling"] = "mxfp8"  # of the fused products
    return plan.model_copy(update=update)


def _exchange(plan: ParallelPlan, framework: Framework, machine: TrainingMachine, *, is_fused: bool) -> dict[str, Any]:
    """Return the open keys of a plan that determine how experts' tokens are exchanged."""
    # NVIDIA's guide to dispatchers (Megatron-Bridge, skills/nemo-mbridge-perf-moe-dispatcher-selection): HybridEP where
    # NVLink connects a rack, else DeepEP. Its recipes (src/megatron/bridge/perf_recipes) overlap the exchange with
    # FP8 on Blackwell, whose steps are one CUDA graph, and where it crosses the network in interleaved pipelines.
    domain = plan.nvlink_domain or machine.nvlink_domain
    current = "deepep" if domain <= _HOST_GPUS else "hybridep"
    is_far = plan.ep * plan.etp > domain and plan.vpp > 1
    can_overlap = (
        _takes_pairs(plan) and framework == "megatron" and stages.micro_batches(plan) > 1
    ) and not recomputation.repeats_exchange(plan.recompute)
    return {
        "nvlink_domain": domain,
        "dispatcher": (
            plan.dispatcher if plan.dispatcher != AUTO else current if framework == "megatron" else "all-to-all"
        ),
        "overlap_ep": (is_fused or is_far) and can_overlap if plan.overlap_ep is None else plan.overlap_ep,
    }


def _takes_pairs(plan: ParallelPlan) -> bool:
    """Return whether passes can run in pairs."""
    # Without chunks, a stage's pair waits for the next stage's, which waits for it: each would idle half of the time.
    return schedule_of(plan.pipeline_schedule).TAKES_PAIRS and (plan.pp == 1 or plan.vpp > 1)


def _with_software(plan: ParallelPlan, framework: Framework) -> ParallelPlan:
    """Return the plan with the defaults of its software profile in keys that the user did not set."""
    known = profile(plan.software, framework)
    defaults = {} if known is None else {k: v for k, v in known.plan.items() if k not in plan.model_fields_set}
    return plan.model_copy(update=defaults)


def is_open(field: str, value: object) -> bool:
    """Return whether a field's value leaves the field for `settle` to set, for example a global batch of 0.

    Args:
        field: The name of a field of ParallelPlan.
        value: The value of the field.
    """
    return field in _OPEN and _OPEN[field] == value


def check(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> None:
    """Check that a model can be trained or served with a plan. Raises WorkloadError: the plan breaks a rule.

    The message names the rule and the nearest valid values.

    Args:
        model: The architecture of the model.
        plan: The parallel plan.
        framework: The framework: "megatron", "deepspeed", "fsdp", or "inference" for serving.
    """
    broken = first_broken(model, plan, framework)
    if broken:
        raise WorkloadError(f"model {model.name}, plan {plan}: {broken}")


def first_broken(model: Model, plan: ParallelPlan, framework: Framework = "megatron") -> str:
    """Return the message of the first rule that a plan breaks; "" if it breaks no rule.

    Args:
        model: The architecture of the model.
        plan: The parallel plan.
        framework: The framework: "megatron", "deepspeed", "fsdp", or "inference" for serving.
    """
    settled = settle(model, plan, framework)
    return next((text for rule in _RULES for text in rule(model, settled, framework)), "")


def valid_values(model: Model, key: str) -> tuple[int, ...]:
    """Return the values of an axis that a model allows, regardless of other axes; empty if it sets no limit.

    Args:
        model: The architecture of the model.
        key: "tp", "etp", "ep", or "slots" for vpp * pp with equal numbers of layers per slot.
    """
    values: Iterable[int] = ()
    if key == "tp":
        values = (tp for tp in _divisors(model.heads) if not _tp_error(model, tp))
    elif key == "slots":
        values = _divisors(model.layers)
    elif model.experts is not None and key == "ep":
        values = _divisors(model.experts.count)
    elif model.experts is not None and key == "etp":
        values = _divisors(model.experts.ffn)
    return tuple(values)


def _tensor_rules(model: Model, plan: ParallelPlan, _framework: Framework) -> Iterator[str]:
    """Yield the broken rules for tensor parallelism of heads and matrices."""
    error = _tp_error(model, plan.tp)
    if error:
        yield f"tp is {plan.tp}, expected {error}; {_nearest(plan.tp, valid_values(model, 'tp'))}"


def _tp_error(model: Model, tp: int) -> str:
    """Return the expected values if a model does not allow a tensor-parallel size; "" if it does."""
    if model.heads % tp:
        return f"a divisor of the {model.heads} heads"
    # With more GPUs than heads of keys and values, tp / heads GPUs hold a copy of each
    if model.latent is None and model.key_value_heads % tp and tp % model.key_value_heads:
        return f"a divisor or a multiple of the {model.key_value_heads} heads of keys and values"
    experts = model.experts
    if model.ffn_width % tp and any(not model.has_experts(number) for number in range(model.layers)):
        return f"a divisor of ffn ({model.ffn_width})"
    if experts is not None and experts.shared_width % tp:
        return f"a divisor of the shared experts' width ({experts.shared_width})"
    return ""


def _expert_rules(model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for experts and their parallelism."""
    experts = model.experts
    if experts is None:
        for key in ("ep", "etp"):
            if getattr(plan, key) > 1:
                yield f"{key} is {getattr(plan, key)}, expected 1, as the model has no experts"
        for key in ("capacity", "imbalance"):
            if getattr(plan, key):
                yield f"{key} is {getattr(plan, key):g}, expected 0, as the model has no experts"
        return
    for key, total, unit in (("ep", experts.count, "experts"), ("etp", experts.ffn, "columns of an expert")):
        value = getattr(plan, key)
        if total % value:
            yield f"{key} is {value}, expected a divisor of the {total} {unit}; {_nearest(value, _divisors(total))}"
    # Experts divide the GPUs of a stage anew: groups of ep * etp GPUs, whatever tp and cp are in the other layers
    replicas, own = plan.tp * plan.cp * plan.dp, plan.ep * plan.etp
    if replicas % own:
        valid = [ep for ep in valid_values(model, "ep") if replicas % (ep * plan.etp) == 0]
        yield (
            f"ep * etp is {plan.ep} * {plan.etp}, expected a divisor of the {replicas} GPUs of a stage (tp * cp * dp); "
            + (_nearest(plan.ep, valid, "ep") if valid else "no ep is valid with this etp")
        )
    if framework == "megatron" and plan.tp > 1 and not plan.sequence_parallel:
        yield f"experts with tp {plan.tp} but without sequence parallelism, expected sp in the plan (Megatron's rule)"


def _exchange_rules(model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for the exchange of tokens between experts."""
    for key in ("overlap_ep", "fused_experts"):
        if getattr(plan, key) and model.experts is None:
            yield f"{key} is true, expected false, as the model has no experts"
        elif getattr(plan, key) and framework != "megatron":
            yield f"{key} with {framework}, expected false (only megatron has it)"
    if plan.overlap_ep and not schedule_of(plan.pipeline_schedule).TAKES_PAIRS:
        yield f"overlap_ep with schedule {plan.pipeline_schedule}, expected 1f1b or interleaved, or overlap_ep=false"
    elif plan.overlap_ep and not _takes_pairs(plan):
        yield f"overlap_ep with pp {plan.pp} and vpp 1, expected vpp above 1 (Megatron's rule), or overlap_ep=false"
    if plan.overlap_ep and recomputation.repeats_exchange(plan.recompute):  # Megatron-Core's transformer_config.py
        yield f"overlap_ep with recompute {plan.recompute}, expected neither moe nor full, or overlap_ep=false"
    if plan.fused_experts and plan.dtype != "fp8":
        yield f"fused_experts with {plan.dtype}, expected fp8, or fused_experts=false"


def _dispatch_rules(model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for the data type of tokens that are dispatched."""
    if plan.dispatch_dtype != "fp8":
        return
    actual = "dispatch_dtype is fp8 with"
    if model.experts is None:
        yield f"{actual} a model without experts, expected auto"
    elif framework == "inference":
        yield f"{actual} inference, expected auto"
    elif plan.dispatcher not in {"deepep", "hybridep"}:
        yield f"{actual} dispatcher {plan.dispatcher}, expected deepep or hybridep, or dispatch_dtype=auto"
    elif plan.dtype != "fp8":  # products in 16 bits would need another pass over the tokens
        yield f"{actual} dtype {plan.dtype}, expected fp8, or dispatch_dtype=auto"


def _pipeline_rules(model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for the pipeline's schedule and its stages."""
    schedule = plan.pipeline_schedule
    if schedule == "interleaved" and plan.vpp == 1:
        yield "the schedule is interleaved with vpp 1, expected vpp of 2 or more"
    if plan.vpp > 1 and not schedule_of(schedule).TAKES_VPP:
        yield f"vpp is {plan.vpp} with schedule {schedule}, expected vpp 1, or schedule interleaved"
    if plan.vpp > 1 and plan.pp == 1:
        yield f"vpp is {plan.vpp} with a single stage, expected pp of 2 or more, or vpp 1"
    if plan.vpp > 1 and framework in {"deepspeed", "inference"}:
        yield f"vpp is {plan.vpp}, expected 1 ({framework} has no interleaving)"
    if schedule == "dualpipe" and plan.pp % 2:
        yield f"pp is {plan.pp} with dualpipe, expected an even number of stages; {_around(plan.pp, 2)}"
    if framework == "deepspeed" and plan.pp > 1 and schedule not in {"1f1b", "interleaved"}:
        yield f"the schedule is {schedule}, expected 1f1b (DeepSpeed's only one)"
    yield from _layer_rules(model, plan)


def _layer_rules(model: Model, plan: ParallelPlan) -> Iterator[str]:
    """Yield the broken rules for layers per slot: none is empty, except the first and the last with `uneven`."""
    count = stages.slots(plan)
    actual = f"pp * vpp is {plan.pp} * {plan.vpp}" if plan.vpp > 1 else f"pp is {plan.pp}"
    # The first slot may hold only the embedding, the last one only the output layer
    maximum = model.layers + 2 if plan.uneven and plan.vpp > 1 else model.layers
    if count > maximum:
        yield f"{actual}, expected {maximum} at most, as the model has {model.layers} layers"
    elif not plan.uneven and model.layers % count:
        sizes = stages.layers_of_slots(model.layers, count, stages.layers_of_output(model))
        yield (
            f"{actual}, expected a divisor of the {model.layers} layers; {_nearest(count, _divisors(model.layers))}, "
            f"or uneven (from {min(sizes)} to {max(sizes)} layers)"
        )


def _sequence_rules(model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for the sequence length and context parallelism."""
    if model.positions == "learned" and plan.sequence > model.sequence:
        yield f"seq is {plan.sequence}, expected {model.sequence} at most, as the model learns its positions"
    if plan.cp > 1:
        if framework == "deepspeed" and plan.context != "a2a":
            yield f"context is {plan.context}, expected a2a (DeepSpeed's only one)"
        heads = plan.tp * plan.cp
        if plan.context == "a2a" and model.heads % heads:
            valid = _divisors(model.heads // plan.tp)
            yield (
                f"tp * cp is {plan.tp} * {plan.cp} with context=a2a, expected a divisor of the {model.heads} heads; "
                f"{_nearest(plan.cp, valid, 'cp')}"
            )
    # Each GPU of a ring has two parts, one from the front and one from the end of the sequence, so that a causal mask
    # leaves equal work to all (get_batch_on_this_cp_rank of Megatron-LM)
    parts = (1 if plan.context == "a2a" or plan.cp == 1 else 2) * plan.cp
    unit = parts * (plan.tp if plan.sequence_parallel else 1)
    if framework != "inference" and plan.sequence % unit:
        reasons = [f"{parts} parts of context parallelism"] * (plan.cp > 1) + [f"tp {plan.tp}"] * plan.sequence_parallel
        expected = f"a multiple of {unit} ({', '.join(reasons)})"
        yield f"seq is {plan.sequence}, expected {expected}; {_around(plan.sequence, unit)}"


def _batch_rules(_model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for the global batch and its micro-batches."""
    if framework == "inference":
        return
    unit = plan.dp * plan.micro_batch
    batch = plan.global_batch
    if batch % unit:
        yield (
            f"the global batch is {batch}, expected a multiple of dp * micro-batch ({plan.dp} * {plan.micro_batch}); "
            f"{_around(batch, unit)}"
        )
        return
    schedule, count = plan.pipeline_schedule, stages.micro_batches(plan)
    # Interleaving passes a group of pp micro-batches through a chunk before the next chunk
    if schedule == "interleaved" and count % plan.pp:
        yield (
            f"interleaving with {count} micro-batches, expected a multiple of the {plan.pp} stages; global batch: "
            f"{_around(batch, unit * plan.pp)}"
        )
    if schedule == "dualpipe" and (count % 2 or count < 2 * plan.pp):
        minimum = 2 * plan.pp
        yield (
            f"dualpipe with {count} micro-batches, expected an even number of at least {minimum} (2 pp); global batch: "
            + (_around(batch, 2 * unit) if count > minimum else f"nearest {minimum * unit}")
        )
    error = stages.pipeline_of(plan).complaint()
    if error:
        yield f"schedule {schedule}: {error}"


def _deferral_rules(model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules of Megatron-Core's ModelParallelConfig for defer_embedding_wgrad_compute."""
    # Multi-token prediction is refused as well, because its deferral is not modelled.
    if not plan.defer_embedding_wgrad:
        return
    actual = f"defer_embedding_wgrad is {plan.defer_embedding_wgrad}"
    if framework != "megatron":
        yield f"{actual} with {framework}, expected 0 (only megatron has it)"
    elif plan.pp == 1:
        yield f"{actual} with pp 1, expected pp of 2 or more, or 0"
    elif not plan.fused_accumulation:
        yield f"{actual} without fused_accumulation, expected fused_accumulation=true, or 0"
    elif plan.pipeline_schedule not in {"1f1b", "interleaved"}:
        yield f"{actual} with schedule {plan.pipeline_schedule}, expected 1f1b or interleaved, or 0"
    elif model.mtp_layers:
        yield f"{actual} with multi-token prediction, expected 0 (not modelled)"


def _adapter_rules(model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for LoRA's adapters."""
    if not plan.lora:
        return
    actual = f"lora is {plan.lora}"
    if framework != "megatron":
        yield f"{actual} with {framework}, expected 0 (only megatron has it)"
    elif plan.lora % plan.tp:
        yield f"{actual}, expected a multiple of tp; {_around(plan.lora, plan.tp)}"
    elif plan.pipeline_schedule in {"zero-bubble", "dualpipe"}:
        yield f"{actual} with schedule {plan.pipeline_schedule}, expected 1f1b, gpipe or interleaved, or 0"
    elif plan.defer_embedding_wgrad:
        yield f"{actual} with defer_embedding_wgrad, expected lora 0, or no deferral (frozen weights have no gradients)"
    elif model.latent is not None or model.mtp_layers:
        yield f"{actual} with latent attention or multi-token prediction, expected 0 (not modelled)"


def _sharding_rules(model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for ZeRO, offloading, recomputation, and the number of GPUs."""
    if framework == "megatron" and plan.zero > 1:
        yield f"zero is {plan.zero}, expected 0 or 1 (Megatron's distributed optimizer); deepspeed and fsdp have more"
    if framework == "inference" and plan.zero:
        yield f"zero is {plan.zero}, expected 0, as nothing is trained"
    if framework == "fsdp" and plan.zero not in {2, 3}:
        yield f"zero is {plan.zero}, expected 3, or 2 (parameters stay after the forward pass), as FSDP is ZeRO"
    yield from _hybrid_rules(model, plan, framework)
    # PipelineEngine refuses ZeRO-2 and ZeRO-3 (deepspeed/runtime/pipe/engine.py)
    if framework == "deepspeed" and plan.zero >= 2 and plan.pp > 1:
        yield f"zero is {plan.zero} with pp {plan.pp}, expected 0 or 1, or pp1 (DeepSpeed's rule)"
    if plan.gather == "list" and (framework != "deepspeed" or plan.zero != 3):
        yield f"gather is list with {framework} and zero {plan.zero}, expected tensor, or deepspeed and zero 3"
    if "parameters" in plan.offload and plan.zero != 3:
        yield f"parameters are offloaded with zero {plan.zero}, expected 3 (ZeRO-Infinity)"
    if framework == "inference" and plan.recompute != "none":
        yield f"recompute is {plan.recompute}, expected none, as nothing is trained"
    elif error := recomputation.complaint(model, plan, framework):
        yield error
    if plan.gpus > MAX_NPUS:
        yield f"{plan.gpus} GPUs, expected at most {MAX_NPUS}"


def _hybrid_rules(model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for states that groups of replicas shard, and that are copied between the groups."""
    if not plan.shard:
        return
    actual, replicas = f"shard is {plan.shard}", plan.dp * plan.cp
    if framework not in {"megatron", "fsdp"}:
        yield f"{actual} with {framework}, expected 0 (fsdp and megatron have it)"
    elif not plan.zero:
        yield f"{actual} with zero 0, expected zero1, or shard 0"
    elif plan.is_mirrored:
        yield f"{actual} with schedule {plan.pipeline_schedule}, expected another schedule, or 0"
    elif plan.shard == 1 or replicas % plan.shard:
        valid = [divisor for divisor in _divisors(replicas) if divisor > 1]
        yield (
            f"{actual}, expected a divisor of the {replicas} replicas (dp * cp) of 2 or more, or 0; "
            + (_nearest(plan.shard, valid) if valid else "there is 1 replica")
        )
    elif framework == "fsdp" and plan.shard % plan.cp:  # a mesh of dp_replicate x (dp_shard, cp)
        yield f"{actual}, expected a multiple of cp; {_around(plan.shard, plan.cp)}"
    elif model.experts is not None and plan.tp * replicas // (plan.ep * plan.etp) % plan.shard_copies:
        count = plan.tp * replicas // (plan.ep * plan.etp)
        yield (
            f"{actual}, expected dp * cp / shard ({replicas} / {plan.shard}) to divide the {count} replicas of experts"
        )


def _software_rules(_model: Model, plan: ParallelPlan, framework: Framework) -> Iterator[str]:
    """Yield the broken rules for software profiles, and for keys and data types that a framework lacks."""
    known = profile(plan.software, framework)
    if known is not None and known.framework != framework:
        yield f"software is {plan.software} with {framework}, expected a profile of {framework}"
    if plan.scaling != "delayed" and plan.dtype != "fp8":
        yield f"scaling is {plan.scaling} with dtype {plan.dtype}, expected delayed, or fp8"
    if plan.attention_dtype == "fp8" and plan.attention != "flash":
        yield f"attention_dtype is fp8 with attention {plan.attention}, expected auto, or flash"
    if plan.fp8_output and (framework != "megatron" or plan.dtype != "fp8" or plan.defer_embedding_wgrad):
        yield "fp8_output is true, expected false, or megatron with fp8 and without defer_embedding_wgrad"
    for key in ("check_gradients", "scale_gradients", "fp8_gather", "leaves_sms", "report_loss"):
        default = type(plan).model_fields[key].default
        if framework not in {"megatron", "inference"} and getattr(plan, key) != default:
            yield f"{key} is set with {framework}, expected {str(default).lower()} (only megatron has it)"
    if framework == "inference" and plan.dtype == "fp4":
        yield "dtype is fp4, expected bf16, fp16, fp32 or fp8, as serving in fp4 is not modelled"


_RULES: tuple[Callable[[Model, ParallelPlan, Framework], Iterator[str]], ...] = (
    _sharding_rules,
    _tensor_rules,
    _expert_rules,
    _exchange_rules,
    _dispatch_rules,
    _pipeline_rules,
    _sequence_rules,
    _batch_rules,
    _deferral_rules,
    _adapter_rules,
    _software_rules,
)


def _divisors(number: int) -> list[int]:
    # Divisors come in pairs, one of which is at most the square root
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def _nearest(value: int, valid: Iterable[int], label: str = "") -> str:
    """Return a text with the next valid values below and above a value; label: word before them."""
    below = max((each for each in valid if each < value), default=None)
    above = min((each for each in valid if each > value), default=None)
    values = " and ".join(str(each) for each in (below, above) if each is not None)
    return f"nearest {label} {values}" if label else f"nearest {values}"


def _around(value: int, unit: int) -> str:
    """Return a text with the next multiples of a unit below and above."""
    below = value // unit * unit
    return f"nearest {below} and {below + unit}" if below else f"nearest {unit}"
