"""The results of a run: `nadi report`, `nadi timeline`, `nadi explain`, `nadi energy`, and `nadi compare`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.options import AsJson, FiguresFolder, MaxSlices, Quiet, RunFolder, Timeline, named_path
from nadi.cli.output import check_outputs, print_document, print_timeline, print_with_page, write_charts
from nadi.errors import ConfigError
from nadi.launching.ending import unwound
from nadi.terminal import say


def register(app: typer.Typer) -> None:
    """Add the commands.

    Args:
        app: The application of typer.
    """
    app.command()(report)
    app.command()(timeline)
    app.command()(explain)
    app.command()(energy)
    app.command()(compare)


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
    from nadi.reports.pages import write_page
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


def timeline(
    folder: RunFolder,
    out: Timeline,
    npus: str = typer.Option("", "--npus", metavar="LIST", help="NPUs to show, such as 0,8,16. Default: at most 64."),
    most_slices: MaxSlices = 200_000,
    as_json: AsJson = False,
) -> None:
    """Write a timeline: lanes by NPU and kind, arrows from sends to receives, load of links and queues over time."""
    from nadi.insight.runs import Run
    from nadi.reports.timelines import write_run_timeline

    try:
        chosen = [int(word) for word in npus.split(",")] if npus else []
    except ValueError:
        raise ConfigError(f"--npus {npus!r}: expected numbers, as 0,8,16") from None
    with unwound():
        shown = write_run_timeline(out, Run(folder), chosen, most_slices)
    print_timeline(out, shown, f", {shown.counters:,} counters", as_json=as_json)


def explain(
    folder: RunFolder,
    faster: float = typer.Option(1.1, min=1.0, max=100.0, metavar="TIMES", help="Speed-up factor of each `what if`."),
    job: str = typer.Option("", metavar="NAME", help="Job of [[jobs]] to explain. Default: the last to end."),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the critical path of a run across NPUs, the bound of each piece, and which changes would shorten the run."""
    from nadi.insight.explanation import explain as explained
    from nadi.insight.runs import Run
    from nadi.launching.progress import progress
    from nadi.reports.text.run import explanation_report

    with progress(quiet=quiet) as shown:
        document = explained(Run(folder), faster, shown.begin, job)
    print_document(document, explanation_report, as_json=as_json)


_FOLDER = "Results of `nadi run --out DIR`."
_TABLE = "TOML file of powers and prices that override the defaults."


def energy(
    folder: Path | None = typer.Argument(None, metavar="[DIR]", show_default=False, help=_FOLDER),
    table: Path | None = typer.Option(None, metavar="FILE", parser=named_path, help=_TABLE),
    show_table: bool = typer.Option(False, "--show-table", help="Print the default table with its sources."),
    as_json: AsJson = False,
) -> None:
    """Print energy and cost of a run and of its step: GPUs, hosts, NICs, switches, optics and the data centre."""
    from nadi.energy import DEFAULT_TABLE
    from nadi.insight.runs import Run, energy_of
    from nadi.reports.text.energy import energy_report

    if show_table:
        typer.echo(DEFAULT_TABLE.read_text(encoding="utf-8"), nl=False)
        return
    if folder is None:
        raise ConfigError("nadi energy: found no folder; expected results of `nadi run --out DIR`, or --show-table")
    print_document(energy_of(Run(folder), table).document(), energy_report, as_json=as_json)


_PATHS = (
    "Folders of results of nadi run; the first is the baseline. "
    "With --measured one folder, and TRACES with times if they differ from the run's own traces."
)
_OUT = "Page FILE.html to write; with --measured a folder for measured.json and a page."
_WORST = "With --measured: number of worst nodes to list."
_MAX_WORST = 10_000

Paths = Annotated[list[Path], typer.Argument(metavar="DIR ...", show_default=False, help=_PATHS)]
IsMeasured = Annotated[bool, typer.Option("--measured", help="Compare a run with the measured times in traces.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", parser=named_path, help=_OUT)]
_FIGURES_WITHOUT = "--figures: found with --measured; expected a comparison of runs"
Worst = Annotated[int, typer.Option(min=0, max=_MAX_WORST, metavar="N", help=_WORST)]


def compare(
    paths: Paths,
    is_measured: IsMeasured = False,
    out: Out = None,
    figures: FiguresFolder = None,
    worst: Worst = 10,
    as_json: AsJson = False,
) -> None:
    """Runs beside each other: settings, figures, time, collectives, links. Or a run beside measured times."""
    if not is_measured:
        from nadi.insight.comparison import compare
        from nadi.insight.runs import Run
        from nadi.reports.pages.comparison import comparison_page
        from nadi.reports.text.comparison import comparison_report

        check_outputs(out, figures)
        compared = compare([Run(folder) for folder in paths])
        print_with_page(compared, comparison_report, lambda: comparison_page(compared), out, figures, as_json=as_json)
        return
    if figures:
        raise ConfigError(_FIGURES_WITHOUT)
    if len(paths) > 2:
        raise ConfigError(f"--measured: found {len(paths)} paths; expected RUN_DIR and at most TRACES beside it")
    _compare_measured(paths[0], paths[1] if len(paths) > 1 else None, out, worst, as_json=as_json)


def _compare_measured(run: Path, traces: Path | None, out: Path | None, num_worst: int, *, as_json: bool) -> None:
    """Print a run beside measured times of `traces` (None: its own), with the worst nodes; write it into `out`."""
    from nadi.insight.accuracy import accuracy_document
    from nadi.insight.measured import estimate_clocks, read_beside
    from nadi.reports.pages.comparison import ACCURACY_FILES, write_measured
    from nadi.reports.staging import staged
    from nadi.reports.text.comparison import accuracy_report

    with staged(out, ACCURACY_FILES, key="clocks") if out else nullcontext() as staging:
        nodes = read_beside(run, traces)
        compared = accuracy_document(nodes, estimate_clocks(nodes), num_worst)
        if staging:
            write_measured(staging, nodes, compared)
    print_document(compared, accuracy_report, as_json=as_json)
    if out:
        say(f"results: {out}", err=as_json)
