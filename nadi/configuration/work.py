"""Sections of a run file that define work: [workload] with its traffic, [serving] of a served model, and [[jobs]]."""

import random
import re
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WrapValidator,
    model_validator,
)

from nadi.configuration import MAX_ITERATIONS, MAX_JOBS, MAX_SEED, MAX_SEQUENCES, MAX_TOKENS, values
from nadi.configuration.conditions import DRAWN, MODEL, NODES, RANDOM, TRACES, WHOLE_PROMPTS, needs, takes
from nadi.configuration.values import FilePath, GivenTraces, Moment, OptionalRate, Section
from nadi.inputs.limits import LONGEST_PS, MAX_NODES
from nadi.inputs.units import format_time, parse_time_within, short
from nadi.workload import CollectiveSettings
from nadi.workload.generators.point_to_point import EXPECTED, arrivals
from nadi.workload.generators.training import ParallelPlan, parallel_plan

PLACEMENTS = ("packed", "rail", "scattered")
SCATTERED_SEED = 1  # seed of a scattered placement that names none
_SCATTERED = re.compile(r"scattered(?::seed=([0-9]{1,18}))?+")
_PROCESS = re.compile(r"(every|poisson):(?:mean=)?+([^,=]{1,60})(?:,seed=([0-9]{1,18}))?+")


def _known_process(text: str) -> str:
    """Return the text of an arrival process after a check of its form."""
    arrivals(text)
    return text


