"""Pipeline schedules: one per module of this folder, of an installed package, or in a file of the user's.

A pipeline has p *stages*, each with one or more *chunks* of consecutive layers. The model is cut into slices, numbered
from 0 at its beginning, and each chunk holds one slice. A step sends m micro-batches through all slices forward and
then backward.

A module defines `Pipeline`, a subclass of `PipelineSchedule` with `order` and `in_flight`. It overrides
the other members where the schedule differs from one that has a single chunk per stage.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from nadi.inputs import plug_ins
from nadi.workload.errors import WorkloadError

# Base class of pipeline schedules, and the passes of a pipeline stage.


class Work(NamedTuple):
    """One pass of one micro-batch through one chunk of layers."""

    # "forward"; "backward", including gradients of weights unless is_split; or "weights", the gradients of weights that
    # a split backward pass defers
    kind: Literal["forward", "backward", "weights"]
    micro_batch: int  # Number of the micro-batch, from 0, unique in the step of a replica
    chunk: int = 0  # Number of the chunk in the stage, from 0
    is_split: bool = False  # Whether a backward pass computes only gradients of inputs; later passes those of weights
    # Whether this forward pass runs together with the backward pass that follows it in the list, layer by layer, so
    # that the communication of each overlaps the computation of the other
    is_paired: bool = False


@dataclass(frozen=True)
class PipelineSchedule(ABC):
    """The order of passes in a pipeline; by default stage s has one chunk, which holds slice s."""

    stages: int  # p, number of stages
    micro_batches: int  # m, number of micro-batches per step
    vpp: int = 1  # Number of model chunks per stage in the plan
    # Whether forward passes run together with the backward passes after them, which are of earlier micro-batches
    pairs: bool = False

    TAKES_PAIRS: ClassVar[bool] = False  # Whether plans may ask for pairs of passes (overlap_ep)
    TAKES_VPP: ClassVar[bool] = False  # Whether plans may set vpp, the number of chunks per stage
    # Whether two stages hold every slice: stages s and p - 1 - s both hold the slices s and p - 1 - s and are replicas
    # of each other
    IS_MIRRORED: ClassVar[bool] = False
    # When a stage of Megatron-LM waits until its messages are sent; "without overlap" = unless the plan has overlap_p2p
    WAITS_FOR_SENDS: ClassVar[Literal["always", "without overlap", "never"]] = "never"

    @abstractmethod
    def order(self, stage: int) -> list[Work]:
        """Return the passes of a stage in the order of execution: each micro-batch of each chunk, both ways.

        Args:
            stage: The number of the pipeline stage, from 0.
        """

    @abstractmethod
    def in_flight(self, stage: int) -> tuple[int, ...]:
        """Return how many micro-batches' activations a stage holds per chunk at their maximum.

        A micro-batch counts from the start of its forward pass to the end of its backward pass, including the gradients
        of weights.

        Args:
            stage: The number of the pipeline stage, from 0.
        """

    @property
    def chunks(self) -> int:
        """Number of chunks per stage."""
        return self.vpp

    @property
    def slices(self) -> int:
        """Number of slices into which the model is cut."""
        return self.stages if self.IS_MIRRORED else self.stages * self.chunks

    def complaint(self) -> str:
        """Return an invalid number that `rules` accepts, and the nearest valid ones; "" if all are valid."""
        return ""

    def position(self, stage: int, chunk: int) -> int:
        """Return the slice of the model that a chunk of a stage holds, from 0.

        Args:
            stage: The number of the pipeline stage, from 0.
            chunk: The number of the chunk in its stage, from 0.
        """
        return stage

    def beside(self, stage: int, chunk: int, step: int) -> int | None:
        """Return the stage that holds the slice some slices after that of a chunk; None outside the model.

        Args:
            stage: The number of the pipeline stage, from 0.
            chunk: The number of the chunk in its stage, from 0.
            step: The number of slices after it: 1 is the target of forward passes, -1 that of backward passes.
        """
        # The next slice (step 1) is the target of forward passes and the source of backward passes; the previous one
        # (-1) is the reverse. If two stages hold each slice (DualPipe), a micro-batch keeps its direction.
        position = self.position(stage, chunk) + step
        if not 0 <= position < self.slices:
            return None
        return self.position(position, chunk) if self.IS_MIRRORED else position % self.stages


KIND = "pipeline schedule"


def schedule_of(name: str) -> type[PipelineSchedule]:
    """Return a pipeline schedule. Raises WorkloadError: the name is unknown, or the file holds no schedule.

    Args:
        name: The name of a schedule, or the path of a Python file with one.
    """
    found: type[PipelineSchedule] = plug_ins.module(KIND, name, WorkloadError).Pipeline
    return found
