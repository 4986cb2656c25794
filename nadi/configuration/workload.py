"""Sections of a run file that define work: [workload], and [serving] of a served model."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WrapValidator, model_validator

from nadi.configuration import bounds, named_files
from nadi.configuration.conditions import DRAWN, MODEL, NODES, TRACES, WHOLE_PROMPTS, needs
from nadi.configuration.traffic import TrafficSection
from nadi.configuration.values import FilePath, GivenTraces, Section
from nadi.inputs.units import short
from nadi.workload import CollectiveSettings
from nadi.workload.generators.training import ParallelPlan, parallel_plan


def _parse_plan(value: object) -> ParallelPlan | None:
    """Return a parallel plan from its text or table."""
    if value is None or isinstance(value, ParallelPlan):
        return value
    if not isinstance(value, str | dict):
        raise ValueError(f'{short(value)} is no plan; expected text, as "tp8,pp4,dp32", or a table')  # noqa: TRY004 - pydantic's
    return parallel_plan(value)


PlanOfRun = Annotated[
    ParallelPlan | None,
    PlainValidator(_parse_plan),
    PlainSerializer(lambda plan: None if plan is None else str(plan)),
]
"""A parallel plan, parsed from text or a table; results contain its text."""


def _parse_lengths(value: object) -> str:
    """Return the text of request lengths after a check of its form."""
    from nadi.workload.generators.inference import Lengths

    Lengths.parse(value, "tokens")
    return str(value)


_Lengths = Annotated[str, BeforeValidator(_parse_lengths)]


class WorkloadSection(Section):
    """Work of the NPUs: traces, a model and a plan, or messages without a model."""

    traces: Annotated[FilePath | None, named_files.TRACES] = Field(
        None,
        description='folder and prefix of the traces: "DIR/x" reads DIR/x.<npu>.et; or folder of a trace set, or of '
        "traces with one prefix",
    )
    trace_set: GivenTraces = Field(
        None, description="traces that Python gives instead of files (docs/reference/python.md); results contain a text"
    )
    model: Annotated[str | None, named_files.MODEL] = Field(
        None, description="name of a model (`nadi workload models`) or path of its file, instead of traces"
    )
    plan: Annotated[PlanOfRun, named_files.PLAN] = Field(None, description='parallel plan of the model, "tp8,pp4,dp32"')
    framework: Annotated[Literal["megatron", "deepspeed", "fsdp", "inference"], needs(MODEL)] = Field(
        "megatron", description='framework of the training step; "inference" = the model is served, see [serving]'
    )
    groups: Annotated[FilePath | None, named_files.FILE] = Field(
        None,
        description="JSON file of the communicators in the traces; default: groups.json if traces is a folder",
    )
    all_gather_size: Annotated[Literal["contribution", "total"], needs(NODES)] = Field(
        CollectiveSettings.all_gather_size,
        description="meaning of comm_size of all-gather and gather: one member's part, or the whole buffer",
    )
    strict: Annotated[bool, needs(TRACES)] = Field(
        True, description="refuse dependencies on nodes that a trace lacks; false drops them"
    )
    traffic: TrafficSection | None = Field(None, description="messages without a model, instead of traces")

    @model_validator(mode="after")
    def _traces_or_model(self) -> Self:
        """Refuse sections without exactly one source of work, or with keys that contradict it."""
        for only in ("trace_set", "traffic"):
            beside = next((key for key in ("traces", "model", "groups") if getattr(self, key) is not None), None)
            if getattr(self, only) is not None and beside is not None:
                raise ValueError(f"{beside} is set beside {only}; expected one of them")
        if self.trace_set is not None and self.traffic is not None:
            raise ValueError("traffic is set beside trace_set; expected one of them")
        if (self.traces is None) == (self.model is None) and self.trace_set is None and self.traffic is None:
            found = "both" if self.traces is not None else "neither"
            raise ValueError(f"found {found} of traces and model; expected one of them, or traffic")
        if (self.model is None) != (self.plan is None):
            if self.model is None:
                raise ValueError("found plan alone; expected model beside it")
            ranks = f"`nadi plan --model {self.model} --cluster NAME --gpus N` ranks them"
            raise ValueError(f'found model alone; expected plan, as "tp8,pp4,dp32" beside it ({ranks})')
        if self.groups is not None and self.model is not None:
            raise ValueError("groups are set beside model; expected traces beside them")
        return self


NO_WORKLOAD = WorkloadSection.model_construct()
"""The section [workload] of a run whose work is that of [[jobs]]: neither traces nor a model."""
WorkloadOrJobs = Annotated[
    WorkloadSection, WrapValidator(lambda value, read: value if value is NO_WORKLOAD else read(value))
]


class ServingSection(Section):
    """Requests to a served model; all of them arrive at once."""

    batch: int = Field(1, ge=1, le=bounds.MAX_SEQUENCES, description="sequences that a replica runs at a time")
    requests: int = Field(
        0, ge=0, le=bounds.MAX_SEQUENCES, description="number of requests; 0 = as many as all replicas run at a time"
    )
    prompt: _Lengths = Field("1024", description="tokens per prompt: 1024, uniform:128-2048, lognormal:512,0.8")
    generate: _Lengths = Field("128", description="tokens generated per request, as for prompt")
    chunk: int = Field(
        0,
        ge=0,
        le=bounds.MAX_TOKENS,
        description="tokens per iteration with chunked prefill; 0 = whole prompts go first",
    )
    prompt_tokens: Annotated[int, needs(WHOLE_PROMPTS)] = Field(
        8192, ge=1, le=bounds.MAX_TOKENS, description="maximum tokens of whole prompts per iteration"
    )
    kv_tokens: int = Field(
        0, ge=0, le=bounds.MAX_TOKENS, description="tokens that a replica's cache holds; 0 = the GPU's remaining memory"
    )
    seed: Annotated[int, needs(DRAWN)] = Field(1, ge=0, le=bounds.MAX_SEED, description="seed of random lengths")
