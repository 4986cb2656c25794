"""`nadi report`: write a page about a run."""

from pathlib import Path

import typer

from nadi.cli.options import FiguresFolder, Quiet, RunFolder, named_path
from nadi.cli.output import check_outputs, write_charts
from nadi.terminal import say


def report(
    folder: RunFolder,
    out: Path | None = typer.Option(
        None, "-o", "--out", metavar="FILE", parser=named_path, help="Page to write. Default: DIR/report.html."
    ),
    show: bool = typer.Option(False, "--open", help="Open the page in the browser."),
    figures: FiguresFolder = None,
    quiet: Quiet = False,
) -> None:
    """Write a page about a run: times, collectives, fabric, queues. The page works offline."""
    from nadi.insight.runs import Run
    from nadi.launching.progress import progress
    from nadi.reports.pages.page import write_page
    from nadi.reports.pages.report import report as page
    from nadi.reports.run_folder import REPORT

    file = out or folder / REPORT
    check_outputs(file, figures)
    with progress(quiet=quiet) as shown:
        made = page(Run(folder), shown.begin)
        write_page(file, made)
    say(f"page: {file}")
    if figures:
        write_charts(figures, made, err=False)
    if show:
        typer.launch(file.absolute().as_uri())
