"""The groups of NPUs in the report: pipeline stages, else the NPUs of a small run, else one group of all NPUs."""

from typing import NamedTuple

import numpy as np

from et.arrays import Int64
from nadi.insight.runs import Run

MAX_GROUPS = 32  # Number of groups that are shown


class NpuGroups(NamedTuple):
    """The groups of a run."""

    names: list[str]  # g names of groups
    group: Int64  # int64[npus], group of each NPU
    why: str  # Description of a group in words

    def first(self) -> list[int]:
        """Return the first NPU of each group."""
        return [int(np.flatnonzero(self.group == number)[0]) for number in range(len(self.names))]


def npu_groups(run: Run) -> NpuGroups:
    """Return the pipeline stages if the run has a plan with several, else the NPUs, else one group of all NPUs."""
    npus = int(run.summary.get("npus", len(run.npus)))
    stages = _stages(run)
    if 1 < stages <= MAX_GROUPS and npus % stages == 0:
        names = [f"stage {stage}" for stage in range(stages)]
        return NpuGroups(names, np.arange(npus) // (npus // stages), "the NPUs of a pipeline stage, their mean")
    if npus <= MAX_GROUPS:
        return NpuGroups([f"npu {npu}" for npu in range(npus)], np.arange(npus), "an NPU")
    busy = np.asarray(run.npus["idle_ps"]) < run.finish_time_ps
    names = ["all NPUs"] if busy.all() or not busy.any() else ["NPUs with work", "idle NPUs"]
    group = np.zeros(npus, np.int64) if len(names) == 1 else np.where(busy, 0, 1)
    return NpuGroups(names, group, "NPUs, their mean")


def _stages(run: Run) -> int:
    """Return the number of pipeline stages, whose NPUs are consecutive because pp varies slowest; 1 without a plan."""
    plan = run.config.workload.plan
    if plan is None or run.config.workload.framework == "inference":
        return 1
    return plan.pp if plan.gpus == run.summary.get("npus") else 1
