"""Pages of `nadi net`, and the section about the network in the report of a run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.et.statistics import percentile
from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S, parse_time
from nadi.insight import network
from nadi.insight.runs import Run
from nadi.reports import pages
from nadi.reports.pages import Page, PageSection, Paragraph, Part, Plot, from_terminal
from nadi.reports.text.network import ports, slowdown_table, spread_heading, victims_table
from nadi.simulation.network_settings import LOGGED_PAUSES
from nadi.terminal import TimeUnit, amount_text, in_page, rate_text, size_text, time_text, time_unit

MAX_LINKS = 200  # Number of links per tier in the chart of utilisation
MAX_PORTS = 12  # Number of ports in the chart of queues
MAX_PAUSED = 30  # Number of links in the charts of pauses and marks
MAX_POINTS = 2000  # Number of points per line
STRETCHES = 400  # Number of intervals in the charts over time
MAX_SECTORS = 500  # Number of links in the chart of trees
_PAUSED_WHY = "Longest pause of a link on its path within the message's lifetime."
_LEAD = "Utilisation of links, queues, pauses, and completion times of messages."


def network_page(run: network.NetRun, document: Mapping[str, Any]) -> Page:
    """Return the page of `nadi net DIR -o FILE.html`.

    Args:
        run: Tables of the run that concern the network (`NetRun`).
        document: Document of nadi.insight.network.
    """
    title = f"{run.summary.get('topology', '')}: {time_text(run.summary.get('finish_time_ps') or 0)}"
    section = PageSection("network", "Network", _LEAD, network_parts(run, document))
    return Page(title, "The network of a run.", [section]).with_error_bars(run.summary.get("error_bars", ()))


def network_section(run: Run) -> PageSection:
    """Return the section of a report with these charts; no parts if the network model has no links.

    Args:
        run: The run, read from its folder (`Run`).
    """
    if not run.network.has_links:
        return PageSection("network", "Network", _LEAD, [])
    net_run = network.read_net_run(run.folder)
    return PageSection("network", "Network", _LEAD, network_parts(net_run, network.network_document(net_run)))


def network_parts(run: network.NetRun, document: Mapping[str, Any]) -> list[Part]:
    """Return utilisation, queues, completion times, pauses, their trees and delayed messages, where present.

    Args:
        run: Tables of the run that concern the network (`NetRun`).
        document: Document of nadi.insight.network.
    """
    finish = time_unit([run.summary.get("finish_time_ps") or 0])
    shown: list[Part] = [_utilisation(run)]
    if run.samples and len(run.samples["link"]):
        shown += _samples(run, run.samples, finish)
    elif run.queues and len(run.queues["link"]):
        shown.append(_queues(run, run.queues, finish))
    if run.pauses is not None and len(run.pauses["link"]):
        shown.append(_paused_over_time(run, finish))
    if run.marks is not None and len(run.marks["link"]):
        shown.append(_marked_over_time(run, run.marks, finish))
    if run.links["marked_packets"].any():
        rows = network.top_links(run.links, "marked_packets", MAX_PAUSED)
        packets = [row["marked_packets"] for row in rows]
        total = int(run.links["marked_packets"].sum())
        description = f"ECN marked {total:,} packets, most at {rows[0]['name']}: {packets[0]:,}."
        drawn = pages.bar_chart(
            [row["name"] for row in rows], {"marked": packets}, [pages.series_style(1).colour], "packets marked"
        )
        shown.append(Plot("packets marked by ECN, by port", drawn, description, 140 + 20 * len(rows)))
    if run.flows and len(run.flows["src"]):
        shown.append(_completion(run.flows))
    if document["trees"]:
        shown += [_paused(run, finish), _trees(document)]
    return [*shown, Paragraph(_spread_title(document)), *_victims(document)]


def _utilisation(run: network.NetRun) -> Plot:
    """Return a plot of the links' utilisation: a row of points and a box for each tier."""
    drawn, tier, unused = (
        pages.empty_figure("share of the run in which a link sent"),
        np.array(network.tiers(run.links)),
        list[str](),
    )
    utilisation, names = run.links["utilisation"], run.links["name"]
    for name in dict.fromkeys(tier.tolist()):
        links = np.flatnonzero(tier == name)
        links = links[np.argsort(-utilisation[links], kind="stable")][:MAX_LINKS]
        if not utilisation[links].any():
            unused.append(name)
            continue
        drawn.add_box(
            x=utilisation[links],
            name=in_page(name),
            text=[in_page(names[link]) for link in links.tolist()],
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            marker={"color": pages.series_style(len(drawn.data)).colour, "size": 5},
            orientation="h",
        )
    drawn.update_layout(showlegend=False)
    drawn.update_xaxes(rangemode="tozero", tickformat=".1~%")
    drawn.update_yaxes(autorange="reversed")
    busiest = int(np.argmax(utilisation)) if len(tier) else 0
    description = f"The busiest link is {names[busiest]}, {utilisation[busiest]:.1%} of the run. "
    description += "A point is a link, a box has the middle half of a tier's links."
    if unused:
        description += f" Links {', '.join(unused)} carried nothing."
    return Plot("utilisation by tier", drawn, description, 130 + 60 * len(drawn.data))


