"""How fast the simulation itself was."""

from typing import Any

from nadi.pages.page import Fact, Facts, Section
from nadi.runs import Run
from nadi.terminal.readable import amount_text


def section(run: Run) -> Section:
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
    return Section(
        "engine",
        "How the simulation ran",
        "Speed and cost of the simulation, not of the system simulated.",
        [Facts(facts)],
    )


def _workers(summary: dict[str, Any]) -> str:
    parts = [
        f"{summary[key]} {name if summary[key] > 1 else name.removesuffix('s')}"
        for key, name in (("ranks", "ranks"), ("threads", "threads"))
        if summary.get(key)
    ]
    processes = summary.get("processes", 1)
    return ", ".join(parts) + (f", {processes} processes" if processes > 1 else "")
