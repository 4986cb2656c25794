"""The report of a run: one page of sections, a file each, from the folder of its results."""

from collections.abc import Callable
from types import ModuleType

from nadi.insight.runs import Run
from nadi.reports.pages.page import Page, PageSection
from nadi.reports.pages.places import fabric_kind
from nadi.reports.pages.report import (
    collectives,
    energy,
    engine,
    explanation,
    fabric,
    network,
    overview,
    serving,
    settings,
    step,
    timeline,
)
from nadi.terminal.readable import time_text

SECTIONS = (overview, serving, step, explanation, timeline, collectives, fabric, network, energy, engine, settings)
"""In the order of the page; each has `section(run)`, None where there is nothing to show."""


def report(run: Run, say: Callable[[str], None] = lambda _text: None) -> Page:
    """Return the page.

    Args:
        run: Results of a run.
        say: Called with a text that says which section is made now.

    Raises:
        ConfigError: a table of the run is missing or cannot be read.
    """
    summary = run.summary
    work = summary.get("config", {}).get("workload", {})
    npus, fabric = f"{summary.get('npus', 0):,} NPUs", str(summary.get("topology", ""))
    what = f"{work['model']} as {work['plan']}" if work.get("model") else npus
    return Page(
        f"{what} on {fabric_kind(fabric)}: {time_text(run.finish_time_ps)}",
        f"{npus} on {fabric}, simulated by Nadi {summary.get('version', '')}. "
        f"Underlined terms explain themselves when they are pressed.",
        [found for each in SECTIONS if (found := _section(each, run, say)) is not None],
    )


def _section(module: ModuleType, run: Run, say: Callable[[str], None]) -> PageSection | None:
    """Return the section of a module of this package, or None where it has nothing to show."""
    say(f"section {module.__name__.rpartition('.')[2]}")
    found: PageSection | None = module.section(run)
    return found