def _queues(run: network.NetRun, queues: network.Table, unit: TimeUnit) -> Plot:
    """Return the queues of the fullest ports over time, a panel per port."""
    moments = np.unique(queues["time_ps"])
    stretch_ps = int(np.diff(moments).min()) if len(moments) > 1 else 1
    drawn, fullest, bytes_waiting = _panels(run, queues, "bytes", stretch_ps, unit, "B")
    name = run.links["name"][fullest[0]]
    description = f"Maximum per interval. The fullest is {name}, {amount_text(bytes_waiting)} at most."
    title = f"queues of the {len(fullest)} fullest ports over time"
    return Plot(title, drawn, description, pages.height_of_panels(len(fullest)))


def _samples(run: network.NetRun, samples: network.Table, unit: TimeUnit) -> Iterator[Plot]:
    """Yield the sending rates and the queues of links over time, in the user's intervals, a panel per link."""
    interval_ps = parse_time(run.summary["config"]["output"]["sample"])
    interval = f"in intervals of {time_text(interval_ps)}"
    to_bps = BITS_PER_BYTE * PS_PER_S / interval_ps
    rates, queues = {**samples, "bps": samples["tx_bytes"] * to_bps}, {**samples, "bytes": samples["queue_bytes"]}
    drawn, fastest, bps = _panels(run, rates, "bps", interval_ps, unit, "b/s")
    description = f"The fastest is {run.links['name'][fastest[0]]}, {rate_text(bps)} at most, {interval}."
    title = f"sending rates of the {len(fastest)} fastest links over time"
    yield Plot(title, drawn, description, pages.height_of_panels(len(fastest)))
    if samples["queue_bytes"].any():
        drawn, fullest, bytes_waiting = _panels(run, queues, "bytes", interval_ps, unit, "B")
        name = run.links["name"][fullest[0]]
        description = f"The fullest is {name}, {amount_text(bytes_waiting)} at most, {interval}."
        title = f"queues of the {len(fullest)} fullest ports over time"
        yield Plot(title, drawn, description, pages.height_of_panels(len(fullest)))


