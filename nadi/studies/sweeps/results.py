"""Result files of a sweep: a Parquet table with the values, outcome and figures of every point, and an HTML page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from nadi import __version__, inputs
from nadi.errors import OutputError
from nadi.inputs.arrow import arrow_numbers, arrow_texts
from nadi.insight.metrics import METRICS, metrics_of, ranking_metric
from nadi.insight.runs import Run
from nadi.studies.sweeps.points import SweepDefinition, Value, toml
from nadi.studies.sweeps.running import RUNS, PointOutcome, folder_of, forget_failures, is_finished

if TYPE_CHECKING:
    import pyarrow as pa

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
    from nadi.reports.pages.page import write_page
    from nadi.studies.sweeps.page import page

    result = table(sweep, sweep_folder, outcomes)
    forget_failures(sweep, sweep_folder, outcomes)
    with inputs.refusing(sweep_folder, "a folder to write the table to", OutputError):
        sweep_folder.mkdir(parents=True, exist_ok=True)
        with inputs.whole_file(sweep_folder / FILE) as file:
            pq.write_table(result, file)
    made = page(result, f"Sweep {sweep.path.stem}", sweep_folder, ranking_metric(result, sweep.rank))
    write_page(sweep_folder / PAGE, made)
    if figures_folder:
        write_figures(figures_folder, made)
    return result


def table(sweep: SweepDefinition, sweep_folder: Path, outcomes: Sequence[PointOutcome]) -> "pa.Table":
    """Return a table with a row for each point, in the order of the sweep file.

    Columns: `point`, its index; a column for each key, as TOML text unless all values are numbers; `run`, its results
    folder relative to the sweep's; `error`, null if the point is finished; then the figures of
    `nadi.insight.metrics.METRICS` that any point has, null for points without. Figures that depend on the machine
    (`wall_s`, `peak_rss_bytes`) come last.

    Args:
        sweep: The points of the sweep file.
        sweep_folder: The folder of the sweep.
        outcomes: The outcome of each point, in the order of the sweep file.
    """
    import pyarrow as pa

    error = {outcome.point: outcome.error for outcome in outcomes}
    points = sweep.points
    figures_of_point = [
        metrics_of(Run(folder_of(sweep_folder, each))) if is_finished(sweep_folder, each) else {} for each in points
    ]
    columns: dict[str, Any] = {"point": arrow_numbers(np.arange(len(points), dtype=np.int32))}
    for key in sweep.keys:
        columns[key] = _column([point.values.get(key) for point in points])
    columns["run"] = arrow_texts(
        f"{RUNS}/{point.name}" if own else None for point, own in zip(points, figures_of_point, strict=True)
    )
    # a finished folder counts even if this process did not run the point: an earlier sweep or another shard may have
    missing = [None if own else error.get(index) or "not run" for index, own in enumerate(figures_of_point)]
    columns["error"] = arrow_texts(missing)
    for figure in sorted(METRICS, key=lambda figure: figure.name in _MACHINE_DEPENDENT):
        if any(figure.name in own for own in figures_of_point):
            columns[figure.name] = _numbers([own.get(figure.name) for own in figures_of_point], np.float64)
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
