"""The report of a run on the terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nadi.findings import Findings
from nadi.simulate import Simulation
from topologies import Graph
from topologies.units import format_rate
from workload import KINDS

MOST_NPUS = 8
MOST_COLLECTIVES = 20
MOST_LINKS = 5
_FILE_WIDTH = 120
_PS_PER_US = 1_000_000
_FABRIC_COUNTERS = {
    "marked_packets": "packets marked",
    "pause_frames": "pauses",
    "dropped_packets": "packets dropped",
    "trimmed_packets": "packets trimmed",
    "retransmitted_packets": "packets sent again",
    "timeouts": "timeouts",
    "congestion_notifications": "congestion notifications",
}


def wide_console() -> Console:
    """Standard output; where it is no terminal, wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


def print_report(simulation: Simulation, findings: Findings, out: Path | None) -> None:
    """Print where time went, the collectives, the busiest links, and where the tables are."""
    console = wide_console()
    console.print(render(simulation, findings))
    where = f"results: {out}" if out else "results are not kept: no --out DIR and no [output] dir"
    console.print(where, soft_wrap=True, highlight=False, markup=False)


def render(simulation: Simulation, findings: Findings) -> RenderableType:
    """The report as something that a rich Console prints."""
    parts: list[RenderableType] = [Text(_headline(simulation, findings)), npu_table(simulation, findings)]
    if len(findings.collectives.group):
        parts.append(collective_table(findings))
    parts.append(link_table(simulation, findings))
    if any(simulation.results.counters.get(name, 0) for name in _FABRIC_COUNTERS):
        parts.append(fabric_table(simulation))
    return Group(*parts)


def npu_table(simulation: Simulation, findings: Findings) -> Table:
    """Where each NPU's time went; of many NPUs the least, median and most."""
    times = findings.npu_times
    columns = (times.compute_ps, times.cpu_ps, times.memory_ps, times.communication_ps, times.exposed_ps, times.idle_ps)
    table = plain_table("time of each NPU (µs)", "npu", "compute", "cpu", "memory", "communication", "exposed", "idle")
    npus = simulation.program.npus
    if npus <= MOST_NPUS:
        for npu in range(npus):
            table.add_row(str(npu), *(_us(column[npu]) for column in columns))
        return table
    for name, pick in (("least", np.min), ("median", np.median), ("most", np.max)):
        table.add_row(f"{name} of {npus}", *(_us(float(pick(column))) for column in columns))
    return table


def collective_table(findings: Findings) -> Table:
    """Collectives, the slowest first; alike ones (group, kind and size) are one row."""
    found = findings.collectives
    title = "collectives: mean time and closed form on an idle network (µs), algorithm and bus bandwidth (GB/s)"
    table = plain_table(
        title, "group", "kind", "algorithm", "size", "n", "count", "time", "closed form", "ratio", "algbw", "busbw"
    )
    keys = np.stack([found.group, found.kind, found.size_bytes, found.members], axis=1)
    _, index, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    total_ps = np.bincount(index.reshape(-1), found.time_ps)
    for alike in np.argsort(-total_ps, kind="stable")[:MOST_COLLECTIVES].tolist():
        which = np.flatnonzero(index.reshape(-1) == alike)
        first, time_ps = int(which[0]), float(np.mean(found.time_ps[which]))
        closed_ps = float(np.mean(findings.closed_form_ps[which]))
        table.add_row(
            escape(findings.group_names[first]) or "all",
            KINDS[found.kind[first]],
            findings.algorithms[first],
            _amount(int(found.size_bytes[first])),
            str(found.members[first]),
            str(count[alike]),
            _us(time_ps),
            ("" if findings.closed_form_played[which].all() else "~") + _us(closed_ps),
            f"{time_ps / closed_ps:.3f}" if closed_ps > 0 else "-",
            *_gigabytes((findings.algorithm_Bps[which].mean(), findings.bus_Bps[which].mean())),
        )
    if len(total_ps) > MOST_COLLECTIVES:
        table.caption = f"and {len(total_ps) - MOST_COLLECTIVES} more in collectives.parquet"
    return table


