"""Parallel plans: the number of GPUs per parallel axis and the options with which a model is trained or served.

Users write a plan as "tp8,pp4,dp32,vpp2,mb1,gb1536,zero1,recompute=full" (a number after an axis, words for switches,
key=value for everything else), or as a table of a run file whose keys are the fields.
"""

import functools
import re
from collections.abc import Mapping, Set as AbstractSet
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nadi.inputs import plug_ins
from nadi.inputs.documents import checked
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.models.operations import CORE, MODULES, SELECTIVE, WORDS
from nadi.workload.generators.training.pipeline import KIND, schedule_of
from nadi.workload.generators.training.software import AUTO, known_profile, one_of

_MAX_NUMBER = 2**31 - 1

Size = Annotated[int, Field(ge=1, le=1 << 20)]
Number = Annotated[int, Field(ge=0, le=_MAX_NUMBER)]


def _known_schedule(name: str) -> str:
    """Return the name of a pipeline schedule; an error if it is unknown, or a file that holds none."""
    if plug_ins.is_file(KIND, name):
        schedule_of(name)
        return name
    return one_of(name, [AUTO, *plug_ins.names(KIND)])


def _known_recompute(value: str) -> str:
    """Return a value of `recompute` with its modules in one order; an error if a word or module is unknown."""
    if "+" not in value and value not in MODULES:
        return one_of(value, [*WORDS, f"or modules joined by + ({', '.join(MODULES)})"])
    modules = {one_of(module, MODULES) for module in value.split("+")}
    return SELECTIVE if modules == {CORE} else "+".join(module for module in MODULES if module in modules)


