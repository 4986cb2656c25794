"""Pipeline schedules, one per module of this folder; `schedules` finds the modules.

A pipeline has p *stages*, each with one or more *chunks* of consecutive layers. The model is cut into slices, numbered
from 0 at its beginning, and each chunk holds one slice. A step sends m micro-batches through all slices forward and
then backward.

A module defines

- `NAME`: the schedule's name in plans,
- `order(stage, stages, micro_batches, chunks) -> list[Work]`: the passes of a stage in the order of execution,
- `in_flight(stage, stages, micro_batches, chunks) -> int`: maximum number of pairs of micro-batch and chunk whose
  activations a stage holds at a time, each from the start of its forward pass to the end of its backward pass,
  including the gradients of weights,
- `complaint(stages, micro_batches, chunks) -> str`: the invalid number and the valid ones, "" if all are valid,

and, unless stage s has one chunk with slice s,

- `chunks(vpp) -> int`: number of chunks per stage,
- `position(stage, chunk, stages, chunks) -> int`: slice of a chunk,
- `at(position, chunk, stages, chunks) -> (stage, chunk)`: place of a slice for a micro-batch that comes from `chunk`
  of another stage; if two stages hold each slice (DualPipe), a micro-batch keeps its direction,
- `micro_batches_of(chunk, micro_batches, chunks) -> range`: micro-batches that pass through a chunk; default all,
- `in_flight_of_chunks(stage, stages, micro_batches, chunks) -> tuple[int, ...]`: `in_flight` per chunk,

and, where it applies,

- `TAKES_VPP = True`: plans may set vpp, the number of chunks per stage,
- `IS_MIRRORED = True`: two stages hold every slice; stages s and p - 1 - s both hold the slices s and p - 1 - s and are
  replicas of each other,
- `waits_for_sends(overlap_p2p) -> bool`: whether Megatron-LM waits until a stage's messages are sent; default false.
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

_MAX_COUNT = 2**31 - 1


class PipelineSchedule(Protocol):
    """Members of a schedule's module; those after `complaint` are optional."""

    NAME: str

    @staticmethod
    def order(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Work]:
        """Return the passes of a stage in the order of execution."""

    @staticmethod
    def in_flight(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        """Return the maximum number of micro-batches, counted per chunk, whose activations a stage holds."""

    @staticmethod
    def complaint(stages: int, micro_batches: int, chunks: int) -> str:
        """Return the invalid number and the valid ones; "" if all are valid."""

    @staticmethod
    def chunks(vpp: int) -> int:
        """Return the number of chunks per stage."""

    @staticmethod
    def position(stage: int, chunk: int, stages: int, chunks: int) -> int:
        """Return the slice of a chunk."""

    @staticmethod
    def at(position: int, chunk: int, stages: int, chunks: int) -> tuple[int, int]:
        """Return the stage and chunk of a slice."""

    @staticmethod
    def micro_batches_of(chunk: int, micro_batches: int, chunks: int) -> range:
        """Return the micro-batches that pass through a chunk."""

    @staticmethod
    def in_flight_of_chunks(stage: int, stages: int, micro_batches: int, chunks: int) -> tuple[int, ...]:
        """Return the number of micro-batches per chunk whose activations a stage holds at its maximum."""

    @staticmethod
    def waits_for_sends(*, overlap_p2p: bool) -> bool:
        """Return whether a stage waits until its messages are sent."""


@functools.cache
def schedules() -> dict[str, PipelineSchedule]:
    """Return all schedules by name."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {module.NAME: cast("PipelineSchedule", module) for module in modules if hasattr(module, "NAME")}


def order(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Work]:
    """Return the passes of a stage in the order of execution: each micro-batch of each chunk forward and backward.

    Raises:
        WorkloadError: If `check` refuses the pipeline.
    """
    check(schedule, stages, micro_batches, chunks)
    return _schedule(schedule).order(stage, stages, micro_batches, chunks)


def chunks(schedule: str, vpp: int) -> int:
    """Return the number of chunks per stage of a plan with `vpp`.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    count = getattr(_schedule(schedule), "chunks", None)
    return vpp if count is None else int(count(vpp))


@functools.cache
def slices(schedule: str, stages: int, chunks: int = 1) -> int:
    """Return the number of slices into which the model is cut.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    return 1 + max(
        position(schedule, stage, chunk, stages, chunks) for stage in range(stages) for chunk in range(chunks)
    )


def position(schedule: str, stage: int, chunk: int, stages: int, chunks: int = 1) -> int:
    """Return the slice of the model that a chunk holds, from 0.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    place = getattr(_schedule(schedule), "position", None)
    return stage if place is None else int(place(stage, chunk, stages, chunks))


def micro_batches_of(schedule: str, chunk: int, micro_batches: int, chunks: int = 1) -> range:
    """Return the micro-batches that pass through a chunk.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    own = getattr(_schedule(schedule), "micro_batches_of", None)
    return range(micro_batches) if own is None else own(chunk, micro_batches, chunks)


def before(schedule: str, stage: int, chunk: int, stages: int, chunks: int = 1) -> tuple[int, int] | None:
    """Return stage and chunk of the previous slice, the source of forward passes and the target of backward passes.

    None for the first slice.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    return _beside(schedule, (stage, chunk), stages, chunks, -1)


def after(schedule: str, stage: int, chunk: int, stages: int, chunks: int = 1) -> tuple[int, int] | None:
    """Return stage and chunk of the next slice, the target of forward passes and the source of backward passes.

    None for the last slice.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    return _beside(schedule, (stage, chunk), stages, chunks, 1)


def in_flight(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> int:
    """Return the maximum number of pairs of micro-batch and chunk whose activations a stage holds at a time.

    Raises:
        WorkloadError: If `check` refuses the pipeline.
    """
    check(schedule, stages, micro_batches, chunks)
    return _schedule(schedule).in_flight(stage, stages, micro_batches, chunks)


def in_flight_of_chunks(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> tuple[int, ...]:
    """Return the number of micro-batches per chunk whose activations a stage holds when it holds the most.

    Raises:
        WorkloadError: If `check` refuses the pipeline.
    """
    check(schedule, stages, micro_batches, chunks)
    own = getattr(_schedule(schedule), "in_flight_of_chunks", None)
    if own is not None:
        return tuple(own(stage, stages, micro_batches, chunks))
    if chunks == 1:
        return (in_flight(schedule, stage, stages, micro_batches),)
    held, maximum = [0] * chunks, (0,) * chunks
    for work in order(schedule, stage, stages, micro_batches, chunks):
        if work.kind == "forward":
            held[work.chunk] += 1
        elif work.kind == "weights" or not work.is_split:
            held[work.chunk] -= 1
        maximum = max(maximum, tuple(held), key=sum)
    return maximum


def takes_vpp(schedule: str) -> bool:
    """Return whether vpp sets the number of chunks per stage.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    return bool(getattr(_schedule(schedule), "TAKES_VPP", False))


def is_mirrored(schedule: str) -> bool:
    """Return whether stages s and p - 1 - s hold the same slices.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    return bool(getattr(_schedule(schedule), "IS_MIRRORED", False))


def waits_for_sends(schedule: str, *, overlap_p2p: bool) -> bool:
    """Return whether Megatron-LM waits until a stage's messages are sent.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    waits = getattr(_schedule(schedule), "waits_for_sends", None)
    return waits is not None and bool(waits(overlap_p2p=overlap_p2p))


def complaint(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> str:
    """Return the invalid number and the valid ones; "" if all are valid.

    Raises:
        WorkloadError: If the schedule is unknown.
    """
    return _schedule(schedule).complaint(stages, micro_batches, chunks)


def check(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> None:
    """Check that a schedule supports the numbers of stages, micro-batches and chunks.

    Raises:
        WorkloadError: If the schedule is unknown or does not support the numbers; the message has the nearest ones.
    """
    for key, count in (("pp", stages), ("micro-batches", micro_batches), ("vpp", chunks)):
        if not 1 <= count <= _MAX_COUNT:
            raise WorkloadError(f"plan: schedule {schedule} with {key} {count}: expected at least 1")
    message = complaint(schedule, stages, micro_batches, chunks)
    if message:
        raise WorkloadError(f"plan: schedule {schedule}: {message}")


def _beside(schedule: str, place: tuple[int, int], stages: int, chunks: int, step: int) -> tuple[int, int] | None:
    """Return stage and chunk of the slice that is `step` slices after that of a place, None outside the model."""
    target = position(schedule, *place, stages, chunks) + step
    if not 0 <= target < slices(schedule, stages, chunks):
        return None
    at = getattr(_schedule(schedule), "at", None)
    return (target, place[1]) if at is None else at(target, place[1], stages, chunks)


def _schedule(name: str) -> PipelineSchedule:
    known = schedules()
    if name not in known:
        raise WorkloadError(f"plan: schedule {name!r}, expected one of {', '.join(sorted(known))}")
    return known[name]