def link_table(simulation: Simulation, findings: Findings) -> Table:
    """The links that sent for the largest share of the run."""
    graph, links = simulation.graph, simulation.results.links
    longest = links["buffered_bytes" if simulation.settings.switch else "max_queue_bytes"]
    table = plain_table("busiest links", "link", "rate", "sent", "busy", "longest queue", "packets dropped")
    for link in np.argsort(-findings.utilisation, kind="stable")[:MOST_LINKS].tolist():
        if links["tx_bytes"][link] == 0:
            break
        table.add_row(
            f"{graph.node_name(graph.link_src[link])} → {graph.node_name(graph.link_dst[link])}",
            format_rate(int(graph.link_rate_bps[link])),
            _amount(int(links["tx_bytes"][link])),
            f"{findings.utilisation[link]:.1%}",
            _amount(int(longest[link])),
            f"{links['dropped_packets'][link]:,}",
        )
    return table


def fabric_table(simulation: Simulation) -> Table:
    """What happened in the fabric: a row for each thing that did, and the link where most of it was."""
    graph, links, counters = simulation.graph, simulation.results.links, simulation.results.counters
    table = plain_table("fabric", "", "count", "most of one link")
    for name, words in _FABRIC_COUNTERS.items():
        count = counters.get(name, 0)
        if count:
            table.add_row(words, f"{count:,}", _most(graph, links.get(name), "{:,}"))
    paused_ps = links.get("paused_ps")
    if paused_ps is not None and paused_ps.any():
        whole_ps = max(simulation.results.finish_time_ps, 1)
        table.add_row("links paused", f"{np.count_nonzero(paused_ps):,}", _most(graph, paused_ps / whole_ps, "{:.1%}"))
    return table


def _most(graph: Graph, values: NDArray | None, form: str) -> str:
    """The largest value, and the link that has it; empty where there is none."""
    if values is None or not values.any():
        return ""
    link = int(values.argmax())
    name = f"{graph.node_name(graph.link_src[link])} → {graph.node_name(graph.link_dst[link])}"
    return f"{form.format(values[link])} at {name}"


def _headline(simulation: Simulation, findings: Findings) -> str:
    results, counters = simulation.results, simulation.results.counters
    rate = counters["packet_hops"] / max(results.wall_s, 1e-9)
    times, whole_ps = findings.npu_times, max(results.finish_time_ps, 1)
    shares = [float(column.mean()) / whole_ps for column in (times.compute_ps, times.exposed_ps, times.idle_ps)]
    moved = f"{counters['flows']:,} messages, {counters['packets']:,} packets, {counters['dropped_packets']:,} dropped"
    hops = "packet-hops"
    if simulation.settings.fidelity.act:
        moved = f"{counters['flows']:,} messages, whole ({simulation.settings.fidelity.name.replace('_', '-')})"
        hops = "message-hops"
    return (
        f"{simulation.graph.npus} NPUs on {simulation.graph.name}\n"
        f"{_us(results.finish_time_ps)} µs simulated in {results.wall_s:.2f} s\n"
        f"{counters['trace_nodes']:,} trace nodes, {moved}\n"
        f"{counters['packet_hops']:,} {hops}, {rate / 1e6:.1f} M/s\n"
        f"mean NPU: compute {shares[0]:.1%}, exposed communication {shares[1]:.1%}, idle {shares[2]:.1%}"
    )


def plain_table(title: str, *headings: str) -> Table:
    """An empty table, numbers to the right of the first column."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _us(time_ps: float) -> str:
    return f"{time_ps / _PS_PER_US:,.3f}"


def _gigabytes(rates_Bps: Iterable[float]) -> Sequence[str]:  # noqa: N803 - bytes, not bits
    return [f"{rate / 1e9:.2f}" for rate in rates_Bps]


def _amount(size_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes} B"
