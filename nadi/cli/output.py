"""Output of commands on the terminal: JSON, tables, places of written files, and runs with progress and report."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nadi.terminal import console, say

if TYPE_CHECKING:
    from nadi.api.running import RunRequest
    from nadi.launching.ranks import RankGather
    from nadi.simulation.run import FinishedRun


def print_json(document: object, indent: int | None = 2) -> None:
    """Print a document as JSON; indent: number of spaces per level, None = all on one line."""
    typer.echo(json.dumps(document, indent=indent))


def print_table(renderable: object) -> None:
    """Print a table, or anything else that rich prints, on the console.

    Args:
        renderable: An object that rich prints: a table, a text or a group.
    """
    console().print(renderable)


def print_document(document: Any, render: Callable[[Any], object], *, as_json: bool) -> None:  # noqa: ANN401 - JSON
    """Print a document as JSON, or as the renderable that `render` returns for it.

    Args:
        document: Content to print, as a JSON document.
        render: Function that returns the renderable of a document.
        as_json: Whether to print JSON.
    """
    if as_json:
        print_json(document)
    else:
        print_table(render(document))


def check_outputs(out: Path | None, figures: Path | None) -> None:
    """Check before the work whether a page and figures can be written.

    Args:
        out: File of the page; None = no page.
        figures: Folder of the figures; None = no figures.
    """
    from nadi.reports.figures import check_figures
    from nadi.reports.pages import check_page

    if out:
        check_page(out)
    if figures:
        check_figures()


def print_with_page(
    document: Any,  # noqa: ANN401 - JSON
    render: Callable[[Any], object],
    page_of: Callable[[], Any],
    out: Path | None,
    figures: Path | None = None,
    *,
    as_json: bool,
) -> None:
    """Print a document, and write its page and charts.

    Args:
        document: Content to print, as a JSON document.
        render: Function that returns the renderable of a document.
        page_of: Function that returns the page, called only if a page or charts are wanted.
        out: File of the page; None = no page.
        figures: Folder of the charts; None = no charts.
        as_json: Whether to print JSON, so that other lines go to standard error.
    """
    from nadi.reports.pages import write_page

    page: Any = page_of() if out or figures else None
    if out:
        write_page(out, page)
    print_document(document, render, as_json=as_json)
    if out:
        say(f"page: {out}", err=as_json)
    if figures:
        write_charts(figures, page, err=as_json)


def write_charts(folder: Path, page: Any, *, err: bool) -> None:  # noqa: ANN401 - a page, whose import takes time
    """Write the charts of a page into a folder, and print where they are.

    Args:
        folder: Folder to write to.
        page: The page with the charts.
        err: Whether to print on standard error.
    """
    from nadi.reports.figures import write_figures

    names = write_figures(folder, page)
    say(f"figures: {folder}, {len(names)} as SVG, PDF and CSV", err=err)


def print_timeline(out: Path, timeline: Any, counters: str = "", *, as_json: bool) -> None:  # noqa: ANN401 - either timeline
    """Print the contents and omissions of a written timeline.

    Args:
        out: File of the timeline.
        timeline: Counts of what it shows.
        counters: Text about its counters.
        as_json: Whether to print JSON, so that other lines go to standard error.
    """
    if as_json:
        print_json({"path": str(out), **timeline._asdict(), "notes": timeline.notes()}, indent=None)
        return
    slices = f"{timeline.slices:,} slices on {timeline.npus:,} NPUs, {timeline.flows:,} arrows{counters}"
    say(f"{out}: {slices}; open it in ui.perfetto.dev")
    for note in timeline.notes():
        say(f"  {note}")


def run_and_report(
    request: "RunRequest",
    ranks: "RankGather",
    begin_s: float,
    *,
    force: bool,
    as_json: bool = False,
    quiet: bool,
    before_report: Callable[["FinishedRun"], None] | None = None,
) -> None:
    """Run a request; print the results, with the time since the command began.

    Args:
        request: The run and its folder of results.
        ranks: Exchange of values between ranks.
        begin_s: Time of the monotonic clock in s at which the command began.
        force: Whether to accept too much work or memory.
        as_json: Whether to print the summary as JSON instead of the report.
        quiet: Whether to show no progress.
        before_report: Function that is called with the finished run on the first rank before the report is printed;
            None = none.
    """
    from nadi.api.running import run
    from nadi.reports.run_folder import summary
    from nadi.reports.text.run import print_report

    outcome = run(request, ranks, force=force, quiet=quiet)
    if outcome is None:
        return
    if before_report is not None:
        before_report(outcome.simulation)
    if as_json:
        print_json(summary(outcome.simulation, outcome.peak_rss_bytes, outcome.findings))
        say(f"results: {request.folder}" if request.folder else "results are not kept: no --out DIR", err=True)
    else:
        print_report(outcome.simulation, outcome.findings, request.folder, time.monotonic() - begin_s)
    if outcome.page:
        say(f"page: {outcome.page}", err=as_json)
