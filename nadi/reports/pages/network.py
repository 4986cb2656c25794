"""The page of `nadi net`: utilisation, queues, completion times, pauses and how they spread.

Needs plotly, an extra.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.insight.analysis.network import NetRun, find_pauses, most, tiers
from nadi.insight.analysis.network import Table as Columns
from nadi.reports.pages.page import Heading, Page, PageSection, Paragraph, Part, Plot, Table
from nadi.reports.pages.series import SeriesStyle, style
from nadi.reports.text.network import ports, spread_heading
from nadi.simulation.fidelities import LOGGED_PAUSES
from nadi.terminal.printing import in_page
from nadi.terminal.readable import TimeUnit, amount_text, size_text, time_text, time_unit

Int64 = NDArray[np.int64]

MAX_LINKS = 200
"""Number of links per tier in the chart of utilisation."""
MAX_PORTS = 12
"""Number of ports in the chart of queues."""
MAX_PAUSED = 30
"""Number of links in the charts of pauses and marks."""
MAX_POINTS = 2000
"""Number of points per line."""
STRETCHES = 400
"""Number of intervals in the charts over time."""
MAX_SECTORS = 500
"""Number of links in the chart of trees."""
_HEAT = ((0, "rgba(128,140,155,0.08)"), (0.5, "#e46a30"), (1, "#d6202a"))


def page(run: NetRun, document: Mapping[str, Any]) -> Page:
    """Return the page of `nadi net DIR -o FILE.html`.

    Args:
        run: Network results of the run.
        document: Result of nadi.insight.analysis.network.document for the run.
    """
    lead = "Utilisation of links, queues, pauses, and completion times of messages."
    title = f"{run.summary.get('topology', '')}: {time_text(run.summary.get('finish_time_ps') or 0)}"
    return Page(title, "The network of a run.", [PageSection("network", "Network", lead, parts(run, document))])


def parts(run: NetRun, document: Mapping[str, Any]) -> list[Part]:
    """Return utilisation, queues, completion times, pauses, their trees and delayed messages, where present."""
    finish = time_unit([run.summary.get("finish_time_ps") or 0])
    looks = (style(number) for number in itertools.count())
    made: list[Part] = [_utilisation(run, looks)]
    if run.queues and len(run.queues["link"]):
        made.append(_queues(run, run.queues, finish, looks))
    if run.pauses is not None and len(run.pauses["link"]):
        made.append(_paused_over_time(run, finish))
    if run.marks is not None and len(run.marks["link"]):
        made.append(_marked_over_time(run, run.marks, finish))
    if run.links["marked_packets"].any():
        made.append(_marked(run))
    if run.flows and len(run.flows["src"]):
        made.append(_completion(run.flows, looks))
    if document["trees"]:
        made += [_paused(run, finish), _trees(document)]
    made.append(Paragraph(_spread_title(document)))
    made += _victims(document)
    return made


def _utilisation(run: NetRun, looks: Iterator[SeriesStyle]) -> Plot:
    """Return a row of points and a box for each tier, so that tiers with the same values do not hide each other."""
    from plotly import graph_objects as go

    drawn, tier, unused = go.Figure(), np.array(tiers(run.links)), list[str]()
    for name in dict.fromkeys(tier.tolist()):
        here = np.flatnonzero(tier == name)
        here = here[np.argsort(-run.links["utilisation"][here], kind="stable")][:MAX_LINKS]
        if not run.links["utilisation"][here].any():
            unused.append(name)
            continue
        drawn.add_trace(
            go.Box(
                x=run.links["utilisation"][here],
                name=in_page(name),
                text=[in_page(run.links["name"][link]) for link in here.tolist()],
                boxpoints="all",
                jitter=0.5,
                pointpos=0,
                marker={"color": next(looks).colour, "size": 5},
                orientation="h",
            )
        )
    rows = len(drawn.data)
    drawn.update_layout(showlegend=False, margin={"t": 10, "b": 50, "l": 10, "r": 10})
    drawn.update_xaxes(title_text="share of the run in which a link sent", rangemode="tozero", tickformat=".1~%")
    drawn.update_yaxes(autorange="reversed")
    busiest = int(np.argmax(run.links["utilisation"])) if len(tier) else 0
    description = (
        f"The busiest link is {run.links['name'][busiest]}, {run.links['utilisation'][busiest]:.1%} of the run. "
    )
    description += "A point is a link, a box has the middle half of a tier's links."
    if unused:
        description += f" Links {', '.join(unused)} carried nothing."
    return Plot("utilisation by tier", drawn, description, 130 + 60 * rows)


def _queues(run: NetRun, queues: Columns, unit: TimeUnit, looks: Iterator[SeriesStyle]) -> Plot:
    from plotly import graph_objects as go

    drawn = go.Figure()
    link, depth = queues["link"], queues["bytes"]
    fullest = np.zeros(len(run.links["name"]), np.int64)
    np.maximum.at(fullest, link, depth)
    order = np.argsort(-fullest, kind="stable")
    moments = np.unique(queues["time_ps"])
    stretch_ps = int(np.diff(moments).min()) if len(moments) > 1 else 1
    for port in order[fullest[order] > 0][:MAX_PORTS].tolist():
        here = np.flatnonzero(link == port)
        here = here[np.argsort(queues["time_ps"][here], kind="stable")]
        begins_ps, most = _stretches(queues["time_ps"][here], depth[here], stretch_ps)
        each = -(-len(begins_ps) // MAX_POINTS)  # intervals per point, which shows their largest queue
        first = np.arange(0, len(begins_ps), each)
        drawn.add_scatter(
            x=begins_ps[first] / unit.ps,
            y=np.maximum.reduceat(most, first),
            name=in_page(run.links["name"][port]),
            mode="lines",
            line_shape="hv",
            **_drawn_as(next(looks)),
        )
    _axes(drawn, unit.name, "maximum queue per interval")
    drawn.update_yaxes(rangemode="tozero", exponentformat="SI", ticksuffix="B")
    fullest_port = int(order[0])
    description = (
        f"The fullest is {run.links['name'][fullest_port]}, {amount_text(int(fullest[fullest_port]))} at most."
    )
    return Plot(f"queues of the {min(MAX_PORTS, int((fullest > 0).sum()))} fullest ports over time", drawn, description)


def _stretches(begin_ps: Int64, waited: Int64, stretch_ps: int) -> tuple[Int64, Int64]:
    """Return times and bytes with a 0 at the begin of each gap, because intervals without waiting bytes have no row."""
    gaps = np.flatnonzero(np.diff(begin_ps, append=begin_ps[-1] + 2 * stretch_ps) > stretch_ps)
    times = np.concatenate([begin_ps, begin_ps[gaps] + stretch_ps])
    order = np.argsort(times, kind="stable")
    return times[order], np.concatenate([waited, np.zeros(len(gaps), np.int64)])[order]


def _paused_over_time(run: NetRun, unit: TimeUnit) -> Plot:
    """Return a heat map: for the links paused longest, the paused share of each interval."""
    from plotly import graph_objects as go

    finish_ps = int(run.summary.get("finish_time_ps") or 1)
    edges, found = np.linspace(0, finish_ps, STRETCHES + 1), find_pauses(run.pauses or {}, finish_ps)
    longest = np.bincount(found.link, found.end_ps - found.start_ps, minlength=len(run.links["name"]))
    shown = [link for link in np.argsort(-longest, kind="stable")[:MAX_PAUSED].tolist() if longest[link] > 0]
    shares = []
    for link in shown:
        here = found.link == link
        covered = np.diff(time_before(found.start_ps[here], edges) - time_before(found.end_ps[here], edges))
        shares.append(np.round(np.minimum(covered / (finish_ps / STRETCHES), 1), 4))
    drawn = go.Figure(
        go.Heatmap(
            x=(edges[:-1] + edges[1:]) / 2 / unit.ps,
            y=[in_page(run.links["name"][link]) for link in shown],
            z=shares,
            zmin=0,
            zmax=1,
            colorscale=_HEAT,
            colorbar={"title": {"text": "paused"}, "tickformat": ".0%", "thickness": 12},
            ygap=1,
            hovertemplate=f"%{{y}}, %{{x:,.5g}} {unit.name}: paused %{{z:.0%}} of the interval<extra></extra>",
        )
    )
    _axes(drawn, unit.name, "")
    drawn.update_yaxes(autorange="reversed", fixedrange=True)
    which = "The only link that was paused" if len(shown) == 1 else f"The {len(shown)} links that were paused longest"
    description = f"{which}; an interval is 1/{STRETCHES} of the run. "
    description += f"The first pause was sent after {time_text(int(found.start_ps.min()))}."
    if len((run.pauses or {"link": ()})["link"]) >= LOGGED_PAUSES:
        description += f" The log has only the first {LOGGED_PAUSES:,} pauses and resumes."
    return Plot("links paused by PFC over time", drawn, description, 140 + 20 * len(shown))


def time_before(times_ps: NDArray[Any], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64[edges]: sum over the times before each edge of their distance to it."""
    ordered = np.sort(times_ps)
    count = np.searchsorted(ordered, edges)
    return edges * count - np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])[count]


