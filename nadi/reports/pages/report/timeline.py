"""The timeline of a few NPUs; `nadi timeline` has all nodes."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.arrow import arrow_numbers, numpy_column
from nadi.insight.runs import Run
from nadi.reports.pages.charts import heat_map
from nadi.reports.pages.network import time_before
from nadi.reports.pages.page import PageSection, Paragraph, Part, Plot
from nadi.reports.pages.report.step import COLOURS, npu_groups
from nadi.simulation.schemas import COMMUNICATION_AXES, NODES
from nadi.terminal import time_unit

MAX_NPUS = 16  # Number of NPUs that are shown
STRETCHES = 1500  # Number of intervals that the run is divided into
SHADES = 5  # Number of steps of opacity, which shows the share of an interval that an activity covers
MIN_COVER = 0.02  # Share of an interval below which an activity is not drawn
_LANES = ("compute", "communication", "memory")
_NAMES = ("compute", *COMMUNICATION_AXES, "communication", "memory", "other")


def section(run: Run) -> PageSection:
    """Return the section with a timeline: a row per lane of a few NPUs.

    Args:
        run: Finished run that the page shows.
    """
    title, lead = "Timeline", "Compute and communication of some NPUs over time."
    if not run.has(NODES):
        why = 'The run kept no trace nodes ([output] nodes = "none"), so there is no timeline.'
        return PageSection("timeline", title, lead, [Paragraph(why)])
    parts: list[Part] = [_plot(run)]
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


def _plot(run: Run) -> Plot:
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
    colours = [_shade(COLOURS[name], (level + 1) / SHADES) for name in _NAMES for level in range(SHADES)]
    count, middles = len(colours), (edges[:-1] + edges[1:]) / 2 / unit.ps
    steps = [[(number + side) / count, colour] for number, colour in enumerate(colours) for side in (0, 1)]
    look = {"zmin": -0.5, "zmax": count - 0.5, "colorscale": steps, "showscale": False, "ygap": 1}
    hover = f"%{{y}}, %{{x:,.5g}} {unit.name}: %{{text}}"
    drawn = heat_map(middles, rows, np.array(values), unit.name, hover, text=np.array(texts), **look)
    for code in sorted(used):
        marker = {"color": COLOURS[_NAMES[code]], "symbol": "square", "size": 12}
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
