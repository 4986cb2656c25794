"""The report of a run: one page of sections, a file each, from the folder of its results."""

from nadi.pages.page import Page
from nadi.pages.report import collectives, engine, explanation, fabric, network, overview, settings, step, timeline
from nadi.runs import Run
from nadi.terminal.readable import time_text

SECTIONS = (overview, step, explanation, timeline, collectives, fabric, network, engine, settings)
"""In the order of the page; each has `section(run)`."""


def report(run: Run) -> Page:
    """The page.

    Raises:
        ConfigError: a table of the run is missing or cannot be read.
    """
    summary = run.summary
    work = summary.get("config", {}).get("workload", {})
    model = f"{work['model']} as {work['plan']} on " if work.get("model") else ""
    return Page(
        f"{model}{summary.get('topology', '')}: {time_text(run.finish_time_ps)}",
        f"{summary.get('npus', 0):,} NPUs, simulated by Nadi {summary.get('version', '')}. "
        f"Underlined terms explain themselves when they are pressed.",
        [each.section(run) for each in SECTIONS],
    )
