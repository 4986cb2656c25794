"""Sweeps of `nadi sweep`: `read_sweep` reads the points, `run_points` runs them, `finish` writes table and page.

Each unfinished point runs in a process and a folder of its own.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from nadi import __version__, inputs
from nadi.errors import OutputError
from nadi.inputs.arrays import arrow_numbers, arrow_texts
from nadi.insight.metrics import METRICS, metrics_of, ranking_metric
from nadi.insight.runs import Run
from nadi.launching.installation import nadi_command
from nadi.launching.slurm import array_script
from nadi.studies.sweeps.page import MAX_PRINTED, points_page, points_table
from nadi.studies.sweeps.points import Point, SweepDefinition, Value, read_sweep, settings_of, toml

if TYPE_CHECKING:
    import pyarrow as pa

RUNS = "runs"  # folder with the results of the points, and nothing else
ERROR = "nadi: error: "  # begin of the line of standard error that says why a run failed
_FAILED = "failed"  # folder with the error of each point that failed, for the table of another shard


class PointOutcome(NamedTuple):
    """The outcome of a point."""

    point: int  # index of the point in the sweep
    error: str  # error message on one line; "" = finished
    was_there: bool = False  # whether an earlier sweep finished the point


def outcome_text(sweep: SweepDefinition, outcome: PointOutcome) -> str:
    """Return the outcome of a point of a sweep as text: its number, its values, and an error or "finished"."""
    values = ", ".join(f"{key} = {value}" for key, value in sweep.points[outcome.point].values.items())
    state = outcome.error or ("already finished" if outcome.was_there else "finished")
    return f"point {outcome.point} ({values}): {state}"


def folder_of(sweep_folder: Path, point: Point) -> Path:
    """Return the results folder of a point inside the sweep's.

    Args:
        sweep_folder: The folder of the sweep.
        point: A point of the sweep.
    """
    return sweep_folder / RUNS / point.name


def is_finished(sweep_folder: Path, point: Point) -> bool:
    """Return whether a point's results are complete: summary.json is written last.

    Args:
        sweep_folder: The folder of the sweep.
        point: A point of the sweep.
    """
    return (folder_of(sweep_folder, point) / "summary.json").is_file()


def earlier_outcomes(sweep: SweepDefinition, sweep_folder: Path) -> list[PointOutcome]:
    """Return the outcomes of all points from earlier sweeps into the folder, without running any.

    Args:
        sweep: The points of the sweep file.
        sweep_folder: The folder of the sweep.
    """
    return [
        PointOutcome(index, "", was_there=True)
        if is_finished(sweep_folder, point)
        else PointOutcome(index, _failure(sweep_folder, point) or "not run")
        for index, point in enumerate(sweep.points)
    ]


def run_points(
    sweep: SweepDefinition,
    sweep_folder: Path,
    point_indices: Sequence[int],
    max_runs_at_once: int,
    report: Callable[[PointOutcome], None],
    *,
    force: bool = False,
) -> list[PointOutcome]:
    """Run these unfinished points, `report` each that ends, and return all outcomes.

    Args:
        sweep: The points of the sweep file.
        sweep_folder: The folder of the sweep.
        point_indices: The numbers of the points to run.
        max_runs_at_once: The number of processes that run points.
        report: A function that gets the outcome of each point that ends.
        force: Whether `nadi run` gets --force.
    """
    outcomes = [
        PointOutcome(index, "", was_there=True)
        for index in point_indices
        if is_finished(sweep_folder, sweep.points[index])
    ]
    for outcome in outcomes:
        report(outcome)
    finished = {outcome.point for outcome in outcomes}
    with _processes() as run, ThreadPoolExecutor(max_runs_at_once) as pool:
        waiting: set[Future[PointOutcome]] = {
            pool.submit(_run_point, run, sweep, sweep_folder, index, max_runs_at_once, force=force)
            for index in point_indices
            if index not in finished
        }
        try:
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    outcomes.append(future.result())
                    report(outcomes[-1])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(outcomes)


def _failure(sweep_folder: Path, point: Point) -> str:
    """Return the error message of a point's last run; "" if unknown."""
    try:
        return inputs.read_text(sweep_folder / _FAILED / f"{point.name}.txt").strip()
    except (OSError, ValueError):
        return ""


