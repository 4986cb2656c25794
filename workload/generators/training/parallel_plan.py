"""A parallel plan: over how many GPUs, along which axes, and in what manner a model is trained or served.

Users write it as "tp8,pp4,dp32,vpp2,mb1,gb1536,zero1,recompute=full": a number after an axis, words for switches, and
key=value for all else; or as a table of a run file with the fields as keys.
"""

import functools
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from workload.errors import WorkloadError
from workload.generators.training import pipeline

_MOST = 2**31 - 1
_AUTO = "auto"

Size = Annotated[int, Field(ge=1, le=1 << 20)]
Number = Annotated[int, Field(ge=0, le=_MOST)]


def _known_schedule(name: str) -> str:
    known = [_AUTO, *sorted(pipeline.schedules())]
    if name not in known:
        raise PydanticCustomError("literal_error", "Input should be one of {known}", {"known": ", ".join(known)})
    return name


class ParallelPlan(BaseModel):
    """How a model is spread and trained. Whether a model can be trained so, `workload.generators.training.rules` says.

    Attributes:
        tp: tensor parallelism, GPUs that share each matrix.
        pp: pipeline parallelism, stages.
        dp: data parallelism, replicas; without cp.
        cp: context parallelism, GPUs that share each sequence.
        ep: expert parallelism, GPUs that share the experts of a layer; they are among the tp * cp * dp of a stage.
        etp: tensor parallelism of each expert's matrices.
        vpp: model chunks of a pipeline stage (interleaving).
        micro_batch: b, sequences that go through the pipeline together.
        global_batch: B, sequences of a step over all replicas; 0 = the model's published one if dp * micro_batch
            divides it, else dp * micro_batch * 4 pp.
        sequence: s, tokens of a sequence; 0 = the model's.
        steps: optimizer steps.
        schedule: of the pipeline; auto is interleaved with vpp > 1, else 1f1b.
        uneven: stages may differ in their number of layers, the first and the last have the fewest.
        sequence_parallel: norms and dropouts are shared along the sequence by the tp group (arXiv 2205.05198).
        zero: 0, or what the replicas share: 1 optimizer states, 2 gradients too, 3 parameters too (arXiv 1910.02054).
            Megatron's distributed optimizer is 1, FSDP is 3.
        recompute: what the backward pass works out again: nothing, attention's core (selective), or all of a layer.
        attention: flash is one fused operator, unfused writes the scores to memory.
        context: how cp exchanges keys and values: ring (one neighbour at a time, behind the computation), all-gather,
            or a2a (DeepSpeed Ulysses: heads in place of the sequence).
        overlap_grad_reduce: gradients are reduced bucket by bucket beside the backward pass.
        overlap_param_gather: sharded parameters are gathered bucket by bucket beside the forward pass.
        async_tp: the input gradient's tensor-parallel communication hides behind the product for the weights' gradient
            (Megatron-LM from 3.0 on).
        fused_accumulation: the product for the weights' gradient adds to the sum over micro-batches itself; else an
            operator of its own does (Megatron-LM before 3.0).
        defer_embedding_wgrad: Number of micro-batches, the first of a step, for which the last stage computes the
            gradient of the output layer's weights after its last backward pass, while the other stages still drain the
            pipeline (Megatron-Core's defer_embedding_wgrad_compute and wgrad_deferral_limit); 0 = none.
        overlap_tp: tensor-parallel communication is split and runs beside the product next to it.
        overlap_p2p: with interleaving a stage computes on while its messages cross (overlap_p2p_comm). Megatron-LM
            before 3.0 waited for them.
        scatter_gather: a stage's output crosses nodes once, not once for each of the tp group (arXiv 2104.04473, 4.1).
        bucket_bytes: of gradients or parameters in one collective; 0 = what the framework takes.
        prefetch: layers whose parameters ZeRO-3 gathers ahead.
        gather: how DeepSpeed's ZeRO-3 gathers and reduces: tensor is one collective of a layer, list one of each tensor
            into a list of one entry for each GPU, with a copy of each, as until 2021
            (workload.generators.training.lists).
        capacity: an expert takes so many times its even share of tokens and no more; 0 = all that come.
        imbalance: how unevenly tokens go to experts, 0 = evenly (docs/explanation/training.md says which distribution).
        seed: of that distribution.
        dtype: of weights and activations.
        grad_dtype: of gradients when they are reduced.
        offload: what is kept in the host's memory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tp: Size = 1
    pp: Size = 1
    dp: Size = 1
    cp: Size = 1
    ep: Size = 1
    etp: Size = 1
    vpp: Size = 1
    micro_batch: Annotated[int, Field(ge=1, le=_MOST)] = 1
    global_batch: Number = 0
    sequence: Number = 0
    steps: Annotated[int, Field(ge=1, le=10**6)] = 1
    schedule: Annotated[str, AfterValidator(_known_schedule)] = _AUTO
    uneven: bool = False
    sequence_parallel: bool = False
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    recompute: Literal["none", "selective", "full"] = "none"
    attention: Literal["flash", "unfused"] = "flash"
    context: Literal["ring", "all-gather", "a2a"] = "ring"
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    async_tp: bool = True
    fused_accumulation: bool = True
    defer_embedding_wgrad: Number = 0
    overlap_tp: bool = False
    overlap_p2p: bool = True
    scatter_gather: bool = False
    bucket_bytes: Number = 0
    prefetch: Number = 1
    gather: Literal["tensor", "list"] = "tensor"
    capacity: Annotated[float, Field(ge=0, le=1000)] = 0.0
    imbalance: Annotated[float, Field(ge=0, le=10)] = 0.0
    seed: Number = 1
    dtype: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    grad_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    offload: tuple[Literal["optimizer", "parameters", "activations"], ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of the plan."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def pipeline_schedule(self) -> str:
        """The schedule, settled."""
        if self.schedule != _AUTO:
            return self.schedule
        return "interleaved" if self.vpp > 1 else "1f1b"

    @property
    def is_mirrored(self) -> bool:
        """Whether every slice of the model is held by two stages; see workload.generators.training.pipeline."""
        return pipeline.is_mirrored(self.pipeline_schedule)

    def __str__(self) -> str:
        """The plan as users write it: axes of more than one GPU, and what differs from the defaults."""
        return _text(self, {field for field in ParallelPlan.model_fields if _differs(self, field)}) or "tp1"

    def constraints(self) -> str:
        """The fields that were given, as users write them, also those at their default; "" if none was."""
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
    "steps": "steps",
}
"""What a number may follow: "tp8"."""
_WORDS: dict[str, tuple[str, Any]] = {
    "sp": ("sequence_parallel", True),
    "uneven": ("uneven", True),
    "fp8": ("dtype", "fp8"),
}
"""Words that stand alone, beside the names of schedules."""
_AXIS = re.compile(r"([a-z]+)([0-9]{1,10})")


def parallel_plan(text: str | Mapping[str, Any]) -> ParallelPlan:
    """The plan of "tp8,pp4,dp32,recompute=full", or of a table.

    Raises:
        WorkloadError: an unknown word or key, a value out of range, or one that is given twice.
    """
    values = dict(text) if isinstance(text, Mapping) else _values(text)
    if isinstance(values.get("offload"), str):
        values["offload"] = tuple(values["offload"].split("+"))
    try:
        return ParallelPlan(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"][:1]))
        if first["type"] == "extra_forbidden":
            raise WorkloadError(f"plan: unknown key {key!r}; known: {', '.join(ParallelPlan.model_fields)}") from None
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise WorkloadError(f"plan: {key} is {first['input']!r}: {message}") from None


@functools.cache
def _words() -> dict[str, tuple[str, Any]]:
    """Words that stand alone, and what they mean."""
    return _WORDS | {name: ("schedule", name) for name in sorted(pipeline.schedules())}


def _values(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, is_pair, value = part.partition("=")
        axis = _AXIS.fullmatch(part)
        if is_pair:
            field, given = _AXES.get(key.strip(), key.strip().replace("-", "_")), value.strip()
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
            raise WorkloadError(f"plan: {part!r} says {field} a second time, expected it once")
        values[field] = given
    return values


def _text(plan: ParallelPlan, fields: AbstractSet[str]) -> str:
    """Some fields of a plan as users write them: axes first, then words that stand alone, then key=value."""
    axes = [f"{short}{getattr(plan, field)}" for short, field in _AXES.items() if field in fields]
    alone = {field: word for word, (field, value) in _words().items() if getattr(plan, field) == value}
    words = [word for field, word in alone.items() if field in fields]
    others = [
        f"{field}={_shown(getattr(plan, field))}"
        for field in ParallelPlan.model_fields
        if field not in alone and field not in _AXES.values() and field in fields
    ]
    return ",".join([*axes, *words, *others])


def _differs(plan: ParallelPlan, field: str) -> bool:
    return bool(getattr(plan, field) != ParallelPlan.model_fields[field].default)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
