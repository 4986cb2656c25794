"""A sweep on the terminal: its progress, and the table of its points, ranked."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from nadi.insight.runs.figures import Figure, order
from nadi.studies.sweeps.page import figures_shown, keys_of, label
from nadi.studies.sweeps.points import SweepDefinition
from nadi.studies.sweeps.running import PointOutcome
from nadi.terminal.readable import figure_text
from nadi.terminal.tables import FittedTable, TableColumn

MAX_ROWS = 40  # maximum number of points in the printed table


@contextmanager
def progress_reporter(
    sweep: SweepDefinition, num_points: int, *, quiet: bool
) -> Iterator[Callable[[PointOutcome], None]]:
    """Yield a function that reports each finished point: a bar with the remaining time on a terminal, else a line."""
    if quiet:
        yield lambda outcome: None  # noqa: ARG005 - no output
        return
    if not sys.stderr.isatty():
        yield lambda outcome: _write_line(sweep, outcome)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("points", total=num_points)

        def report(outcome: PointOutcome) -> None:
            bar.advance(task)
            if outcome.error:
                bar.console.print(_outcome_text(sweep, outcome), markup=False, highlight=False)

        yield report


def _write_line(sweep: SweepDefinition, outcome: PointOutcome) -> None:
    """Write the outcome of a point of a sweep as a line on standard error."""
    sys.stderr.write(_outcome_text(sweep, outcome) + "\n")
    sys.stderr.flush()


def _outcome_text(sweep: SweepDefinition, outcome: PointOutcome) -> str:
    """Return the outcome of a point of a sweep as text: its number, its values, and an error or "finished"."""
    values = ", ".join(f"{key} = {value}" for key, value in sweep.points[outcome.point].values.items())
    state = outcome.error or ("already finished" if outcome.was_there else "finished")
    return f"point {outcome.point} ({values}): {state}"


def render(points: pa.Table, ranking_figure: Figure | None) -> FittedTable:
    """Return the table of the best points with their values and figures; ranking_figure: None if none is finished."""
    keys, shown = keys_of(points), figures_shown(points)
    columns = [TableColumn(key, form="name") for key in keys]
    columns += [TableColumn(label(each), rank) for rank, each in enumerate(shown)]
    title = f"points, ranked by {label(ranking_figure)}" if ranking_figure else "points"
    result = FittedTable(title, *columns, TableColumn("error", 1, "text"), full_output_option="--json")
    for row in order(points, ranking_figure)[:MAX_ROWS].tolist():
        cells = [str(points[key][row].as_py()) for key in keys]
        cells += [figure_text(each.form, points[each.name][row].as_py()) for each in shown]
        result.add_row(*cells, points["error"][row].as_py() or "")
    return result