class ParallelPlan(BaseModel):
    """A plan for training or serving a model on GPUs; `workload.generators.training.rules` checks it for a model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tp: Size = 1  # Tensor parallelism: number of GPUs that share each matrix
    pp: Size = 1  # Pipeline parallelism: number of pipeline stages
    dp: Size = 1  # Data parallelism: number of replicas, not counting context parallelism
    cp: Size = 1  # Context parallelism: number of GPUs that share each sequence
    ep: Size = 1  # Expert parallelism: number of GPUs, among the stage's tp * cp * dp, that share a layer's experts
    etp: Size = 1  # Expert-tensor parallelism: number of GPUs that share each expert's matrices
    vpp: Size = 1  # Number of model chunks per pipeline stage (interleaving)
    micro_batch: Annotated[int, Field(ge=1, le=_MAX_NUMBER)] = 1  # b, number of sequences per micro-batch
    # B, sequences per step of all replicas; 0 = the model's published number if dp * mb divides it, else dp * mb * 4 pp
    global_batch: Number = 0
    sequence: Number = 0  # s, number of tokens per sequence; 0 = the model's sequence length
    steps: Annotated[int, Field(ge=1, le=10**6)] = 1  # Number of optimizer steps
    # Name of the pipeline schedule; auto = interleaved if vpp > 1, else 1f1b
    schedule: Annotated[str, AfterValidator(_known_schedule)] = AUTO
    uneven: bool = False  # Whether stages may have different numbers of layers; the first and the last have the fewest
    sequence_parallel: bool = False  # Whether the tp group splits norms and dropouts by tokens (arXiv 2205.05198)
    # ZeRO stage, the states that replicas shard: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters
    # (arXiv 1910.02054). Megatron's distributed optimizer is 1, FSDP is 3.
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    # Number of the dp * cp replicas that shard states together; such groups are copies of each other (HSDP of FSDP,
    # several instances of Megatron's distributed optimizer). 0 = all replicas form one group
    shard: Number = 0
    # Activations that the backward pass recomputes: none, attention's core (selective), whole layers (full), modules of
    # Megatron-Core joined by "+", or per-op (workload.generators.models.operations)
    recompute: Annotated[str, AfterValidator(_known_recompute)] = "none"
    # flash is one fused operator by the GPU's best algorithm, flash-1 by FlashAttention of 2022, triton by its Triton
    # version, flash-2 by FlashAttention-2 also on GPUs that came after it; unfused writes scores to memory
    attention: Literal["flash", "flash-1", "flash-2", "triton", "unfused"] = "flash"
    # Exchange of keys and values with cp > 1: ring (one neighbour at a time, overlapped with computation), all-gather,
    # or a2a (DeepSpeed Ulysses: an all-to-all splits heads instead of the sequence)
    context: Literal["ring", "all-gather", "a2a"] = "ring"
    overlap_grad_reduce: bool = True  # Whether buckets of gradients are reduced during the backward pass
    overlap_param_gather: bool = True  # Whether buckets of sharded parameters are gathered during the forward pass
    async_tp: bool = True  # Whether reducing the input's gradient overlaps the weights' product (Megatron-LM since 3.0)
    fused_accumulation: bool = True  # Whether the weights' product adds to the gradient (Megatron-LM since 3.0)
    # Number of micro-batches, the first of a step, for which the last stage computes the gradient of the output layer's
    # weights after its last backward pass, while the other stages still drain the pipeline (Megatron-Core's
    # defer_embedding_wgrad_compute and wgrad_deferral_limit); 0 = none
    defer_embedding_wgrad: Number = 0
    overlap_tp: bool = False  # Whether tensor-parallel collectives are cut into pieces that overlap products
    overlap_p2p: bool = True  # With interleaving, whether a stage computes while it sends (Megatron-LM since 3.0)
    # Whether outputs cross nodes once, not per GPU of the tp group (arXiv 2104.04473, 4.1)
    scatter_gather: bool = False
    bucket_bytes: Number = 0  # Bytes of gradients or parameters per collective; 0 = the framework's default
    prefetch: Number = 1  # Number of layers whose parameters ZeRO-3 gathers in advance
    # Granularity of DeepSpeed's ZeRO-3 collectives: tensor = one collective per layer; list = one per tensor into a
    # list with one entry per GPU, plus the copies, as until 2021 (workload.generators.training.item_lists)
    gather: Literal["tensor", "list"] = "tensor"
    capacity: Annotated[float, Field(ge=0, le=1000)] = 0.0  # Maximum per expert in even shares; 0 = unlimited
    # Exponent of the Zipf distribution of tokens over experts; 0 = even (docs/explanation/training.md)
    imbalance: Annotated[float, Field(ge=0, le=10)] = 0.0
    seed: Number = 1  # Random seed of the distribution of tokens over experts
    # How tokens get to their experts (workload.generators.training.dispatchers); auto = as NVIDIA's guide says for the
    # machine
    dispatcher: Literal["auto", "all-to-all", "deepep", "hybridep"] = "auto"
    # Data type of tokens that DeepEP or HybridEP bring to their experts in the forward pass: auto = that of activations
    dispatch_dtype: Literal["auto", "fp8"] = "auto"
    # Number of consecutive GPUs that NVLink connects, within which DeepEP and HybridEP forward tokens; 0 = that of the
    # machine, 8 without one
    nvlink_domain: Number = 0
    # Whether the forward pass of a micro-batch alternates with the backward pass of another one, layer by layer, so
    # that each overlaps the other's exchange of tokens (Megatron-Core's overlap_moe_expert_parallel_comm); open = as
    # NVIDIA's recipes for the machine
    overlap_ep: bool | None = None
    # Whether the products of experts contain the activation and the casts to 8 bits between them (Transformer Engine's
    # fused grouped MLP, NVTE_CUTEDSL_FUSED_GROUPED_MLP); open = with FP8 on Blackwell
    fused_experts: bool | None = None
    dtype: Literal["bf16", "fp16", "fp32", "fp8", "fp4"] = "bf16"  # Data type of weights and activations
    # Scaling of products' operands in FP8, which takes passes over the values (workload.generators.training.linear):
    # delayed (by the maxima of earlier micro-batches), current (by the tensor's own maximum), or mxfp8 (of 32 values).
    # FP4 is NVFP4.
    scaling: Literal["delayed", "current", "mxfp8"] = "delayed"
    # Data type of attention's products: bf16 = that of activations, fp8 (Transformer Engine's
    # fp8_dot_product_attention), auto = fp8 with fused experts, else bf16
    attention_dtype: Literal["auto", "bf16", "fp8"] = "auto"
    # Whether the products of output layers are in FP8 (Megatron-Core's fp8_output_proj); False = as activations
    fp8_output: bool = False
    grad_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"  # Data type of gradients in their reduction
    copies: Literal["tensors", "gradients", "none"] = "tensors"  # What FSDP copies to or from its flat buffers
    # Libraries of products: today's, or those of May 2025 (CUDA 12.9), which were slower on Blackwell
    libraries: Literal["today", "cuda-12"] = "today"
    # Whether the host reads the norm of each bucket of gradients before Megatron reduces it (check_for_nan_in_grad)
    check_gradients: bool = False
    # Whether Megatron divides gradients by the number of replicas before their reduction (no average_in_collective)
    scale_gradients: bool = False
    # Whether Megatron's products leave the multiprocessors that NCCL holds free; False = their blocks that find none
    # wait for a second wave, as with FSDP and DeepSpeed (workload.generators.training.interference)
    leaves_sms: bool = True
    # Whether Megatron gathers the parameters of products in FP8 in FP8, for which the optimizer casts each GPU's share
    # (fp8_param_gather); False = in 16 bits
    fp8_gather: bool = False
    # When Megatron averages the loss over replicas: step = once at the end, micro-batch = after each micro-batch,
    # checked = after each micro-batch, and the host reads each loss (check_for_nan_in_loss_and_grad)
    report_loss: Literal["step", "micro-batch", "checked"] = "step"
    # Further time per step in ms for which all GPUs wait for their hosts, beside what the software profile describes
    host_ms: Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)] = 0
    # Name of the software profile, a set of defaults for other keys (workload.generators.training.software); auto = the
    # framework's current one
    software: Annotated[str, AfterValidator(known_profile)] = AUTO
    # Rank of LoRA's adapters at the projections of attention, the only weights that are trained; 0 = all weights are
    lora: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    # Parts of a step that are left out: collectives between replicas (dp), the norm of the gradients, the optimizer
    # and setting gradients to 0 (optimizer), direct writes of overlap_tp's pieces (userbuffers; NCCL moves these pieces
    # instead), times of the host (host), copies of what fused products of experts save into pages (paging)
    without: tuple[Literal["dp", "optimizer", "userbuffers", "host", "paging"], ...] = ()
    # States that are kept in the host's memory
    offload: tuple[Literal["optimizer", "parameters", "activations"], ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _scaled_is_fp8(cls, values: Any) -> Any:  # noqa: ANN401 - what pydantic validates
        """Add the data type FP8 where only its scaling is given."""
        return {"dtype": "fp8"} | values if isinstance(values, dict) and "scaling" in values else values

    @property
    def gpus(self) -> int:
        """Number of GPUs of the plan."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def activation_dtype(self) -> str:
        """Data type of activations outside products; FP8 and FP4 are for products only."""
        return "bf16" if self.dtype in {"fp8", "fp4"} else self.dtype

    @property
    def pipeline_schedule(self) -> str:
        """Name of the pipeline schedule, with "auto" resolved."""
        if self.schedule != AUTO:
            return self.schedule
        return "interleaved" if self.vpp > 1 else "1f1b"

    @property
    def shard_copies(self) -> int:
        """Number of groups of replicas that hold all states once each; more than 1 with `shard` only."""
        return self.dp * self.cp // self.shard if self.shard else 1

    @property
    def sends_copies(self) -> bool:
        """Whether the dispatcher sends one copy of a token per expert; else one per GPU with some of its experts."""
        # Numbers of copies per GPU are not modelled where experts are not equally popular
        return self.dispatcher not in {"deepep", "hybridep"} or bool(self.imbalance)

    @property
    def dispatches_fp8(self) -> bool:
        """Whether GPUs exchange the tokens of a forward pass in FP8."""
        return self.dispatch_dtype == "fp8" and self.ep > 1

    @property
    def domain_members(self) -> int:
        """Number of members of an expert-parallel group in an NVLink domain; all, if domains cut groups unevenly."""
        members, rest = divmod(self.nvlink_domain, self.etp)
        return members if not rest and 0 < members < self.ep and self.ep % members == 0 else self.ep

    @property
    def is_mirrored(self) -> bool:
        """Whether two stages hold every slice of the model; see workload.generators.training.pipeline."""
        return schedule_of(self.pipeline_schedule).IS_MIRRORED

    def __str__(self) -> str:
        """Return the plan as users write it: axes with more than one GPU, and other fields that are not default."""
        fields = ParallelPlan.model_fields.items()
        return _text(self, {name for name, field in fields if getattr(self, name) != field.default}) or "tp1"

    def constraints(self) -> str:
        """Return the fields that the user gave, in the users' notation, defaults included; "" without any."""
        return _text(self, self.model_fields_set)