def _panels(
    run: network.NetRun, table: network.Table, column: str, interval_ps: int, unit: TimeUnit, value_unit: str
) -> tuple[pages.Plotly, list[int], float]:
    """Return a figure with a panel for each link with the largest values of a column, these links, the largest value.

    The table has a row for each link and interval with a value above 0.
    """
    link, value = table["link"], table[column]
    largest = np.zeros(len(run.links["name"]))
    np.maximum.at(largest, link, value)
    order = np.argsort(-largest, kind="stable")
    shown: list[int] = order[largest[order] > 0][:MAX_PORTS].tolist()
    drawn = pages.panel_figure([run.links["name"][port] for port in shown], unit.name, value_unit)
    for row, port in enumerate(shown, 1):
        rows = np.flatnonzero(link == port)
        rows = rows[np.argsort(table["time_ps"][rows], kind="stable")]
        begin_ps = table["time_ps"][rows]
        # a 0 at the begin of each gap, because intervals without a value have no row
        gaps = np.flatnonzero(np.diff(begin_ps, append=begin_ps[-1] + 2 * interval_ps) > interval_ps)
        begins_ps = np.concatenate([begin_ps, begin_ps[gaps] + interval_ps])
        by_time = np.argsort(begins_ps, kind="stable")
        begins_ps, values = begins_ps[by_time], np.append(value[rows], np.zeros(len(gaps), value.dtype))[by_time]
        stride = -(-len(begins_ps) // MAX_POINTS)  # intervals per point, which shows their largest value
        first = np.arange(0, len(begins_ps), stride)
        drawn.add_scatter(
            x=begins_ps[first] / unit.ps,
            y=np.maximum.reduceat(values, first),
            name=in_page(run.links["name"][port]),
            mode="lines",
            line={"color": pages.series_style(0).colour, "shape": "hv"},
            row=row,
            col=1,
        )
    return drawn, shown, float(largest[order[0]])


def _paused_over_time(run: network.NetRun, unit: TimeUnit) -> Plot:
    """Return a heat map: for the links paused longest, the paused share of each interval."""
    finish_ps = int(run.summary.get("finish_time_ps") or 1)
    edges, pauses = np.linspace(0, finish_ps, STRETCHES + 1), network.find_pauses(run.pauses or {}, finish_ps)
    shown = _most_affected(run, pauses.link, pauses.end_ps - pauses.start_ps)
    shares = []
    for link in shown:
        own = pauses.link == link
        covered = np.diff(time_before(pauses.start_ps[own], edges) - time_before(pauses.end_ps[own], edges))
        shares.append(np.round(np.minimum(covered / (finish_ps / STRETCHES), 1), 4))
    names = [run.links["name"][link] for link in shown]
    hover = f"%{{y}}, %{{x:,.5g}} {unit.name}: paused %{{z:.0%}} of the interval"
    bar = {"title": {"text": "paused"}, "tickformat": ".0%", "thickness": 12}
    middles = (edges[:-1] + edges[1:]) / 2 / unit.ps
    look = {"zmin": 0, "zmax": 1, "colorscale": pages.HEAT, "colorbar": bar, "ygap": 1}
    drawn = pages.heat_map(middles, names, shares, unit.name, hover, **look)
    which = "The only link that was paused" if len(shown) == 1 else f"The {len(shown)} links that were paused longest"
    description = f"{which}; an interval is 1/{STRETCHES} of the run. "
    description += f"The first pause was sent after {time_text(int(pauses.start_ps.min()))}."
    if len((run.pauses or {"link": ()})["link"]) >= LOGGED_PAUSES:
        description += f" The log has only the first {LOGGED_PAUSES:,} pauses and resumes."
    return Plot("links paused by PFC over time", drawn, description, 140 + 20 * len(shown))


def time_before(times_ps: NDArray[Any], edges: Float64) -> Float64:
    """Return float64[edges]: sum over the times before each edge of their distance to it.

    Args:
        times_ps: Times in ps.
        edges: Edges of intervals in ps.
    """
    ordered = np.sort(times_ps)
    # sum of (edge - time) over the earlier times = edge x count - their sum
    count = np.searchsorted(ordered, edges)
    return edges * count - np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])[count]


def _most_affected(run: network.NetRun, link_of_entry: Int64, amount: Int64) -> list[int]:
    """Return up to MAX_PAUSED links with the largest sums of an amount, which has one value per entry of the log."""
    sums = np.bincount(link_of_entry, amount, minlength=len(run.links["name"]))
    return [
        link_of_entry
        for link_of_entry in np.argsort(-sums, kind="stable")[:MAX_PAUSED].tolist()
        if sums[link_of_entry] > 0
    ]


