"""Output of commands on the terminal: JSON, tables, and the places of written files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from nadi.terminal.printing import say


def print_json(document: object, indent: int | None = 2) -> None:
    """Print a document as JSON; indent: number of spaces per level, None = all on one line."""
    typer.echo(json.dumps(document, indent=indent))


def print_table(renderable: object) -> None:
    """Print a table, or anything else that rich prints, on the console."""
    from nadi.terminal.tables import console

    console().print(renderable)


def print_document(document: Any, render: Callable[[Any], object], *, as_json: bool) -> None:  # noqa: ANN401 - JSON
    """Print a document as JSON, or as the renderable that `render` returns for it."""
    if as_json:
        print_json(document)
    else:
        print_table(render(document))


def print_with_page(
    document: Any,  # noqa: ANN401 - JSON
    render: Callable[[Any], object],
    page_of: Callable[[], Any],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write the page that `page_of` returns to `out`, None = no page, print a document, and name the page."""
    from nadi.reports.pages.page import write_page

    if out:
        write_page(out, page_of())
    print_document(document, render, as_json=as_json)
    if out:
        say(f"page: {out}", err=as_json)


def say_results(folder: Path, page: str, *, err: bool) -> None:
    """Print the folder of results, and a note if it lacks the page because plotly is not installed."""
    from nadi.reports.pages import missing_page_note

    say(f"results: {folder}{missing_page_note(page)}", err=err)


def print_timeline(out: Path, timeline: Any, counters: str = "", *, as_json: bool) -> None:  # noqa: ANN401 - either timeline
    """Print the contents and omissions of a written timeline; `counters` is a text about its counters."""
    if as_json:
        print_json({"path": str(out), **timeline._asdict(), "notes": timeline.notes()}, indent=None)
        return
    slices = f"{timeline.slices:,} slices on {timeline.npus:,} NPUs, {timeline.flows:,} arrows{counters}"
    say(f"{out}: {slices}; open it in ui.perfetto.dev")
    for note in timeline.notes():
        say(f"  {note}")
