"""Text about networks: the facts of a fabric, the tables of `nadi net`, and those of the report of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from nadi.et.statistics import values_needed
from nadi.inputs.arrays import Float64
from nadi.insight.link_load import limiting_links
from nadi.insight.network import COLUMNS, MAX_LINKS
from nadi.simulation.run import FinishedRun
from nadi.terminal import FittedTable, amount_text, in_unit, name_column, rate_text, text_column, time_text, time_unit
from nadi.topologies import Graph

MAX_BRANCHES = 40
WHOLE = "--out"
_MAX_BUSIEST = 5  # links in the tables of a run
# Counters of events in the fabric, and their names
_FABRIC_COUNTERS = {
    "marked_packets": "packets marked",
    "pause_frames": "pauses",
    "dropped_packets": "packets dropped",
    "trimmed_packets": "packets trimmed",
    "retransmitted_packets": "packets retransmitted",
    "timeouts": "timeouts",
    "congestion_notifications": "congestion notifications",
}
# Columns of links that a table has if any value is not 0: heading, column of links.parquet, format
_LINK_EVENTS: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("marked", "marked_packets", "{:,}".format),
    ("paused", "paused_ps", time_text),
    ("dropped", "dropped_packets", "{:,}".format),
)


def network_report(document: dict[str, Any]) -> RenderableType:
    """Return the document of nadi.insight.network as something that a rich Console prints."""
    head = f"{document['topology']}\n{time_text(document['finish_time_ps'] or 0)}"
    return Group(head, *_links(document["links"]), *_messages(document["messages"]), *_spread(document))


def ports(tree: dict[str, Any]) -> str:
    """Return the congested port at the root of a tree, or the first of several."""
    first, *others = tree["congested"] or ["no port"]
    return f"{first} and {len(others)} more" if others else first


def _branches(tree: dict[str, Any], depth: int) -> Iterator[str]:
    """Yield a line per branch of a tree of pauses, indented by depth."""
    for branch in tree["spread"]:
        times = f"first at {time_text(branch['first_ps'])}, {time_text(branch['paused_ps'])} in all"
        yield f"{'  ' * depth}{branch['link']}: {branch['pauses']:,} pauses, {times}"
        yield from _branches(branch, depth + 1)


def _links(rows_of_column: dict[str, list[dict[str, Any]]]) -> Iterator[FittedTable]:
    """Yield a table of the links with the largest values of each column."""
    for column, title in COLUMNS.items():
        rows = rows_of_column[column]
        if not rows:
            continue
        unit = time_unit(row[column] for row in rows)
        is_time = column.endswith("_ps")
        heading = column.replace("_ps", f" ({unit.name})").replace("_", " ")
        extra = () if column == "utilisation" else (heading,)
        table = FittedTable(title, name_column("link"), ("rate", 2), ("busy", 1), *extra)
        for row in rows:
            value = [in_unit(row[column], unit) if is_time else f"{row[column]:,}"] if extra else []
            table.add_row(row["name"], rate_text(row["rate_bps"]), f"{row['utilisation']:.1%}", *value)
        yield table


def _messages(completion_rows: list[dict[str, Any]] | None) -> Iterator[RenderableType]:
    """Yield tables of completion times and slow-downs by size."""
    if not completion_rows:
        yield "no messages, or no flows.parquet\n"
        return
    unit = time_unit(ps for row in completion_rows for ps in row["time_ps"].values() if ps is not None)
    titles = {
        "time_ps": f"completion time of messages ({unit.name}), by size",
        "slowdown": "slow-down of messages against an idle network, by size",
    }
    for column, title in titles.items():
        names = completion_rows[0][column]
        if names is None:
            continue
        needs = {"p50": 0, "p95": 2, "p99": 1, "p99.9": 3, "p100": 0}
        shown = (("max" if name == "p100" else name, needs.get(name, 4)) for name in names)
        table = FittedTable(title, "size from", "messages", *shown)
        for row in completion_rows:
            size = "all" if row["from_bytes"] is None else amount_text(row["from_bytes"])
            values = (row[column] or dict.fromkeys(names)).values()
            show = (lambda ps: in_unit(ps, unit)) if column == "time_ps" else "{:.2f}".format
            table.add_row(size, row["messages"], *("-" if value is None else show(value) for value in values))
        note_too_few(table, "messages")
        yield table


def slowdown_table(rows: Sequence[dict[str, Any]]) -> FittedTable:
    """Return the rows of nadi.insight.metrics.slowdown_by_size as a table."""
    group = [name_column("group")] if any(row["group"] for row in rows) else []
    needs = {"p50": 0, "p95": 2, "p99": 1, "p99.9": 3}
    shown = ((name, needs[name]) for name in rows[0]["slowdown"])
    title = "slow-down of messages against an idle network, by size: mean over runs and its 95 % confidence interval"
    table = FittedTable(title, *group, "size from", "runs", "messages", *shown)
    for row in rows:
        size = "all" if row["from_bytes"] is None else amount_text(row["from_bytes"])
        cells = [mean_text(mean, row["interval"][name], "{:.2f}".format) for name, mean in row["slowdown"].items()]
        table.add_row(*([row["group"]] if group else []), size, row["runs"], row["messages"], *cells)
    note_too_few(table, "messages in every run")
    return table


def mean_text(mean: float | None, interval: tuple[float, float] | None, show: Callable[[float], str]) -> str:
    """Return a mean over runs with its confidence interval, "1.50 (1.31 to 1.80)"; "-" if it is not known.

    Args:
        mean: The mean; None = not known.
        interval: Ends of the confidence interval; None = not known.
        show: Function that returns a value as text.
    """
    if mean is None or interval is None:
        return "-" if mean is None else show(mean)
    return f"{show(mean)} ({show(interval[0])} to {show(interval[1])})"


def note_too_few(table: FittedTable, values: str) -> None:
    """Note how many values the percentiles of a table need, if any cell is empty; values: meaning of the values."""
    if any("-" in row for row in table.rows):
        headings = [column.heading for column in table.columns if column.heading.startswith("p")]
        needed = {name: values_needed(float(name[1:])) for name in headings if name[1:2].isdigit()}
        needs = ", ".join(f"{name} {count:,}" for name, count in needed.items() if count > 1)
        table.notes.append(f"-: too few {values}; needed are 1 / (1 - p): {needs}")


def spread_heading(document: Mapping[str, Any], note: str = "") -> str:
    """Return the numbers of pauses and of roots from which they spread, with a note after the former.

    Args:
        document: Document of nadi.insight.network.
        note: Text after the number of pauses.
    """
    roots = "1 root" if document["roots"] == 1 else f"{document['roots']} roots"
    return f"how pauses spread: {document['pauses']:,} pauses{note}, {roots}"


def _spread(document: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the trees along which pauses spread, and the messages that they delayed."""
    trees = document["trees"]
    if trees:
        looked = document["pauses_looked_at"]
        shown = f", the first {looked:,} looked at" if looked < document["pauses"] else ""
        yield Text(spread_heading(document, shown), style="bold")
    for tree in trees:
        whole = f"{tree['links']} links, paused for {time_text(tree['whole_paused_ps'])} in all"
        root, lines = f"{tree['switch']}, congested at {ports(tree)}: {whole}", list(_branches(tree, 1))
        yield from (root, *lines[:MAX_BRANCHES])
        if len(lines) > MAX_BRANCHES:
            yield f"  and {len(lines) - MAX_BRANCHES} more"
    if trees:
        more = document["roots"] - len(trees)
        yield f"and {more} smaller\n" if more else ""
    yield from _victims(document)