def _marked_over_time(run: network.NetRun, marks: network.Table, unit: TimeUnit) -> Plot:
    """Return a heat map: for the ports with most marks, the number of marked packets per interval."""
    moments = np.unique(np.concatenate([marks["time_ps"], *([run.queues["time_ps"]] if run.queues else [])]))
    width_ps = int(np.diff(moments).min()) if len(moments) > 1 else int(moments[0]) or 1
    finish_ps = max(int(run.summary.get("finish_time_ps") or 1), int(moments[-1]) + 1)
    stretches = -(-finish_ps // width_ps)
    shown = _most_affected(run, marks["link"], marks["packets"])
    counts = np.zeros((len(shown), stretches), np.int64)
    row_of_link = np.full(len(run.links["name"]), -1)
    row_of_link[shown] = np.arange(len(shown))
    own = row_of_link[marks["link"]] >= 0
    np.add.at(counts, (row_of_link[marks["link"][own]], marks["time_ps"][own] // width_ps), marks["packets"][own])
    names = [run.links["name"][link] for link in shown]
    hover = f"%{{y}}, %{{x:,.5g}} {unit.name}: %{{z:,}} packets marked"
    look = {"colorscale": pages.HEAT, "colorbar": {"title": {"text": "packets"}, "thickness": 12}, "ygap": 1}
    drawn = pages.heat_map((np.arange(stretches) + 0.5) * width_ps / unit.ps, names, counts, unit.name, hover, **look)
    busiest = int(counts.sum(axis=0).argmax())
    which = f"The {len(shown)} ports with most marked packets"
    if len(shown) == 1:
        which = "The only port that marked packets"
    description = f"{which}; an interval is {time_text(width_ps)}. "
    description += f"The interval with most marks begins at {time_text(busiest * width_ps)}."
    return Plot("packets marked by ECN over time", drawn, description, 140 + 20 * len(shown))


def _completion(messages: network.Table) -> Plot:
    """Return the cumulative distribution of completion times, a line per decade of message sizes."""
    times_ps = messages["finish_ps"] - messages["start_ps"]
    unit = time_unit([float(np.median(times_ps))])
    drawn = pages.empty_figure(unit.name, "share of messages")
    decades = np.floor(np.log10(np.maximum(messages["bytes"], 1))).astype(np.int64)
    for decade in np.unique(decades).tolist():
        times = np.sort(times_ps[decades == decade] / unit.ps)
        points = np.unique(np.linspace(0, len(times) - 1, MAX_POINTS // 4).astype(np.int64))
        share = (points + 1) / len(times)
        look = {
            "mode": "lines",
            "line_shape": "hv",
            "showlegend": True,
            **pages.series_style(len(drawn.data)).line_and_marker(),
        }
        drawn.add_scatter(x=times[points], y=share, name=f"{size_text(10**decade)} and more", **look)
    drawn.update_xaxes(type="log")
    drawn.update_yaxes(range=[0, 1.02], tickformat=".0%")
    description = f"Of {len(times_ps):,} messages half took up to {time_text(float(np.median(times_ps)))}"
    tail_ps = percentile(times_ps, 99)
    description += "." if tail_ps is None else f", 99 % up to {time_text(tail_ps)}."
    return Plot("completion times of messages, by size", drawn, description)


def _paused(run: network.NetRun, unit: TimeUnit) -> Plot:
    """Return the paused time per link."""
    rows = network.top_links(run.links, "paused_ps", MAX_PAUSED)
    times = [row["paused_ps"] / unit.ps for row in rows]
    description = "No link was paused."
    if rows:
        description = f"{rows[0]['name']} was paused longest, {time_text(rows[0]['paused_ps'])}."
    drawn = pages.bar_chart([row["name"] for row in rows], {"paused": times}, [pages.HEAT[-1][1]], unit.name)
    return Plot("time for which links were paused", drawn, description, 140 + 20 * len(rows))


def _trees(document: Mapping[str, Any]) -> Plot:
    """Return the trees from left to right: congested ports, links paused from there, and links paused by these."""
    from plotly import graph_objects as go

    labels, parents, times_ps, texts, ids = ["all pauses"], [""], [0.0], [""], ["0"]
    waiting: list[tuple[Mapping[str, Any], str]] = [(tree, "0") for tree in document["trees"]]
    while waiting and len(ids) < MAX_SECTORS:
        branch, parent = waiting.pop(0)  # breadth first, so that the limit removes the branches farthest from the roots
        ids.append(str(len(ids)))
        labels.append(in_page(branch.get("link") or f"root: {ports(dict(branch))}"))
        parents.append(parent)
        times_ps.append(branch["paused_ps"])
        pauses = f"{branch['pauses']:,} pauses, {time_text(branch['paused_ps'])} in all"
        texts.append(f"{pauses if branch['pauses'] else 'congested'}, first at {time_text(branch['first_ps'])}")
        waiting += [(further, ids[-1]) for further in branch["spread"]]
    tree = go.Icicle(
        ids=ids,
        labels=labels,
        parents=parents,
        values=times_ps,
        text=texts,
        branchvalues="remainder",
        hoverinfo="label+text",
        textinfo="label+text",
        marker={"colors": ["#8fa3b8" if parent in {"", "0"} else "#c6dbef" for parent in parents]},
    )
    drawn: pages.Plotly = go.Figure(tree)
    drawn.update_layout(margin={"t": 10, "b": 10, "l": 10, "r": 10}, uniformtext={"minsize": 9, "mode": "hide"})
    spread = "From left to right: the port where the congestion is, the links that its switch paused, and those that "
    spread += "were paused because of them."
    return Plot("how pauses spread", drawn, spread)


def _victims(document: Mapping[str, Any]) -> list[Part]:
    """Return the table of messages that pauses delayed, or why there is none."""
    rows = document["victims"]
    if rows is None:
        reason = document["why_no_victims"]
        is_known = reason == "nothing was paused"
        return [] if is_known else [Paragraph(f"messages delayed by pauses are not known: {reason}")]
    table = victims_table(document)
    if not rows:
        return [Paragraph(table.title)]
    more = f"These are the {len(rows)} slowest." if document["victims_found"] > len(rows) else ""
    why = {heading.heading: _PAUSED_WHY for heading in table.columns if heading.heading.startswith("paused")}
    return [from_terminal(table, more, why)]


def _spread_title(document: Mapping[str, Any]) -> str:
    """Return a sentence about the number of pauses and of their roots."""
    if not document["trees"]:
        return "Nothing was paused." if document["why_no_victims"] == "nothing was paused" else "No pauses.parquet."
    roots, shown = document["roots"], len(document["trees"])
    return spread_heading(document) + (f", the {shown} largest" if roots > shown else "")


_SLOWDOWN_LEAD = (
    "Completion time of messages over their time on an idle network, with 95 % confidence intervals over runs."
)

_SLOWDOWN_MEANINGS = {
    "group": "Value of the key that distinguishes groups of runs.",
    "size from": "Smallest size of the messages in this row; the next row begins at ten times as many bytes.",
    "runs": "Number of runs in the group.",
    "messages": "Number of messages of all these runs.",
}


def slowdown_page(rows: Sequence[dict[str, Any]]) -> Page:
    """Return the page for the rows of nadi.insight.metrics.slowdown_by_size."""
    known = {
        name: [row for row in rows if row["from_bytes"] and row["slowdown"][name] is not None]
        for name in rows[0]["slowdown"]
    }
    parts: list[Part] = [_slowdown_plot(of_name, name) for name, of_name in known.items() if of_name]
    why = {name: f"Slow-down that {name[1:]} % of the messages do not exceed, mean over runs." for name in known}
    parts.append(from_terminal(slowdown_table(rows), why=_SLOWDOWN_MEANINGS | why))
    return Page(
        "slow-down of messages by size", "Several runs.", [PageSection("slowdown", "Slow-down", _SLOWDOWN_LEAD, parts)]
    )


def _slowdown_plot(rows: Sequence[dict[str, Any]], percentile: str) -> Plot:
    """Return the plot of a percentile, "p99", by size class, from the rows that have it: a line per group."""
    drawn = pages.empty_figure("message size from", f"slow-down, {percentile}")
    groups = list(dict.fromkeys(row["group"] for row in rows))
    worst = max(rows, key=lambda row: row["slowdown"][percentile])
    for number, group in enumerate(groups):
        own = [row for row in rows if row["group"] == group]
        ends = [row["interval"][percentile] or (row["slowdown"][percentile],) * 2 for row in own]
        look = pages.series_style(number)
        drawn.add_scatter(
            x=[amount_text(row["from_bytes"]) for row in own],
            y=[row["slowdown"][percentile] for row in own],
            # plotly takes the lengths of error bars, not their ends
            error_y={
                "array": [high - row["slowdown"][percentile] for (_, high), row in zip(ends, own, strict=True)],
                "arrayminus": [row["slowdown"][percentile] - low for (low, _), row in zip(ends, own, strict=True)],
            },
            mode="lines+markers",
            name=in_page(group or "all runs"),
            line={"color": look.colour, "dash": look.dash},
        )
    drawn.update_xaxes(type="category")
    drawn.update_yaxes(type="log")
    text = f"Largest: {worst['slowdown'][percentile]:,.3g} from {amount_text(worst['from_bytes'])}"
    return Plot(f"slow-down, {percentile}", drawn, f"{text}{', ' * bool(worst['group'])}{worst['group']}.")