def forget_failures(sweep: SweepDefinition, sweep_folder: Path, outcomes: Sequence[PointOutcome]) -> None:
    """Remove the errors of points that have finished since, or that are no longer in the sweep.

    Args:
        sweep: The points of the sweep file.
        sweep_folder: The folder of the sweep.
        outcomes: The outcome of each point, in the order of the sweep file.
    """
    failed = {f"{sweep.points[outcome.point].name}.txt" for outcome in outcomes if outcome.error}
    folder = sweep_folder / _FAILED
    with suppress(OSError):
        for file in folder.iterdir():
            if file.name not in failed:
                file.unlink(missing_ok=True)
        folder.rmdir()


def _run_point(
    run_command: Callable[[Sequence[str]], tuple[int, str]],
    sweep: SweepDefinition,
    sweep_folder: Path,
    point_index: int,
    max_runs_at_once: int,
    *,
    force: bool,
) -> PointOutcome:
    """Run one point with `nadi run` and record its error message if it fails; `run_command` returns code and stderr."""
    point = sweep.points[point_index]
    # runs beside each other leave no cores that one of them could choose
    alone = [] if max_runs_at_once == 1 or point.config.names_workers else ["--workers", "1"]
    command = nadi_command(["run", *([str(sweep.run_file)] if sweep.run_file else [])])
    for override in point.overrides():
        command += ["--set", override]
    command += ["--out", str(folder_of(sweep_folder, point)), "--quiet", *alone, *(["--force"] if force else [])]
    code, stderr = run_command(command)
    failure = sweep_folder / _FAILED / f"{point.name}.txt"
    with suppress(OSError):  # the outcome holds the error too
        failure.unlink(missing_ok=True)
    if code == 0:
        return PointOutcome(point_index, "")
    lines = [line for line in stderr.splitlines() if line.strip()]
    # an error of a run may have more lines below it, such as what NPUs wait for
    errors = [line for line in lines if line.startswith(ERROR)] or lines[-1:]
    error = errors[-1].removeprefix(ERROR) if errors else f"exit code {code}"
    with suppress(OSError):
        failure.parent.mkdir(parents=True, exist_ok=True)
        inputs.write_whole(failure, error)
    return PointOutcome(point_index, error)


