"""Sections about time in the report of a run: the step by axis of parallelism, the timeline, and collectives."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.inputs.arrays import Float64, Int64, arrow_numbers, numpy_column
from nadi.insight.node_times import CollectiveKey, slowest_collectives
from nadi.insight.runs import Run
from nadi.reports.pages.charts import bar_chart, empty_figure, heat_map, series_style
from nadi.reports.pages.network import time_before
from nadi.reports.pages.page import Heading, PageSection, Paragraph, Part, Plot, Table, from_terminal
from nadi.reports.text.run import collective_table
from nadi.simulation.schemas import COMMUNICATION_AXES, NODES, STEP_CATEGORIES
from nadi.terminal import TimeUnit, in_page, in_unit, time_unit

# Colour of each category of time
CATEGORY_COLOURS = {
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


def step_section(run: Run) -> PageSection | None:
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
    drawn = bar_chart(groups.names, means, [CATEGORY_COLOURS[name] for name in times], unit.name)
    whole = sum(values.mean() for values in times.values()) or 1.0
    shares = [f"{name} {values.mean() / whole:.1%}" for name, values in times.items()]
    description = f"Mean of all NPUs: {', '.join(shares)}."
    height = max(130 + 26 * len(groups.names), 90 + 20 * len(times))  # bars, or lines of the legend
    parts: list[Part] = [
        Plot(f"time of the run by category ({unit.name})", drawn, description, height),
        _step_table(groups, times),
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


def _step_table(groups: NpuGroups, times_by_category: dict[str, Float64]) -> Table:
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


MAX_NPUS = 16  # Number of NPUs that are shown
STRETCHES = 1500  # Number of intervals that the run is divided into
SHADES = 5  # Number of steps of opacity, which shows the share of an interval that an activity covers
MIN_COVER = 0.02  # Share of an interval below which an activity is not drawn
_LANES = ("compute", "communication", "memory")
_NAMES = ("compute", *COMMUNICATION_AXES, "communication", "memory", "other")


def timeline_section(run: Run) -> PageSection:
    """Return the section with a timeline: a row per lane of a few NPUs.

    Args:
        run: Finished run that the page shows.
    """
    title, lead = "Timeline", "Compute and communication of some NPUs over time."
    if not run.has(NODES):
        why = 'The run kept no trace nodes ([output] nodes = "none"), so there is no timeline.'
        return PageSection("timeline", title, lead, [Paragraph(why)])
    parts: list[Part] = [_timeline_plot(run)]
    parts.append(Paragraph(f"nadi timeline {run.folder} -o run.perfetto-trace has every node, for ui.perfetto.dev."))
    return PageSection("timeline", title, lead, parts)


def sampled(run: Run) -> list[int]:
    """Return the NPUs that are shown: the first of each group, and others up to MAX_NPUS.

    Args:
        run: Finished run that the page shows.
    """
    first = npu_groups(run).first()
    npus = int(run.summary.get("npus", len(run.npus)))
    # without groups: NPUs that are evenly spaced
    if len(first) < 2 and npus > 1:
        first = np.unique(np.linspace(0, npus - 1, MAX_NPUS // 2).astype(int)).tolist()
    if len(first) > MAX_NPUS:
        first = [first[at] for at in np.unique(np.linspace(0, len(first) - 1, MAX_NPUS).astype(int))]
    has_nodes = set(pc.unique(run.nodes["npu"]).to_pylist())
    return [npu for npu in first if npu in has_nodes] or sorted(has_nodes)[:MAX_NPUS]


def _timeline_plot(run: Run) -> Plot:
    """Return a heat map of the activities of some NPUs over time, a row per lane."""
    npus, unit = sampled(run), time_unit([run.finish_time_ps])
    edges = np.linspace(0, max(run.finish_time_ps, 1), STRETCHES + 1)
    rows, values, texts = [], [], []
    used: set[int] = set()
    for npu in npus:
        for lane, codes, covers in _lanes(run.nodes, npu, edges):
            rows.append(f"npu {npu} {lane}")
            values.append(np.where(covers < MIN_COVER, np.nan, codes * SHADES + np.ceil(covers * SHADES) - 1))
            names = np.array(_NAMES)[codes]
            texts.append([f"{name}, busy {cover:.0%}" for name, cover in zip(names, covers, strict=True)])
            used |= set(np.unique(codes[covers >= MIN_COVER]).tolist())
    colours = [_shade(CATEGORY_COLOURS[name], (level + 1) / SHADES) for name in _NAMES for level in range(SHADES)]
    count, middles = len(colours), (edges[:-1] + edges[1:]) / 2 / unit.ps
    steps = [[(number + side) / count, colour] for number, colour in enumerate(colours) for side in (0, 1)]
    look = {"zmin": -0.5, "zmax": count - 0.5, "colorscale": steps, "showscale": False, "ygap": 1}
    hover = f"%{{y}}, %{{x:,.5g}} {unit.name}: %{{text}}"
    drawn = heat_map(middles, rows, np.array(values), unit.name, hover, text=np.array(texts), **look)
    for code in sorted(used):
        marker = {"color": CATEGORY_COLOURS[_NAMES[code]], "symbol": "square", "size": 12}
        drawn.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=_NAMES[code])
    drawn.update_xaxes(range=[0, run.finish_time_ps / unit.ps])
    description = f"{len(npus)} of {run.summary.get('npus', 0):,} NPUs. A point shows the activity that covers most of "
    description += f"1/{STRETCHES:,} of the run, fainter if it covers less. Drag to look closer."
    return Plot("lanes of some NPUs over time", drawn, description, 140 + 22 * len(rows))


def _shade(colour: str, opacity: float) -> str:
    """Return a colour "#rrggbb" with an opacity from 0 to 1."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def _lanes(nodes: pa.Table, npu: int, interval_edges: Float64) -> list[tuple[str, Int64, Float64]]:
    """Return for each non-empty lane of an NPU: name, activity that covers most of each interval, and its share."""
    own = nodes.take(arrow_numbers(np.flatnonzero(numpy_column(nodes["npu"]) == npu)))
    start_ps, finish_ps = (numpy_column(own[name], np.float64) for name in ("start_ps", "finish_ps"))
    code = _codes(own)
    found = []
    for lane, codes in zip(_LANES, ([0], range(1, _NAMES.index("memory")), [_NAMES.index("memory")]), strict=True):
        covers = np.stack([_covered(start_ps[code == each], finish_ps[code == each], interval_edges) for each in codes])
        if covers.any():
            # kinds may overlap: the one that covers most is shown
            most = covers.argmax(axis=0)
            found.append((lane, np.array(codes)[most], np.minimum(covers.max(axis=0), 1.0)))
    return found


