"""How fast the simulation itself was."""

from typing import Any

import numpy as np
import pyarrow as pa

from nadi.insight.runs import Run
from nadi.insight.runs.balance import balance
from nadi.reports.pages.page import Fact, Facts, Heading, PageSection, Part, Plot, Table
from nadi.terminal.readable import amount_text

MAX_WORKERS = 32


def section(run: Run) -> PageSection:
    """Rates, workers, windows and memory."""
    summary = run.summary
    wall_s = summary.get("wall_s", 0.0)
    facts = [
        Fact(
            "wall time", f"{wall_s:,.3g} s", "Of the simulation itself, without reading traces and building the fabric."
        ),
        Fact("before it", f"{summary.get('setup_s', 0.0):,.3g} s", "Making worlds and compiling kernels."),
        Fact("packet-hops", f"{summary.get('packet_hops', 0):,}", "Packets times the links that each crossed."),
        Fact("rate", f"{summary.get('packet_hops_per_s', 0.0) / 1e6:,.2f} M packet-hops/s", "Over all workers."),
        Fact("events", f"{summary.get('events', 0):,}", "Arrivals, departures and timers that were acted on."),
        Fact("workers", _workers(summary), "Ranks are MPI processes; results are the same for any number."),
        Fact(
            "LPs", f"{summary.get('lps', 1):,}", "Logical processes: parts of the fabric that run windows on their own."
        ),
        Fact("memory", amount_text(summary.get("peak_rss_bytes", 0)), "The most that all processes had, together."),
    ]
    if "windows" in summary:
        windows = summary["windows"]
        facts.append(Fact("windows", f"{windows:,}", "Stretches of simulated time between two exchanges of the LPs."))
        if windows:
            each = f"{summary.get('events', 0) / windows:,.1f}"
            facts.append(Fact("events per window", each, "Few of them, and LPs wait for each other most of the time."))
    workers, parts = run.workers, list[Part]()
    if workers is not None and len(workers):
        found = balance(run)
        even = "The most that a worker worked, over the mean of all: 1 is even."
        facts.append(Fact("imbalance", f"{found.imbalance:.2f}", even))
        share = "Of the workers' wall time: waiting for each other."
        facts.append(Fact("share of waiting", f"{found.waiting:.1%}", share))
        parts = [_plot(workers), _table(workers)]
    lead = "Speed and cost of the simulation, not of the system simulated."
    return PageSection("engine", "How the simulation ran", lead, [Facts(facts), *parts])


def _plot(workers: pa.Table) -> Plot:
    """A bar for each worker; of very many those that worked longest and shortest."""
    from plotly import graph_objects as go

    shown = _shown(workers)
    drawn = go.Figure()
    for column, name, colour in (("working_s", "working", "#1f77b4"), ("waiting_s", "waiting", "#ea7200")):
        drawn.add_bar(
            y=[f"worker {number}" for number in shown["worker"].to_pylist()],
            x=shown[column].to_numpy(),
            name=name,
            orientation="h",
            marker_color=colour,
            hovertemplate=f"%{{y}}: {name} %{{x:,.4g}} s<extra></extra>",
        )
    drawn.update_layout(barmode="stack", margin={"t": 10, "b": 50, "l": 10, "r": 10}, legend={"traceorder": "normal"})
    drawn.update_xaxes(title_text="s")
    drawn.update_yaxes(autorange="reversed", type="category")
    working = np.asarray(workers["working_s"])
    says = f"A worker worked from {working.min():,.3g} s to {working.max():,.3g} s of wall time. "
    says += "All wait for the one that has most to do, window by window; nadi partition shows who has what."
    if len(shown) < len(workers):
        says += f" {len(shown)} of {len(workers):,} are shown: those that worked longest and shortest."
    return Plot("wall time of the workers (s)", drawn, says, 130 + 24 * len(shown))


def _table(workers: pa.Table) -> Table:
    names = ("worker", "rank", "working (s)", "waiting for others (s)", "share waiting", "packet-hops", "events")
    rows = []
    for row in _shown(workers).to_pylist():
        whole = row["working_s"] + row["waiting_s"]
        rows.append(
            [
                f"{row['worker']}",
                f"{row['rank']}",
                f"{row['working_s']:,.3f}",
                f"{row['waiting_s']:,.3f}",
                f"{row['waiting_s'] / whole if whole else 0:.1%}",
                f"{row['packet_hops']:,}",
                f"{row['events']:,}",
            ]
        )
    note = f"All {len(workers):,} stand in workers.parquet."
    return Table("the workers", [Heading(name) for name in names], rows, note)


def _shown(workers: pa.Table) -> pa.Table:
    """MAX_WORKERS of them, those that worked longest and shortest."""
    if len(workers) <= MAX_WORKERS:
        return workers
    order = np.argsort(np.asarray(workers["working_s"]), kind="stable")
    return workers.take(np.sort(np.concatenate([order[: MAX_WORKERS // 2], order[-MAX_WORKERS // 2 :]])))


def _workers(summary: dict[str, Any]) -> str:
    parts = [
        f"{summary[key]} {name if summary[key] > 1 else name.removesuffix('s')}"
        for key, name in (("ranks", "ranks"), ("threads", "threads"))
        if summary.get(key)
    ]
    processes = summary.get("processes", 1)
    return ", ".join(parts) + (f", {processes} processes" if processes > 1 else "")