_AXES = {
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "cp": "cp",
    "ep": "ep",
    "etp": "etp",
    "vpp": "vpp",
    "mb": "micro_batch",
    "gb": "global_batch",
    "seq": "sequence",
    "zero": "zero",
    "shard": "shard",
    "steps": "steps",
}
"""Field by the short name that users write before a number, as in "tp8"."""
_WORDS: dict[str, tuple[str, Any]] = {
    "sp": ("sequence_parallel", True),
    "uneven": ("uneven", True),
    "fp8": ("dtype", "fp8"),
    "mxfp8": ("scaling", "mxfp8"),
    "nvfp4": ("dtype", "fp4"),
    "fp4": ("dtype", "fp4"),
}
"""Field and value by the word that users write for them, in addition to the names of schedules."""
_AXIS = re.compile(r"([a-z]+)([0-9]{1,10})")


def parallel_plan(text: str | Mapping[str, Any]) -> ParallelPlan:
    """Return the plan of a text or table. Raises WorkloadError: it is wrong.

    Args:
        text: A text such as "tp8,pp4,dp32,recompute=full", or a table with the fields of ParallelPlan.
    """
    values = dict(text) if isinstance(text, Mapping) else _values(text)
    for key in ("offload", "without"):
        if isinstance(values.get(key), str):
            values[key] = tuple(values[key].split("+"))
    return checked(ParallelPlan, values, "plan", WorkloadError)