def _marked_over_time(run: NetRun, marks: Columns, unit: TimeUnit) -> Plot:
    """Return a heat map: for the ports with most marks, the number of marked packets per interval."""
    from plotly import graph_objects as go

    moments = np.unique(np.concatenate([marks["time_ps"], *([run.queues["time_ps"]] if run.queues else [])]))
    width_ps = int(np.diff(moments).min()) if len(moments) > 1 else int(moments[0]) or 1
    finish_ps = max(int(run.summary.get("finish_time_ps") or 1), int(moments[-1]) + 1)
    stretches = -(-finish_ps // width_ps)
    most_marked = np.bincount(marks["link"], marks["packets"], minlength=len(run.links["name"]))
    shown = [link for link in np.argsort(-most_marked, kind="stable")[:MAX_PAUSED].tolist() if most_marked[link] > 0]
    counts = np.zeros((len(shown), stretches), np.int64)
    row = np.full(len(most_marked), -1)
    row[shown] = np.arange(len(shown))
    own = row[marks["link"]] >= 0
    np.add.at(counts, (row[marks["link"][own]], marks["time_ps"][own] // width_ps), marks["packets"][own])
    drawn = go.Figure(
        go.Heatmap(
            x=(np.arange(stretches) + 0.5) * width_ps / unit.ps,
            y=[in_page(run.links["name"][link]) for link in shown],
            z=counts,
            colorscale=_HEAT,
            colorbar={"title": {"text": "packets"}, "thickness": 12},
            ygap=1,
            hovertemplate=f"%{{y}}, %{{x:,.5g}} {unit.name}: %{{z:,}} packets marked<extra></extra>",
        )
    )
    _axes(drawn, unit.name, "")
    drawn.update_yaxes(autorange="reversed", fixedrange=True)
    busiest = int(counts.sum(axis=0).argmax())
    which = (
        "The only port that marked packets" if len(shown) == 1 else f"The {len(shown)} ports with most marked packets"
    )
    description = f"{which}; an interval is {time_text(width_ps)}. "
    description += f"The interval with most marks begins at {time_text(busiest * width_ps)}."
    return Plot("packets marked by ECN over time", drawn, description, 140 + 20 * len(shown))


def _marked(run: NetRun) -> Plot:
    """Return the marked packets per port."""
    rows = most(run.links, "marked_packets", MAX_PAUSED)
    names, packets = [in_page(row["name"]) for row in rows], [row["marked_packets"] for row in rows]
    description = (
        f"ECN marked {int(run.links['marked_packets'].sum()):,} packets, most at {rows[0]['name']}: {packets[0]:,}."
    )
    return _of_links("packets marked by ECN, by port", names, packets, "packets marked", style(1).colour, description)


def _completion(flows: Columns, looks: Iterator[SeriesStyle]) -> Plot:
    from plotly import graph_objects as go

    drawn = go.Figure()
    times_ps = flows["finish_ps"] - flows["start_ps"]
    unit = time_unit([float(np.median(times_ps))])
    took = times_ps / unit.ps
    decade = np.floor(np.log10(np.maximum(flows["bytes"], 1))).astype(np.int64)
    for of in np.unique(decade).tolist():
        times = np.sort(took[decade == of])
        points = np.unique(np.linspace(0, len(times) - 1, MAX_POINTS // 4).astype(np.int64))
        share = (points + 1) / len(times)
        name = f"{size_text(10**of)} and more"
        look = _drawn_as(next(looks))
        drawn.add_scatter(x=times[points], y=share, name=name, mode="lines", line_shape="hv", showlegend=True, **look)
    _axes(drawn, unit.name, "share of messages")
    drawn.update_xaxes(type="log")
    drawn.update_yaxes(range=[0, 1.02], tickformat=".0%")
    description = f"Of {len(took):,} messages half took up to {time_text(float(np.median(times_ps)))}, "
    description += f"99 % up to {time_text(float(np.percentile(times_ps, 99)))}."
    return Plot("completion times of messages, by size", drawn, description)


def _paused(run: NetRun, unit: TimeUnit) -> Plot:
    rows = most(run.links, "paused_ps", MAX_PAUSED)
    names, times = [in_page(row["name"]) for row in rows], [row["paused_ps"] / unit.ps for row in rows]
    description = (
        f"{rows[0]['name']} was paused longest, {time_text(rows[0]['paused_ps'])}." if rows else "No link was paused."
    )
    return _of_links("time for which links were paused", names, times, unit.name, _HEAT[-1][1], description)


def _of_links(title: str, names: list[str], values: list[float], unit: str, colour: str, description: str) -> Plot:
    """Return a bar per link, the longest at the top."""
    from plotly import graph_objects as go

    drawn = go.Figure(go.Bar(y=names, x=values, orientation="h", marker_color=colour, showlegend=False))
    drawn.update_traces(hovertemplate=f"%{{y}}: %{{x:,.5g}} {unit}<extra></extra>")
    _axes(drawn, unit, "")
    drawn.update_yaxes(autorange="reversed", type="category", fixedrange=True)
    return Plot(title, drawn, description, 140 + 20 * len(names))


def _trees(document: Mapping[str, Any]) -> Plot:
    """Return the trees from left to right: congested ports, links paused from there, and links paused by these."""
    from plotly import graph_objects as go

    labels, parents, own, description = ["all pauses"], [""], [0.0], [""]
    waiting: list[tuple[Mapping[str, Any], str]] = [(tree, "0") for tree in document["trees"]]
    ids = ["0"]
    while waiting and len(ids) < MAX_SECTORS:
        branch, parent = waiting.pop(0)  # breadth first, so that the limit removes the branches farthest from the roots
        ids.append(str(len(ids)))
        labels.append(in_page(branch.get("link") or f"root: {ports(dict(branch))}"))
        parents.append(parent)
        own.append(branch["paused_ps"])
        of_it = f"{branch['pauses']:,} pauses, {time_text(branch['paused_ps'])} in all"
        description.append(f"{of_it if branch['pauses'] else 'congested'}, first at {time_text(branch['first_ps'])}")
        waiting += [(further, ids[-1]) for further in branch["spread"]]
    tree = go.Icicle(
        ids=ids,
        labels=labels,
        parents=parents,
        values=own,
        text=description,
        branchvalues="remainder",
        hoverinfo="label+text",
        textinfo="label+text",
        marker={"colors": ["#8fa3b8" if parent in {"", "0"} else "#c6dbef" for parent in parents]},
    )
    drawn = go.Figure(tree)
    drawn.update_layout(margin={"t": 10, "b": 10, "l": 10, "r": 10}, uniformtext={"minsize": 9, "mode": "hide"})
    spread = "From left to right: the port where the congestion is, the links that its switch paused, and those that "
    spread += "were paused because of them."
    return Plot("how pauses spread", drawn, spread)


def _victims(document: Mapping[str, Any]) -> list[Part]:
    rows, title = document["victims"], _victims_title(document)
    if not rows:
        return [Paragraph(title)] if title else []
    headings = [
        Heading("message", is_text=True),
        Heading("size"),
        Heading("slow-down"),
        Heading("paused", "Longest pause of a link on its path within the message's lifetime."),
        Heading("longest pause at", is_text=True),
        Heading("certain", is_text=True),
    ]
    cells = [
        [
            f"npu {row['src']} → npu {row['dst']}",
            amount_text(row["bytes"]),
            "-" if row["slowdown"] is None else f"{row['slowdown']:.2f}",
            time_text(row["paused_ps"]),
            row["link"],
            "yes" if row["sure"] else "perhaps",
        ]
        for row in rows
    ]
    return [Table(title, headings, cells)]


def _axes(drawn: Any, x: str, y: str) -> None:  # noqa: ANN401 - plotly has no types
    drawn.update_layout(margin={"t": 10, "b": 50, "l": 10, "r": 10}, hovermode="closest")
    drawn.update_xaxes(title_text=x)
    drawn.update_yaxes(title_text=y)


def _spread_title(document: Mapping[str, Any]) -> str:
    if not document["trees"]:
        return "Nothing was paused." if document["why_no_victims"] == "nothing was paused" else "No pauses.parquet."
    roots, shown = document["roots"], len(document["trees"])
    more = f", the {shown} largest" if roots > shown else ""
    return spread_heading(document) + more


def _victims_title(document: Mapping[str, Any]) -> str:
    if document["victims"] is None:
        why = document["why_no_victims"]
        return "" if why == "nothing was paused" else f"messages delayed by pauses are not known: {why}"
    found, shown = document["victims_found"], len(document["victims"])
    more = f", the {shown} slowest" if found > shown else ""
    return f"head-of-line victims: {found:,} messages on no congested link, delayed by pauses{more}"


def _drawn_as(look: SeriesStyle) -> dict[str, Any]:
    return {"line": {"color": look.colour, "dash": look.dash}, "marker": {"symbol": f"circle{look.mark}"}}
