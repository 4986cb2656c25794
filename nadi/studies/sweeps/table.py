"""One Parquet table of all points of a sweep: their values, how they ended, and their figures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nadi import __version__
from nadi.insight.runs import Run
from nadi.insight.runs.figures import FIGURES, figures
from nadi.studies.sweeps.points import SweepDefinition, Value, toml
from nadi.studies.sweeps.running import RUNS, PointOutcome, folder_of, is_finished

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "sweep.parquet"
_COSTS_OF_THE_RUN = {"wall_s", "peak_rss_bytes"}


def table(sweep: SweepDefinition, out: Path, outcomes: Sequence[PointOutcome]) -> "pa.Table":
    """A row for each point, in the order of the sweep file.

    Columns: `point`, its place; a column for each key, text (TOML) where values are not all numbers; `run`, the folder
    of its results below the sweep's; `error`, null where it is finished; then those of
    `nadi.insight.runs.figures.FIGURES` that
    any point has, null where it has none. What depends on the machine (`wall_s`, `peak_rss_bytes`) comes last.
    """
    import pyarrow as pa

    error = {outcome.point: outcome.error for outcome in outcomes}
    points = sweep.points
    done = [figures(Run(folder_of(out, point))) if is_finished(out, point) else {} for point in points]
    columns: dict[str, Any] = {"point": pa.array(range(len(points)), pa.int32())}
    for key in sweep.keys:
        columns[key] = _column([point.values.get(key) for point in points])
    columns["run"] = [f"{RUNS}/{point.name}" if has else None for point, has in zip(points, done, strict=True)]
    missing = [None if has else error.get(at) or "not run" for at, has in enumerate(done)]
    columns["error"] = pa.array(missing, pa.string())
    for figure in sorted(FIGURES, key=lambda figure: figure.name in _COSTS_OF_THE_RUN):
        if any(figure.name in has for has in done):
            columns[figure.name] = pa.array([has.get(figure.name) for has in done], pa.float64())
    made = pa.table(columns)
    about = {"version": __version__, "keys": list(sweep.keys), "sweep": str(sweep.path)}
    return made.replace_schema_metadata({"nadi": json.dumps(about)})


def _column(values: Sequence[Value | None]) -> "pa.Array":
    """Numbers as numbers, texts as they are, all else as TOML."""
    import pyarrow as pa

    given = [value for value in values if value is not None]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in given):
        return pa.array(values, pa.int64())
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())  # type: ignore[arg-type]
    return pa.array(
        [value if value is None or isinstance(value, str) else toml(value) for value in values], pa.string()
    )
