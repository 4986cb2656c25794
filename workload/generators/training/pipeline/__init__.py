"""Pipeline schedules, one module each, found here by looking into this folder.

A pipeline has p *stages*, each of one or more *chunks*: consecutive layers of the model. The model is cut into slices,
numbered from 0 at its beginning, and each chunk holds one of them. A step sends m micro-batches through all slices
forward, and back.

A module has

- `NAME`, as users write it,
- `order(stage, stages, micro_batches, chunks) -> list[Work]`: what a stage does, one after another,
- `in_flight(stage, stages, micro_batches, chunks) -> int`: most pairs of micro-batch and chunk whose activations a
  stage holds, each from the begin of its forward pass to the end of its backward pass, weights' gradients and all,
- `complaint(stages, micro_batches, chunks) -> str`: what is wrong with these numbers and what would do, "" = nothing,

and unless each stage has one chunk, the slice of its own number,

- `chunks(vpp) -> int`: of a stage,
- `position(stage, chunk, stages, chunks) -> int`: the slice that a chunk holds,
- `at(position, chunk, stages, chunks) -> (stage, chunk)`: where a micro-batch that went through `chunk` before is at a
  slice. Where slices are held twice (DualPipe), a micro-batch keeps to one of the two ways.
- `micro_batches_of(chunk, micro_batches, chunks) -> range`: which micro-batches go through a chunk; without, all,
- `in_flight_of_chunks(stage, stages, micro_batches, chunks) -> tuple[int, ...]`: `in_flight` chunk by chunk.

Where it is so, it also says

- `TAKES_VPP = True`: users may write vpp, and stages have so many chunks,
- `IS_MIRRORED = True`: every slice is held twice, slices s and p - 1 - s by stage s and again by stage p - 1 - s; both
  are replicas of each other,
- `waits_for_sends(overlap_p2p) -> bool`: whether Megatron-LM waits until what a stage sends is sent; without, no.
"""

import functools
import importlib
import pkgutil
from typing import Protocol, cast

from workload.errors import WorkloadError
from workload.generators.training.pipeline.work import Pass, Work

__all__ = [
    "Pass",
    "Work",
    "after",
    "before",
    "check",
    "chunks",
    "complaint",
    "in_flight",
    "in_flight_of_chunks",
    "is_mirrored",
    "micro_batches_of",
    "order",
    "position",
    "schedules",
    "slices",
    "takes_vpp",
    "waits_for_sends",
]

_MOST_COUNT = 2**31 - 1