@contextmanager
def _processes() -> Iterator[Callable[[Sequence[str]], tuple[int, str]]]:
    """Yield a function that runs a command to its end; if the block ends early, terminate running commands."""
    running: set[subprocess.Popen[str]] = set()
    lock, has_ended = Lock(), Event()

    def run(command: Sequence[str]) -> tuple[int, str]:
        with lock:
            if has_ended.is_set():
                return 130, "not started"
            process = subprocess.Popen(  # noqa: S603 - this project's own command
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            running.add(process)
        try:
            _, stderr = process.communicate()
        finally:
            with lock:
                running.discard(process)
        return process.returncode, stderr

    try:
        yield run
    except BaseException:
        with lock:
            has_ended.set()
            for process in running:
                process.terminate()
        raise


def sweep_script(
    sweep_file: Path, sweep_folder: Path, num_shards: int, sbatch_options: Sequence[str], *, force: bool
) -> str:
    """Return a SLURM script of points in shards and the merging of their results; ConfigError if SLURM would object.

    Args:
        sweep_file: The sweep file.
        sweep_folder: The folder of the sweep.
        num_shards: The number of tasks of the SLURM array.
        sbatch_options: The values of --sbatch.
        force: Whether `nadi run` gets --force.
    """
    sweep = ["sweep", str(sweep_file.absolute())]
    merge = [*sweep, "--merge"]
    return array_script(
        [*sweep, *(["--force"] if force else [])],
        num_shards,
        sweep_folder.absolute(),
        merge,
        more_options=sbatch_options,
    )


FILE, PAGE = "sweep.parquet", "sweep.html"
_MACHINE_DEPENDENT = {"wall_s", "peak_rss_bytes"}


def finish(
    sweep: SweepDefinition, sweep_folder: Path, outcomes: Sequence[PointOutcome], figures_folder: Path | None = None
) -> "pa.Table":
    """Write sweep.parquet and sweep.html into the sweep's folder, and return the table; else raise OutputError.

    Args:
        sweep: The points of the sweep file.
        sweep_folder: The folder of the sweep.
        outcomes: The outcome of each point, in the order of the sweep file.
        figures_folder: The folder for the charts of the page; None means that they are not written.
    """
    import pyarrow.parquet as pq

    from nadi.reports.figures import write_figures
    from nadi.reports.pages import write_page

    result = results_table(sweep, sweep_folder, outcomes)
    forget_failures(sweep, sweep_folder, outcomes)
    with inputs.refusing(sweep_folder, "a folder to write the table to", OutputError):
        sweep_folder.mkdir(parents=True, exist_ok=True)
        with inputs.whole_file(sweep_folder / FILE) as file:
            pq.write_table(result, file)
    made = points_page(result, f"Sweep {sweep.path.stem}", sweep_folder, ranking_metric(result, sweep.rank))
    finished = (Run(folder_of(sweep_folder, each)) for each in sweep.points if is_finished(sweep_folder, each))
    made = made.with_error_bars(bar for run in finished for bar in run.summary.get("error_bars", ()))
    write_page(sweep_folder / PAGE, made)
    if figures_folder:
        write_figures(figures_folder, made)
    return result


def results_table(sweep: SweepDefinition, sweep_folder: Path, outcomes: Sequence[PointOutcome]) -> "pa.Table":
    """Return a table with a row for each point, in the order of the sweep file.

    Columns: `point`, its index; a column for each key, as TOML text unless all values are numbers; `run`, its results
    folder relative to the sweep's; `error`, null if the point is finished; then the metrics of
    `nadi.insight.metrics.METRICS` that any point has, null for points without. Metrics that depend on the machine
    (`wall_s`, `peak_rss_bytes`) come last.

    Args:
        sweep: The points of the sweep file.
        sweep_folder: The folder of the sweep.
        outcomes: The outcome of each point, in the order of the sweep file.
    """
    import pyarrow as pa

    error = {outcome.point: outcome.error for outcome in outcomes}
    points = sweep.points
    metrics_of_point = [
        metrics_of(Run(folder_of(sweep_folder, each))) if is_finished(sweep_folder, each) else {} for each in points
    ]
    columns: dict[str, Any] = {"point": arrow_numbers(np.arange(len(points), dtype=np.int32))}
    for key in sweep.keys:
        columns[key] = _column([point.values.get(key) for point in points])
    columns["run"] = arrow_texts(
        f"{RUNS}/{point.name}" if own else None for point, own in zip(points, metrics_of_point, strict=True)
    )
    # a finished folder counts even if this process did not run the point: an earlier sweep or another shard may have
    missing = [None if own else error.get(index) or "not run" for index, own in enumerate(metrics_of_point)]
    columns["error"] = arrow_texts(missing)
    for metric in sorted(METRICS, key=lambda metric: metric.name in _MACHINE_DEPENDENT):
        if any(metric.name in own for own in metrics_of_point):
            columns[metric.name] = _numbers([own.get(metric.name) for own in metrics_of_point], np.float64)
    result = pa.table(columns)
    metadata = {"version": __version__, "keys": list(sweep.keys), "sweep": str(sweep.path)}
    return result.replace_schema_metadata({"nadi": json.dumps(metadata)})


def _column(values: Sequence[Value | None]) -> "pa.Array":
    """Return a column of a key's values: numbers as numbers, texts as they are, other values as TOML."""
    given = [value for value in values if value is not None]
    # bool is a subclass of int in Python; true and false stay TOML text
    if all(isinstance(value, int) and not isinstance(value, bool) for value in given):
        return _numbers(values, np.int64)
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given):
        return _numbers(values, np.float64)
    return arrow_texts(value if value is None or isinstance(value, str) else toml(value) for value in values)


def _numbers(values: Sequence[Value | None], dtype: DTypeLike) -> "pa.Array":
    """Return a column of numbers; None = null."""
    unknown = np.array([value is None for value in values])
    return arrow_numbers(np.array([value or 0 for value in values], dtype), unknown)
