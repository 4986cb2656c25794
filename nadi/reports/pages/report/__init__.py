"""The report of a run: one page with a section per module of this package, from the folder of its results."""

from collections.abc import Callable

from nadi.insight.runs import Run
from nadi.reports.pages import network
from nadi.reports.pages.page import Page, PageSection
from nadi.reports.pages.places import fabric_kind
from nadi.reports.pages.report import (
    collectives,
    energy,
    engine,
    explanation,
    fabric,
    jobs,
    overview,
    serving,
    settings,
    step,
    timeline,
)
from nadi.terminal import time_text

# Modules in the order of the page; each has `section(run)`, which returns None if it has no content
SECTIONS = (
    overview,
    jobs,
    serving,
    step,
    explanation,
    timeline,
    collectives,
    fabric,
    network,
    energy,
    engine,
    settings,
)


def report(run: Run, progress: Callable[[str], None] = lambda _text: None) -> Page:
    """Return the page of a run; `progress` is called with the name of each section before it is made."""
    summary = run.summary
    work = summary.get("config", {}).get("workload", {})
    npus, fabric = f"{summary.get('npus', 0):,} NPUs", str(summary.get("topology", ""))
    what = f"{work['model']} as {work['plan']}" if work.get("model") else npus
    sections: list[PageSection] = []
    for module in SECTIONS:
        progress(f"section {module.__name__.rpartition('.')[2]}")
        section = module.section(run)
        sections += [section] if section else []
    return Page(
        f"{what} on {fabric_kind(fabric)}: {_main_result(run)}",
        f"{npus} on {fabric}, simulated by Nadi {summary.get('version', '')}. "
        f"Click an underlined term for its explanation.",
        sections,
    )


def _main_result(run: Run) -> str:
    """Return the main result of a run: the times of requests if it serves a model, else its time."""
    serving = run.summary.get("serving", {})
    times = [f"{name.upper()} {time_text(serving[name]['p50_ps'])}" for name in ("ttft", "tpot") if name in serving]
    return f"median {', '.join(times)}" if times else time_text(run.finish_time_ps)