def _codes(nodes: pa.Table) -> Int64:
    """Return int64[n]: activity of each node as an index of _NAMES; -1 = not shown."""
    kind, lane = (numpy_column(nodes[name]) for name in ("kind", "lane"))
    code = np.full(len(kind), -1)
    code[(kind == "compute") & (lane == "compute")] = 0
    code[kind == "memory"] = _NAMES.index("memory")
    at = np.flatnonzero(np.isin(kind, ("send", "recv", "collective")))
    for row, name in zip(at.tolist(), nodes["name"].take(arrow_numbers(at)).to_pylist(), strict=True):
        axis = name.rpartition("/")[2].partition(":")[0]
        code[row] = _NAMES.index(axis if axis in COMMUNICATION_AXES else "communication")
    return code


def _covered(start_ps: Float64, finish_ps: Float64, interval_edges: Float64) -> Float64:
    """Return float64[stretches]: share of each interval that the activities cover; overlaps count twice."""
    return (
        np.diff(time_before(finish_ps, interval_edges) - time_before(start_ps, interval_edges))
        * -1
        / np.diff(interval_edges)
    )


MAX_COLLECTIVES = 40  # Number of rows in the table
MAX_POINTS = 3000  # Number of points in the chart


def collectives_section(run: Run) -> PageSection:
    """Return the section about collectives: a chart of bus bandwidth over size, and a table.

    Args:
        run: Finished run that the page shows.
    """
    found = slowest_collectives(run.collectives)
    table = collective_table(run.collectives, MAX_COLLECTIVES, with_waits=True)
    parts: list[Part] = [_collectives_plot(run, found), from_terminal(table)] if found else []
    lead = "Time of each collective against the same steps on an idle network."
    return PageSection("collectives", "Collectives", lead, parts)


def _collectives_plot(run: Run, rows_of_key: list[tuple[CollectiveKey, Int64]]) -> Plot:
    """Return a chart of bus bandwidth over size, with the closed forms."""
    bus = numpy_column(run.collectives["busbw_Bps"]) / 1e9
    ratio = numpy_column(run.collectives["ratio"], np.float64)
    closed_ps = numpy_column(run.collectives["closed_form_ps"], np.float64)
    drawn = empty_figure("size (bytes)", "bus bandwidth (GB/s)")
    series = sorted({(key.group, key.kind) for key, _ in rows_of_key})
    for number, (name, kind) in enumerate(series):
        own = [(key.size_bytes, rows) for key, rows in rows_of_key if (key.group, key.kind) == (name, kind)]
        rows = np.concatenate([rows for _, rows in own])
        shown = rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_POINTS // len(series) + 1)).astype(np.int64)]
        look = series_style(number)
        drawn.add_scatter(
            x=numpy_column(run.collectives["bytes"])[shown],
            y=bus[shown],
            mode="markers",
            name=in_page(f"{name or 'all'} {kind}"),
            marker={"color": look.colour, "symbol": f"circle{look.mark}", "size": 8, "opacity": 0.7},
            customdata=np.stack([np.round(ratio[shown], 3)], axis=1),
            hovertemplate="%{x:.4s}B, %{y:,.4g} GB/s, %{customdata[0]} of closed form<extra>%{fullData.name}</extra>",
        )
        ideal = sorted(((size, rows) for size, rows in own if closed_ps[rows].mean() > 0), key=lambda each: each[0])
        drawn.add_scatter(
            x=[size for size, _ in ideal],
            y=[float(np.mean(bus[rows] * ratio[rows])) for _, rows in ideal],
            mode="markers",
            name=in_page(f"{name or 'all'} {kind}, closed form"),
            marker={"symbol": "line-ew-open", "size": 18, "color": look.colour, "line": {"width": 2}},
            showlegend=False,
        )
    drawn.update_xaxes(type="log", exponentformat="SI")
    drawn.update_yaxes(rangemode="tozero")
    slow = [rows for _, rows in rows_of_key if np.nanmean(ratio[rows]) > 1.05]
    description = "Points are collectives, dashed lines their closed forms on an idle network. In the table below, "
    description += f"{len(slow) or 'no'} {'row is' if len(slow) == 1 else 'rows are'} more than 5 % slower than that."
    return Plot("bus bandwidth over size", drawn, description)
