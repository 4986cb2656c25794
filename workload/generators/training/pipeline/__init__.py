"""Pipeline schedules, one per module of this folder; `schedules` finds the modules.

A pipeline has p *stages*, each with one or more *chunks* of consecutive layers. The model is cut into slices, numbered
from 0 at its beginning, and each chunk holds one slice. A step sends m micro-batches through all slices forward and
then backward.

A module defines a subclass of `PipelineSchedule` (`schedule.py`) with `NAME`, `order` and `in_flight`. It overrides the
other members where the schedule differs from one that has a single chunk per stage.
"""

import functools
import importlib
import pkgutil

from workload.generators.training.pipeline.schedule import PipelineSchedule, Work


@functools.cache
def schedules() -> dict[str, type[PipelineSchedule]]:
    """Return all schedules by name."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    members = [member for module in modules for member in vars(module).values()]
    classes = [member for member in members if isinstance(member, type) and issubclass(member, PipelineSchedule)]
    return {kind.NAME: kind for kind in classes if kind is not PipelineSchedule}