@functools.cache
def _words() -> dict[str, tuple[str, Any]]:
    """Return field and value by word, names of schedules included."""
    return _WORDS | {name: ("schedule", name) for name in plug_ins.names(KIND)}


def _values(text: str) -> dict[str, Any]:
    """Return the fields that a plan's text sets; WorkloadError for unknown words and repeated fields."""
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, is_pair, value = part.partition("=")
        axis = _AXIS.fullmatch(part)
        if is_pair:
            field, given = _AXES.get(key.strip(), key.strip().replace("-", "_")), value.strip()
        elif plug_ins.is_file(KIND, part):
            field, given = "schedule", part
        elif part in _words():
            field, given = _words()[part]
        elif axis is not None and axis[1] in _AXES:
            field, given = _AXES[axis[1]], axis[2]
        else:
            raise WorkloadError(
                f"plan: {part!r}, expected a number after one of {', '.join(_AXES)}, one of {', '.join(_words())}, "
                "or key=value, as in tp8,pp4,dp32,recompute=full"
            )
        if field in values:
            raise WorkloadError(f"plan: {part!r} sets {field} a second time, expected it once")
        values[field] = given
    return values


def _text(plan: ParallelPlan, field_names: AbstractSet[str]) -> str:
    """Return the named fields of a plan as users write them: axes, then words, then key=value."""
    axes = [f"{short}{getattr(plan, field)}" for short, field in _AXES.items() if field in field_names]
    word_of_field = {field: word for word, (field, value) in _words().items() if getattr(plan, field) == value}
    words = [word for field, word in word_of_field.items() if field in field_names]
    others = [
        f"{field}={_shown(getattr(plan, field))}"
        for field in ParallelPlan.model_fields
        if field not in word_of_field and field not in _AXES.values() and field in field_names
    ]
    return ",".join([*axes, *words, *others])


def _shown(value: object) -> str:
    """Return a field's value as users write it."""
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
