"""Output of commands on the terminal: JSON, tables, and the places of written files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from nadi.terminal import say


def print_json(document: object, indent: int | None = 2) -> None:
    """Print a document as JSON; indent: number of spaces per level, None = all on one line."""
    typer.echo(json.dumps(document, indent=indent))


def print_table(renderable: object) -> None:
    """Print a table, or anything else that rich prints, on the console.

    Args:
        renderable: An object that rich prints: a table, a text or a group.
    """
    from nadi.terminal import console

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
    from nadi.reports.pages.page import check_page

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
    from nadi.reports.pages.page import write_page

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


def say_results(folder: Path, *, err: bool) -> None:
    """Print the folder of results.

    Args:
        folder: Folder of the results.
        err: Whether to print on standard error.
    """
    say(f"results: {folder}", err=err)


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
