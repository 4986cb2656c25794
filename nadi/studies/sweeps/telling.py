"""How far a sweep is, on the terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nadi.studies.sweeps.points import SweepDefinition
from nadi.studies.sweeps.running import PointOutcome


@contextmanager
def telling(sweep: SweepDefinition, points: int, *, quiet: bool) -> Iterator[Callable[[PointOutcome], None]]:
    """What is told of each point that ends: on a terminal a bar with the time left, else a line each."""
    if quiet:
        yield lambda outcome: None  # noqa: ARG005 - nothing is said
        return
    if not sys.stderr.isatty():
        yield lambda outcome: _line(sweep, outcome)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("points", total=points)

        def tell(outcome: PointOutcome) -> None:
            shown.advance(task)
            if outcome.error:
                shown.console.print(_said(sweep, outcome), markup=False, highlight=False)

        yield tell


def _line(sweep: SweepDefinition, outcome: PointOutcome) -> None:
    sys.stderr.write(_said(sweep, outcome) + "\n")
    sys.stderr.flush()


def _said(sweep: SweepDefinition, outcome: PointOutcome) -> str:
    values = ", ".join(f"{key} = {value}" for key, value in sweep.points[outcome.point].values.items())
    state = outcome.error or ("was finished" if outcome.was_there else "finished")
    return f"point {outcome.point} ({values}): {state}"