def _victims(document: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the congested links and the messages that pauses delayed, or why there are none."""
    if document["victims"] is None:
        why = document["why_no_victims"]
        if why != "nothing was paused":
            yield f"messages delayed by pauses are not known: {why}"
        return
    congested = document["congested_links"]
    more = f" and {len(congested) - MAX_LINKS} more" if len(congested) > MAX_LINKS else ""
    yield f"congested: {', '.join(congested[:MAX_LINKS])}{more}"
    if not document["victims"]:
        yield "head-of-line victims: none; pauses delayed no message that uses no congested link\n"
        return
    yield victims_table(document)


def victims_table(document: Mapping[str, Any]) -> FittedTable:
    """Return the messages on no congested link that pauses delayed, the slowest first.

    Args:
        document: Document of nadi.insight.network.
    """
    unit = time_unit(row["paused_ps"] for row in document["victims"])
    times = "slow-down", (f"paused ({unit.name})", 1)
    columns = ("size", 2), *times, name_column("longest pause at", 3), name_column("certain", 4)
    title = f"head-of-line victims: {document['victims_found']:,} messages on no congested link, delayed by pauses"
    table = FittedTable(title, name_column("src"), name_column("dst"), *columns)
    for row in document["victims"]:
        slow = "-" if row["slowdown"] is None else f"{row['slowdown']:.2f}"
        ends = f"npu {row['src']}", f"npu {row['dst']}", amount_text(row["bytes"])
        sure = "yes" if row["sure"] else "perhaps"
        table.add_row(*ends, slow, in_unit(row["paused_ps"], unit), row["link"], sure)
    return table


def link_tables(simulation: FinishedRun, utilisation: Float64) -> Iterator[FittedTable]:
    """Yield the tables of a run about its links: the busiest ones, those that limited flows, and events of the fabric.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        utilisation: float64[links], bytes sent over the capacity during the run.
    """
    if simulation.settings.fidelity.model.has_links:
        graph = simulation.graph
        rates = {"rate_bps": graph.link_rate_bps, "utilisation": utilisation}
        links = {**simulation.results.links, **rates}
        yield busiest_links(links, lambda link: link_name(graph, link), _MAX_BUSIEST)
        limits, group_names = simulation.results.limits, dict(enumerate(simulation.program.group_names))
        if len(limits.get("link", ())):
            yield limits_table(limits, group_names, lambda link: link_name(graph, link), _MAX_BUSIEST)
    if any(simulation.results.counters.get(name, 0) for name in _FABRIC_COUNTERS):
        yield _fabric_table(simulation)


def limits_table(
    limits: Mapping[str, NDArray], group_names: Mapping[int, str], name_of: Callable[[int], str], max_rows: int
) -> FittedTable:
    """Return the links that limited flows (columns of limits.parquet), those with the longest total times first.

    Args:
        limits: Columns of limits.parquet by name.
        group_names: Names of groups by number.
        name_of: Function that returns the name of a link by its number.
        max_rows: Maximum number of rows of the table.
    """
    table = FittedTable(
        "links that limited flows", name_column("link"), "flows", ("mean time", 1), text_column("groups", 2)
    )
    for found in limiting_links(limits, lambda group: group_names.get(group) or "all")[:max_rows]:
        table.add_row(name_of(found.link), f"{found.flows:,}", time_text(found.mean_ps), found.groups)
    return table


def busiest_links(links: Mapping[str, NDArray], name_of: Callable[[int], str], max_rows: int) -> FittedTable:
    """Return a table of the links with the highest utilisation.

    Args:
        links: Columns of links.parquet by name.
        name_of: Function that returns the name of a link by its number.
        max_rows: Maximum number of rows of the table.
    """
    events = [(heading, links[name], text) for heading, name, text in _LINK_EVENTS if links[name].any()]
    queue = links["buffered_bytes"] if links["buffered_bytes"].any() else links["max_queue_bytes"]
    columns = ("rate", 3), ("sent", 2), "busy", ("longest queue", 1)
    counts = ((heading, 4) for heading, _, _ in events)
    table = FittedTable("busiest links", name_column("link"), *columns, *counts, full_output_option=WHOLE)
    for link in np.argsort(-links["utilisation"], kind="stable")[:max_rows].tolist():
        # an unused link has no row
        if links["tx_bytes"][link]:
            rate, sent = rate_text(int(links["rate_bps"][link])), amount_text(int(links["tx_bytes"][link]))
            busy, longest = f"{links['utilisation'][link]:.1%}", amount_text(int(queue[link]))
            table.add_row(name_of(link), rate, sent, busy, longest, *(text(column[link]) for _, column, text in events))
    return table


def link_name(graph: Graph, link: int) -> str:
    """Return the names of both ends of a link.

    Args:
        graph: The fabric (`Graph`).
        link: Number of the link.
    """
    return f"{graph.node_name(graph.link_src[link])} → {graph.node_name(graph.link_dst[link])}"


def _fabric_table(simulation: FinishedRun) -> FittedTable:
    """Return a row per kind of event in the fabric, with the link that has most of them.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
    """
    graph, links, counters = simulation.graph, simulation.results.links, simulation.results.counters
    table = FittedTable("fabric", name_column("event"), "count", text_column("maximum of a link"))
    for name, words in _FABRIC_COUNTERS.items():
        count = counters.get(name, 0)
        if count:
            table.add_row(words, f"{count:,}", _max_of_link(graph, links.get(name), "{:,}"))
    paused_ps = links.get("paused_ps")
    if paused_ps is not None and paused_ps.any():
        whole_ps = max(simulation.results.finish_time_ps, 1)
        longest = _max_of_link(graph, paused_ps / whole_ps, "{:.1%}")
        table.add_row("links paused", f"{np.count_nonzero(paused_ps):,}", longest)
    return table


def _max_of_link(graph: Graph, value_of_link: NDArray | None, number_format: str) -> str:
    """Return the largest value and its link; "" if all values are 0."""
    if value_of_link is None or not value_of_link.any():
        return ""
    link = int(value_of_link.argmax())
    return f"{number_format.format(value_of_link[link])} at {link_name(graph, link)}"


_MAX_NAMES = 8


def labelled(facts: Mapping[str, Any], graph: Graph) -> list[tuple[str, str]]:
    """Return labels and values of the result of topologies.describe for a fabric, in the order of the table.

    Args:
        facts: Result of topologies.describe.
        graph: The fabric (`Graph`).
    """
    switches = ", ".join(f"{count:,} {name}" for name, count in facts["switches"].items())
    cables = ", ".join(f"{count:,} of {rate_text(int(rate))}" for rate, count in facts["rates_bps"].items())
    passing = facts["links"] - 2 * facts["cables"]
    min_ps, max_ps, hops = facts["min_delay_ps"], facts["max_delay_ps"], facts["diameter_hops"]
    rows = [
        ("fabric", facts["name"]),
        ("NPUs", f"{facts['npus']:,}"),
        *([("accelerator", graph.accelerator.upper())] if graph.accelerator else []),
        ("logical dimensions", "x".join(map(str, facts["dims"]))),
        ("hosts", f"{facts['hosts']:,}"),
        ("pods", f"{facts['pods']:,}" if facts["pods"] else "none"),
        ("switches", switches or "none"),
        ("nodes", f"{facts['nodes']:,}, NPUs and switches"),
        ("names of nodes", _names(graph)),
        ("cables", cables or "none"),
        (
            "links",
            f"{facts['links']:,}, two to a cable{f', and {passing:,} in servers that pass on' if passing else ''}",
        ),
        ("delay of a cable", " to ".join(dict.fromkeys((time_text(min_ps), time_text(max_ps))))),
        ("longest path", f"{hops} hop{'s' if hops != 1 else ''}"),
        ("equal next links", f"{facts['ecmp_width']} at most"),
        ("routing", "shortest paths, by table" if facts["routing"] == "table" else f"by dimension, {facts['routing']}"),
        ("routing tables", amount_text(facts["routing_bytes"])),
        (
            "bisection",
            f"{rate_text(facts['bisection_bps'])} one way{'' if facts['bisection_is_exact'] else ', estimated'}",
        ),
    ]
    if "oversubscription" in facts:
        ratios = [f"{ratio:.3g}:1 at a {switch}" for switch, ratio in facts["oversubscription"].items()]
        rows.append(("oversubscription", ", ".join(ratios) or "none, as no switch has uplinks"))
    for tier in facts.get("tiers", ()):
        what = f"{tier['cables']:,} cables, {rate_text(tier['rate_bps'])} one way"
        below = tier["tier"]  # distance of the lower end in links from an NPU
        kind = "NVSwitch" if tier["to_nvswitches"] else "switch"
        rows.append((f"{kind} tier {below} to {below + 1}" if below else f"NPUs to {kind}es", what))
    return rows


def _names(graph: Graph) -> str:
    """Return the first node of each kind, as reports and [[faults]] name it."""
    first: dict[str, str] = {}
    for node in (0, *range(graph.npus, graph.nodes)):
        first.setdefault(graph.node_word(node), graph.node_name(node))
    more = ["..."] if len(first) < graph.nodes else []
    return ", ".join([*list(first.values())[:_MAX_NAMES], *more])
