"""Section [[jobs]] of a run file: jobs that share the fabric."""

import random
import re
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from nadi.configuration import bounds, named_files
from nadi.configuration.workload import ServingSection, WorkloadSection
from nadi.inputs.limits import LONGEST_PS, MAX_NODES
from nadi.inputs.units import format_time, parse_time_within, short

PLACEMENTS = ("packed", "rail", "scattered")
SCATTERED_SEED = 1  # seed of a scattered placement that names none
_SCATTERED = re.compile(r"scattered(?::seed=([0-9]{1,18}))?+")
_PROCESS = re.compile(r"(every|poisson):(?:mean=)?+([^,=]{1,60})(?:,seed=([0-9]{1,18}))?+")


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
    return placement.endswith(named_files.PLACEMENT_ENDING)


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
    placement: Annotated[Placement, named_files.PLACEMENT] = Field(
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
    repeat: int = Field(1, ge=1, le=bounds.MAX_JOBS, description="number of copies, each on NPUs of its own")
    iterations: int = Field(
        1,
        ge=1,
        le=bounds.MAX_ITERATIONS,
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