class TrafficSection(Section):
    """Messages between the ranks of a job; random ones go from each rank to random others."""

    sizes: Annotated[str | None, values.SIZES] = Field(
        None,
        description='sizes of random messages: "web-search", "hadoop", "storage", "data-mining", "1MiB", '
        '"uniform:64KiB-1MiB", or a file with lines of bytes and percentage',
    )
    load: float | None = Field(None, gt=0, le=2, description="share of its rate that each rank sends on average")
    rate: OptionalRate = Field(
        None, description="rate of a rank; default: of its links to the network (not to NVSwitches), all together"
    )
    duration: Moment | None = Field(None, description="time span in which random messages arrive")
    arrivals: Annotated[str, AfterValidator(_known_process), needs(RANDOM)] = Field(
        "poisson", description=f"times: {EXPECTED}"
    )
    seed: Annotated[int, needs(RANDOM)] = Field(1, ge=0, le=MAX_SEED, description="seed of times, sizes and receivers")
    file: Annotated[FilePath | None, values.FILE] = Field(
        None, description="list of flows instead: CSV (.csv), ns-3's flow.txt (.txt), or htsim's matrix (.cm)"
    )
    queue_pairs: Annotated[Literal["message", "pair"], needs(*takes("queue_pairs"))] = Field(
        "message", description="queue pairs of these messages, in place of [network] queue_pairs"
    )

    @model_validator(mode="after")
    def _random_or_listed(self) -> Self:
        """Refuse sections without exactly one source of messages, or with keys that contradict it."""
        if (self.sizes is None) == (self.file is None):
            found = "both" if self.sizes is not None else "neither"
            raise ValueError(f"found {found} of sizes and file; expected one of them")
        of_random = ("load", "duration") if self.file is None else ("load", "duration", "rate")
        wrong = next((key for key in of_random if (getattr(self, key) is None) == (self.file is None)), None)
        if wrong is not None and self.file is None:
            raise ValueError(f"found sizes without {wrong}; expected load and duration beside them")
        if wrong is not None:
            raise ValueError(f"{wrong} is set beside file; expected sizes beside it")
        return self


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

    traces: Annotated[FilePath | None, values.TRACES] = Field(
        None,
        description='folder and prefix of the traces: "DIR/x" reads DIR/x.<npu>.et; or folder of a trace set, or of '
        "traces with one prefix",
    )
    trace_set: GivenTraces = Field(
        None, description="traces that Python gives instead of files (docs/reference/python.md); results contain a text"
    )
    model: Annotated[str | None, values.MODEL] = Field(
        None, description="name of a model (`nadi workload models`) or path of its file, instead of traces"
    )
    plan: Annotated[PlanOfRun, values.PLAN] = Field(None, description='parallel plan of the model, "tp8,pp4,dp32"')
    framework: Annotated[Literal["megatron", "deepspeed", "fsdp", "inference"], needs(MODEL)] = Field(
        "megatron", description='framework of the training step; "inference" = the model is served, see [serving]'
    )
    groups: Annotated[FilePath | None, values.FILE] = Field(
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


def _parse_software(value: object) -> str:
    """Return the text of a known profile of serving software; ValueError for others."""
    from nadi.workload.generators.inference import serving_software

    serving_software(str(value))
    return str(value)


class ServingSection(Section):
    """Requests to a served model; all of them arrive at once."""

    batch: int = Field(1, ge=1, le=MAX_SEQUENCES, description="sequences that a replica runs at a time")
    requests: int = Field(
        0, ge=0, le=MAX_SEQUENCES, description="number of requests; 0 = as many as all replicas run at a time"
    )
    prompt: _Lengths = Field("1024", description="tokens per prompt: 1024, uniform:128-2048, lognormal:512,0.8")
    generate: _Lengths = Field("128", description="tokens generated per request, as for prompt")
    software: Annotated[str, BeforeValidator(_parse_software)] = Field(
        "vllm-v1",
        description="serving software, whose host works for requests, iterations and launches: a profile, optionally "
        "with other numbers, as vllm-v1:iteration_us=500",
    )
    chunk: int | None = Field(
        None,
        ge=0,
        le=MAX_TOKENS,
        description="tokens per iteration with chunked prefill; 0 = whole prompts go first; default: the software's",
    )
    prompt_tokens: Annotated[int | None, needs(WHOLE_PROMPTS)] = Field(
        None, ge=1, le=MAX_TOKENS, description="maximum tokens of whole prompts per iteration; default: the software's"
    )
    kv_tokens: int = Field(
        0, ge=0, le=MAX_TOKENS, description="tokens that a replica's cache holds; 0 = the GPU's remaining memory"
    )
    seed: Annotated[int, needs(DRAWN)] = Field(1, ge=0, le=MAX_SEED, description="seed of random lengths")

    @property
    def has_chunks(self) -> bool:
        """Whether prompts run in pieces."""
        from nadi.workload.generators.inference import serving_software

        return bool(serving_software(self.software).chunk if self.chunk is None else self.chunk)


def _parse_name(value: object) -> str:
    """Return the name of a job."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}+", value):
        raise ValueError(f"{short(value)}; expected at most 64 letters, digits, dots, hyphens and underscores")
    return value


def _parse_placement(value: object) -> str | tuple[int, ...]:
    """Return a placement: a rule, the path of a file, or the NPU of each rank."""
    if isinstance(value, list | tuple):
        wrong = next((npu for npu in value if not isinstance(npu, int) or isinstance(npu, bool) or npu < 0), None)
        if wrong is not None or not value:
            raise ValueError(f"{short(value if wrong is None else wrong)}; expected numbers of NPUs, from 0 on")
        return tuple(value)
    if isinstance(value, str) and (value in PLACEMENTS or is_file(value) or _SCATTERED.fullmatch(value)):
        return value
    raise ValueError(
        f'{short(value)}; expected "packed", "rail", "scattered" or "scattered:seed=2", a list of NPUs, or a .txt file'
    )


def is_file(placement: str) -> bool:
    """Return whether a placement names a file."""
    return placement.endswith(values.PLACEMENT_ENDING)


def _parse_start(value: object) -> str | tuple[str, ...]:
    """Return a start: a time, an arrival process, or a time for each copy, as text."""
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("an empty list; expected a time for each copy of the job")
        return tuple(format_time(parse_time_within(each, LONGEST_PS)) for each in value)
    if isinstance(value, str) and value.startswith(("every:", "poisson:")):
        found = _PROCESS.fullmatch(value)
        if found is None or (found[1] == "every" and found[3]):
            raise ValueError(f'{short(value)}; expected "every:1ms" or "poisson:1ms,seed=2"')
        if parse_time_within(found[2], LONGEST_PS) == 0:
            raise ValueError(f"{short(value)} is a time of zero; expected more")
        return value
    return format_time(parse_time_within(value, LONGEST_PS))


JobName = Annotated[str, BeforeValidator(_parse_name)]
Placement = Annotated[str | tuple[int, ...], BeforeValidator(_parse_placement)]
Start = Annotated[str | tuple[str, ...], BeforeValidator(_parse_start)]


class JobSection(WorkloadSection):
    """One entry of [[jobs]]: work as in [workload], and where and when it runs."""

    name: JobName = Field(description="name of the job; copies are NAME.0, NAME.1, ...")
    gpus: int | None = Field(
        None, ge=1, le=MAX_NODES, description="number of NPUs; default: those of the plan, or of the traces"
    )
    placement: Annotated[Placement, values.PLACEMENT] = Field(
        "packed",
        description='NPUs of the ranks: "packed" = the first free ones, "rail" = the first free ones by their place in '
        'the host, "scattered:seed=2" = free ones at random, [8, 3, ...] = these, or a .txt file of numbers and ranges '
        '("0-7 16-23")',
    )
    start: Start = Field(
        "0ps",
        description="time at which the job starts; a list with a time for each copy; or arrivals of the copies: "
        '"every:1ms", or "poisson:1ms,seed=2" with this mean distance',
    )
    repeat: int = Field(1, ge=1, le=MAX_JOBS, description="number of copies, each on NPUs of its own")
    iterations: int = Field(
        1,
        ge=1,
        le=MAX_ITERATIONS,
        description="number of times that each copy runs its traces, one after another",
    )
    serving: ServingSection | None = Field(None, description="requests of a served model, as [serving]")

    @model_validator(mode="after")
    def _copies_fit(self) -> Self:
        """Refuse a list of starts that is not that of the copies, and requests to a model that is not served."""
        if isinstance(self.start, tuple) and len(self.start) != self.repeat:
            raise ValueError(
                f"found {len(self.start)} times of start for repeat = {self.repeat}; expected one for each"
            )
        if self.serving is not None and (self.framework != "inference" or self.model is None):
            raise ValueError('serving is set without a model that is served; expected framework = "inference"')
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the copies."""
        return (self.name,) if self.repeat == 1 else tuple(f"{self.name}.{copy}" for copy in range(self.repeat))

    @property
    def begins_ps(self) -> tuple[int, ...]:
        """Time at which each copy starts, in picoseconds."""
        if isinstance(self.start, tuple):
            return tuple(parse_time_within(each, LONGEST_PS) for each in self.start)
        process = _PROCESS.fullmatch(self.start)
        if process is None:
            return (parse_time_within(self.start, LONGEST_PS),) * self.repeat
        mean_ps = parse_time_within(process[2], LONGEST_PS)
        if process[1] == "every":
            times = [copy * mean_ps for copy in range(self.repeat)]
        else:  # the first copy comes after a random time, too
            draw = random.Random(int(process[3] or SCATTERED_SEED))  # noqa: S311 - no secret
            times, now_ps = [], 0.0
            for _ in range(self.repeat):
                now_ps += draw.expovariate(1 / mean_ps)
                times.append(round(now_ps))
        return tuple(min(time_ps, LONGEST_PS) for time_ps in times)

    @property
    def names_npus(self) -> bool:
        """Whether the placement names NPUs, or a file of them, and does not choose among those that are free."""
        return not isinstance(self.placement, str) or is_file(self.placement)

    @property
    def scattered_seed(self) -> int | None:
        """Seed of a scattered placement; None for other placements."""
        found = _SCATTERED.fullmatch(self.placement) if isinstance(self.placement, str) else None
        return None if found is None else int(found[1] or SCATTERED_SEED)