class PipelineSchedule(Protocol):
    """What every module of this folder has; those after `complaint` some only."""

    NAME: str

    @staticmethod
    def order(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Work]:
        """What a stage does, one after another."""

    @staticmethod
    def in_flight(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        """Most activations that a stage holds."""

    @staticmethod
    def complaint(stages: int, micro_batches: int, chunks: int) -> str:
        """What is wrong."""

    @staticmethod
    def chunks(vpp: int) -> int:
        """Of a stage."""

    @staticmethod
    def position(stage: int, chunk: int, stages: int, chunks: int) -> int:
        """The slice of a chunk."""

    @staticmethod
    def at(position: int, chunk: int, stages: int, chunks: int) -> tuple[int, int]:
        """Stage and chunk of a slice."""

    @staticmethod
    def micro_batches_of(chunk: int, micro_batches: int, chunks: int) -> range:
        """Which go through a chunk."""

    @staticmethod
    def in_flight_of_chunks(stage: int, stages: int, micro_batches: int, chunks: int) -> tuple[int, ...]:
        """Most activations that a stage holds, chunk by chunk."""

    @staticmethod
    def waits_for_sends(*, overlap_p2p: bool) -> bool:
        """Whether a stage waits until what it sends is sent."""


@functools.cache
def schedules() -> dict[str, PipelineSchedule]:
    """All schedules by name."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.NAME: cast("PipelineSchedule", module) for module in modules if hasattr(module, "NAME")}


def order(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Work]:
    """What a stage does, one after another: m forward and m backward passes of each slice's micro-batches.

    Raises:
        WorkloadError: as `check`.
    """
    check(schedule, stages, micro_batches, chunks)
    return _schedule(schedule).order(stage, stages, micro_batches, chunks)


def chunks(schedule: str, vpp: int) -> int:
    """Chunks of a stage, of a plan with `vpp` of them.

    Raises:
        WorkloadError: an unknown schedule.
    """
    count = getattr(_schedule(schedule), "chunks", None)
    return vpp if count is None else int(count(vpp))


@functools.cache
def slices(schedule: str, stages: int, chunks: int = 1) -> int:
    """Into how many slices the model is cut.

    Raises:
        WorkloadError: an unknown schedule.
    """
    return 1 + max(
        position(schedule, stage, chunk, stages, chunks) for stage in range(stages) for chunk in range(chunks)
    )


def position(schedule: str, stage: int, chunk: int, stages: int, chunks: int = 1) -> int:
    """The slice of the model that a chunk holds, 0 first.

    Raises:
        WorkloadError: an unknown schedule.
    """
    place = getattr(_schedule(schedule), "position", None)
    return stage if place is None else int(place(stage, chunk, stages, chunks))


def micro_batches_of(schedule: str, chunk: int, micro_batches: int, chunks: int = 1) -> range:
    """The micro-batches that go through a chunk.

    Raises:
        WorkloadError: an unknown schedule.
    """
    which = getattr(_schedule(schedule), "micro_batches_of", None)
    return range(micro_batches) if which is None else which(chunk, micro_batches, chunks)


def before(schedule: str, stage: int, chunk: int, stages: int, chunks: int = 1) -> tuple[int, int] | None:
    """Stage and chunk from which forward passes of a chunk get their input, and to which backward passes send.

    None at the beginning of the model. Raises WorkloadError: an unknown schedule.
    """
    return _beside(schedule, (stage, chunk), stages, chunks, -1)


def after(schedule: str, stage: int, chunk: int, stages: int, chunks: int = 1) -> tuple[int, int] | None:
    """Stage and chunk to which forward passes of a chunk send, and from which backward passes get their input.

    None at the end of the model. Raises WorkloadError: an unknown schedule.
    """
    return _beside(schedule, (stage, chunk), stages, chunks, 1)


def in_flight(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> int:
    """Most pairs of micro-batch and chunk whose activations a stage holds at a time.

    Raises:
        WorkloadError: as `check`.
    """
    check(schedule, stages, micro_batches, chunks)
    return _schedule(schedule).in_flight(stage, stages, micro_batches, chunks)


def in_flight_of_chunks(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> tuple[int, ...]:
    """For each chunk of a stage, how many micro-batches' activations it holds when the stage holds most of all.

    Raises:
        WorkloadError: as `check`.
    """
    check(schedule, stages, micro_batches, chunks)
    told = getattr(_schedule(schedule), "in_flight_of_chunks", None)
    if told is not None:
        return tuple(told(stage, stages, micro_batches, chunks))
    if chunks == 1:
        return (in_flight(schedule, stage, stages, micro_batches),)
    held, most = [0] * chunks, (0,) * chunks
    for work in order(schedule, stage, stages, micro_batches, chunks):
        if work.kind == "forward":
            held[work.chunk] += 1
        elif work.kind == "weights" or not work.is_split:
            held[work.chunk] -= 1
        most = max(most, tuple(held), key=sum)
    return most


def takes_vpp(schedule: str) -> bool:
    """Whether stages have as many chunks as users write with vpp.

    Raises:
        WorkloadError: an unknown schedule.
    """
    return bool(getattr(_schedule(schedule), "TAKES_VPP", False))


def is_mirrored(schedule: str) -> bool:
    """Whether every slice is held twice, those of stage s by stage p - 1 - s too.

    Raises:
        WorkloadError: an unknown schedule.
    """
    return bool(getattr(_schedule(schedule), "IS_MIRRORED", False))


def waits_for_sends(schedule: str, *, overlap_p2p: bool) -> bool:
    """Whether Megatron-LM waits until what a stage sends is sent.

    Raises:
        WorkloadError: an unknown schedule.
    """
    waits = getattr(_schedule(schedule), "waits_for_sends", None)
    return waits is not None and bool(waits(overlap_p2p=overlap_p2p))


def complaint(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> str:
    """What is wrong with these numbers and what would do, "" = nothing.

    Raises:
        WorkloadError: an unknown schedule.
    """
    return _schedule(schedule).complaint(stages, micro_batches, chunks)


def check(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> None:
    """Whether a pipeline can be run so.

    Raises:
        WorkloadError: an unknown schedule, or numbers that it cannot do, with the nearest that it can.
    """
    for what, count in (("pp", stages), ("micro-batches", micro_batches), ("vpp", chunks)):
        if not 1 <= count <= _MOST_COUNT:
            raise WorkloadError(f"plan: schedule {schedule} with {what} {count}: expected at least 1")
    wrong = complaint(schedule, stages, micro_batches, chunks)
    if wrong:
        raise WorkloadError(f"plan: schedule {schedule}: {wrong}")


def _beside(schedule: str, place: tuple[int, int], stages: int, chunks: int, step: int) -> tuple[int, int] | None:
    wanted = position(schedule, *place, stages, chunks) + step
    if not 0 <= wanted < slices(schedule, stages, chunks):
        return None
    at = getattr(_schedule(schedule), "at", None)
    return (wanted, place[1]) if at is None else at(wanted, place[1], stages, chunks)


def _schedule(name: str) -> PipelineSchedule:
    known = schedules()
    if name not in known:
        raise WorkloadError(f"plan: schedule {name!r}, expected one of {', '.join(sorted(known))}")
    return known[name]
