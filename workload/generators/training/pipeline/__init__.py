"""Pipeline schedules: one per module of this folder, of an installed package, or in a file of the user's.

A pipeline has p *stages*, each with one or more *chunks* of consecutive layers. The model is cut into slices, numbered
from 0 at its beginning, and each chunk holds one slice. A step sends m micro-batches through all slices forward and
then backward.

A module defines `Pipeline`, a subclass of `PipelineSchedule` (`schedule.py`) with `order` and `in_flight`. It overrides
the other members where the schedule differs from one that has a single chunk per stage.
"""

from nadi.inputs import plug_ins
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.training.pipeline.schedule import PipelineSchedule, Work

KIND = "pipeline schedule"


def schedule_of(name: str) -> type[PipelineSchedule]:
    """Return a pipeline schedule. Raises WorkloadError: the name is unknown, or the file holds no schedule.

    Args:
        name: The name of a schedule, or the path of a Python file with one.
    """
    found: type[PipelineSchedule] = plug_ins.module(KIND, name, WorkloadError).Pipeline
    return found
