"""The section on the simulation's own speed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from nadi.inputs.arrow import arrow_numbers, numpy_column
from nadi.insight.metrics import worker_balance
from nadi.insight.runs import Run
from nadi.reports.pages.charts import bars
from nadi.reports.pages.page import Fact, Facts, Heading, PageSection, Part, Plot, Table
from nadi.terminal import amount_text

MAX_WORKERS = 32  # Number of workers that are shown


def _reuse(counts: Mapping[str, int]) -> list[Fact]:
    """Return facts about collectives that were replayed and periods that recurred; none without any."""
    if not counts:
        return []
    replayed, simulated = counts["episodes_replayed"], counts["episodes_simulated"]
    return [
        Fact("replayed", f"{counts['replayed_hops']:,}", "Packet-hops of collectives that were simulated once before."),
        Fact("messages", f"{counts['replayed_messages']:,}", "Messages of replayed collectives."),
        Fact("replays", f"{replayed:,}", "Number of times that collectives of an NVLink domain were replayed."),
        Fact(
            "disturbed",
            f"{counts['episodes_disturbed']:,}",
            "Those that other packets met, and that went on as packets.",
        ),
        Fact("episodes", f"{simulated:,}", "Different collectives of NVLink domains that were simulated."),
        Fact("repeated", f"{counts['repeated_hops']:,}", "Packet-hops of periods that repeat an earlier one exactly."),
        Fact("periods", f"{counts['repeated_periods']:,}", "Number of these periods, such as micro-batches."),
        Fact("fast-forward", f"{counts['near_periods']:,}", "Those of them that are only nearly like simulated ones."),
        Fact("records", amount_text(counts["record_bytes"]), "Memory of the recorded collectives."),
    ]


def section(run: Run) -> PageSection:
    """Return the section about the simulation's speed: rates, workers, windows and memory.

    Args:
        run: Finished run that the page shows.
    """
    summary = run.summary
    wall_s = summary.get("wall_s", 0.0)
    facts = [
        Fact("wall time", f"{wall_s:,.3g} s", "Time of the simulation, without reading traces and building fabrics."),
        Fact("setup time", f"{summary.get('setup_s', 0.0):,.3g} s", "Wall time of setup and compilation of kernels."),
        Fact("packet-hops", f"{summary.get('packet_hops', 0):,}", "Number of links that packets crossed, summed."),
        *_reuse(summary.get("reuse", {})),
        Fact("rate", f"{summary.get('packet_hops_per_s', 0.0) / 1e6:,.2f} M packet-hops/s", "Rate over all workers."),
        Fact("events", f"{summary.get('events', 0):,}", "Processed arrivals, departures and timers."),
        Fact("workers", _workers(summary), "Ranks are MPI processes; results are the same for any number."),
        Fact("LPs", f"{summary.get('lps', 1):,}", "Logical processes: parts of the fabric with windows of their own."),
        Fact("memory", amount_text(summary.get("peak_rss_bytes", 0)), "Peak memory of all processes, summed."),
    ]
    if "windows" in summary:
        windows = summary["windows"]
        facts.append(Fact("windows", f"{windows:,}", "Intervals of simulated time between two exchanges of the LPs."))
        if windows:
            why = "With few events per window, LPs wait for each other most of the time."
            facts.append(Fact("events per window", f"{summary.get('events', 0) / windows:,.1f}", why))
    workers, parts = run.workers, list[Part]()
    if workers is not None and len(workers):
        found = worker_balance(run)
        even = "Longest working time of a worker over the mean of all workers: 1 is even."
        facts.append(Fact("imbalance", f"{found.imbalance:.2f}", even))
        share = "Share of the workers' wall time spent waiting for each other."
        facts.append(Fact("share of waiting", f"{found.waiting:.1%}", share))
        parts = [_plot(workers), _table(workers)]
    lead = "Speed of the simulation itself, not of the simulated system."
    return PageSection("engine", "Simulation performance", lead, [Facts(facts), *parts])


def _plot(workers: pa.Table) -> Plot:
    """Return a bar per worker; of many workers those with the longest and the shortest working times."""
    shown = _shown(workers)
    names = [f"worker {number}" for number in shown["worker"].to_pylist()]
    times_s = {"working": numpy_column(shown["working_s"]), "waiting": numpy_column(shown["waiting_s"])}
    drawn = bars(names, times_s, ("#1f77b4", "#ea7200"), "s")
    working = numpy_column(workers["working_s"])
    description = f"Workers worked for {working.min():,.3g} s to {working.max():,.3g} s of wall time. "
    description += "In each window all wait for the worker with most events; nadi partition shows the nodes of each."
    if len(shown) < len(workers):
        description += f" {len(shown)} of {len(workers):,} are shown, with the longest and the shortest working times."
    return Plot("wall time of the workers (s)", drawn, description, 130 + 24 * len(shown))


def _table(workers: pa.Table) -> Table:
    """Return a row per worker; of many workers those with the longest and the shortest working times."""
    names = ("worker", "rank", "working (s)", "waiting for others (s)", "share waiting", "packet-hops", "events")
    rows = []
    for row in _shown(workers).to_pylist():
        whole_s = row["working_s"] + row["waiting_s"]
        share = f"{row['waiting_s'] / whole_s if whole_s else 0:.1%}"
        times = f"{row['working_s']:,.3f}", f"{row['waiting_s']:,.3f}", share
        rows.append([str(row["worker"]), str(row["rank"]), *times, f"{row['packet_hops']:,}", f"{row['events']:,}"])
    note = f"All {len(workers):,} are in workers.parquet."
    return Table("the workers", [Heading(name) for name in names], rows, note)


def _shown(workers: pa.Table) -> pa.Table:
    """Return MAX_WORKERS workers, those with the longest and the shortest working times."""
    if len(workers) <= MAX_WORKERS:
        return workers
    order = np.argsort(numpy_column(workers["working_s"]), kind="stable")
    rows = np.sort(np.concatenate([order[: MAX_WORKERS // 2], order[-MAX_WORKERS // 2 :]]))
    return workers.take(arrow_numbers(rows))


def _workers(summary: dict[str, Any]) -> str:
    """Return the numbers of ranks, threads and processes in words."""
    parts = [
        f"{summary[key]} {name if summary[key] > 1 else name.removesuffix('s')}"
        for key, name in (("ranks", "ranks"), ("threads", "threads"))
        if summary.get(key)
    ]
    processes = summary.get("processes", 1)
    return ", ".join(parts) + (f", {processes} processes" if processes > 1 else "")
