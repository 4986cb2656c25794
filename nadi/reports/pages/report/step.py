"""The section on the time of the NPUs: compute, exposed communication by axis, bubble, idle.

It is shown by group of NPUs: pipeline stages, else the NPUs of a small run, else one group of all NPUs.
"""

from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.arrow import numpy_column
from nadi.insight.runs import Run
from nadi.reports.pages.charts import bars
from nadi.reports.pages.page import Heading, PageSection, Part, Plot, Table
from nadi.simulation.schemas import COMMUNICATION_AXES, STEP_CATEGORIES
from nadi.terminal import TimeUnit, in_unit, time_unit

# Colour of each category of time
COLOURS = {
    "compute": "#2ca02c",
    "tp": "#1f77b4",
    "cp": "#00a2b4",
    "ep": "#9467bd",
    "etp": "#cc6ce4",
    "dp": "#ea7200",
    "pp": "#e4549c",
    "embedding": "#905a4e",
    "kv": "#909c00",
    "world": "#5b6b8c",
    "unnamed": "#2460fc",
    "communication": "#3d8fd1",
    "memory": "#909c00",
    "bubble": "#a09060",
    "host": "#c07a2c",
    "other": "#7a9a6f",
    "idle": "#8a969c",
}
MAX_GROUPS = 32  # Number of groups that are shown


class NpuGroups(NamedTuple):
    """The groups of a run."""

    names: list[str]  # g names of groups
    group: Int64  # int64[npus], group of each NPU
    why: str  # Description of a group in words

    def first(self) -> list[int]:
        """Return the first NPU of each group."""
        return [int(np.flatnonzero(self.group == number)[0]) for number in range(len(self.names))]


def section(run: Run) -> PageSection | None:
    """Return the section about time by category: a chart and a table with a row per group of NPUs.

    None if the NPUs only send messages, which is no time of theirs.

    Args:
        run: The run, read from its folder (`Run`).
    """
    if run.has_only_messages:
        return None
    groups, times = npu_groups(run), times_of(run)
    unit = _unit(times)
    means = {name: _means(groups, values) / unit.ps for name, values in times.items()}
    drawn = bars(groups.names, means, [COLOURS[name] for name in times], unit.name)
    whole = sum(values.mean() for values in times.values()) or 1.0
    shares = [f"{name} {values.mean() / whole:.1%}" for name, values in times.items()]
    description = f"Mean of all NPUs: {', '.join(shares)}."
    height = max(130 + 26 * len(groups.names), 90 + 20 * len(times))  # bars, or lines of the legend
    parts: list[Part] = [
        Plot(f"time of the run by category ({unit.name})", drawn, description, height),
        _table(groups, times),
    ]
    lead = f"Each bar is {groups.why}; the parts add up to the run. Communication that compute hides does not appear."
    return PageSection("step", "Time by category", lead, parts)


def times_of(run: Run) -> dict[str, Float64]:
    """Return float64[npus] picoseconds for each category with a non-zero value; the categories add up to the run."""
    if run.steps is not None:
        found = {name: numpy_column(run.steps[f"{name}_ps"], np.float64) for name in STEP_CATEGORIES}
    else:
        kinds = ("compute", "exposed", "host", "idle")
        npus = {name: numpy_column(run.npus[f"{name}_ps"], np.float64) for name in kinds}
        # the part of the run that no kind explains
        npus["other"] = run.finish_time_ps - np.sum(list(npus.values()), axis=0)
        npus["communication"] = npus.pop("exposed")
        found = {name: npus[name] for name in ("compute", "communication", "host", "other", "idle")}
    return {name: values for name, values in found.items() if values.any()}


def exposed(times_by_category: dict[str, Float64]) -> Float64:
    """Return float64[npus]: exposed communication of all axes.

    Args:
        times_by_category: float64[npus] by name of the category.
    """
    names = [name for name in times_by_category if name in {*COMMUNICATION_AXES, "unnamed", "communication"}]
    return (
        np.sum([times_by_category[name] for name in names], axis=0)
        if names
        else np.zeros(len(next(iter(times_by_category.values()))))
    )


def _unit(times: dict[str, Float64]) -> TimeUnit:
    """Return the unit of the chart and the table."""
    return time_unit([float(sum(values[0] for values in times.values()))])


def _means(groups: NpuGroups, values: Float64) -> Float64:
    return np.bincount(groups.group, values) / np.bincount(groups.group)


def _table(groups: NpuGroups, times_by_category: dict[str, Float64]) -> Table:
    """Return a row per group of NPUs with its time by category."""
    unit = _unit(times_by_category)
    headings = [Heading("NPUs", groups.why.capitalize() + ".", is_text=True)]
    headings += [Heading(f"{name} ({unit.name})") for name in times_by_category]
    headings.append(Heading("exposed share"))
    means = {name: _means(groups, values) for name, values in times_by_category.items()}
    whole, hidden = np.sum(list(means.values()), axis=0), _means(groups, exposed(times_by_category))
    rows = []
    for number, name in enumerate(groups.names):
        share = hidden[number] / whole[number] if whole[number] else 0.0
        rows.append([name, *(in_unit(values[number], unit) for values in means.values()), f"{share:.1%}"])
    return Table("time by category", headings, rows)


def npu_groups(run: Run) -> NpuGroups:
    """Return the pipeline stages if the run has a plan with several, else the NPUs, else one group of all NPUs."""
    npus = int(run.summary.get("npus", len(run.npus)))
    stages = _stages(run)
    if 1 < stages <= MAX_GROUPS and npus % stages == 0:
        names = [f"stage {stage}" for stage in range(stages)]
        return NpuGroups(names, np.arange(npus) // (npus // stages), "the NPUs of a pipeline stage, their mean")
    if npus <= MAX_GROUPS:
        return NpuGroups([f"npu {npu}" for npu in range(npus)], np.arange(npus), "an NPU")
    # an NPU that is idle for the whole run has no work
    busy = numpy_column(run.npus["idle_ps"]) < run.finish_time_ps
    names = ["all NPUs"] if busy.all() or not busy.any() else ["NPUs with work", "idle NPUs"]
    group = np.zeros(npus, np.int64) if len(names) == 1 else np.where(busy, 0, 1)
    return NpuGroups(names, group, "NPUs, their mean")


def _stages(run: Run) -> int:
    """Return the number of pipeline stages, whose NPUs are consecutive because pp varies slowest; 1 without a plan."""
    plan = run.config.training_plan()
    if plan is None:
        return 1
    return plan.pp if plan.gpus == run.summary.get("npus") else 1
