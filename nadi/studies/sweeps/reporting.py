"""The progress of a sweep on the terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nadi.studies.sweeps.points import SweepDefinition
from nadi.studies.sweeps.running import PointOutcome


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
