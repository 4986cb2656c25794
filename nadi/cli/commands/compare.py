"""`nadi compare`: compare runs with each other, or a run with measured times."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.options import AsJson, FiguresFolder, named_path
from nadi.cli.output import check_outputs, print_document, print_with_page
from nadi.errors import ConfigError
from nadi.terminal import say

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
    from nadi.reports.text.accuracy import accuracy_report

    with staged(out, ACCURACY_FILES, key="clocks") if out else nullcontext() as staging:
        nodes = read_beside(run, traces)
        compared = accuracy_document(nodes, estimate_clocks(nodes), num_worst)
        if staging:
            write_measured(staging, nodes, compared)
    print_document(compared, accuracy_report, as_json=as_json)
    if out:
        say(f"results: {out}", err=as_json)
