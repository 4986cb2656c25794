"""Points of a sweep: the combinations of values of run-file keys that a sweep file describes.

A sweep file is TOML. `run` names the run file, relative to the sweep file's folder. `[values]` lists values by key, and
every combination is a point (method "grid"); `[[points]]` lists the points themselves ("list"); `[ranges]` gives two
bounds by key, between which a Latin hypercube draws (McKay, Beckman, Conover 1979, by scipy.stats.qmc): each key's
range is divided into as many strata as there are points, and each stratum is used once. Points that differ only in
seeds are repetitions of one setting.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from nadi import __version__
from nadi.configuration.input_files import Known, files_read
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.inputs.arrays import arrow_numbers, arrow_texts, numpy_column
from nadi.inputs.documents import checked, read_toml
from nadi.inputs.units import format_bytes, format_rate, format_time, parse_bytes, parse_rate, parse_time
from nadi.insight.metrics import METRICS, Metric, confidence_interval

MAX_POINTS = 100_000
_FOLDER_NAME_LENGTH = 20  # number of hexadecimal digits of a point's folder name: 80 bits of its hash
Value = str | int | float | bool | list[Any] | dict[str, Any]


class Range(BaseModel):
    """The inclusive bounds of a key from which a Latin hypercube draws."""

    model_config = ConfigDict(extra="forbid")

    least: int | float | str  # lower bound: a number, or a text with a unit such as "1KiB", "100Gbps", "1us"
    most: int | float | str  # upper bound, in the same form
    scale: Literal["linear", "log"] = "linear"  # whether the distribution is uniform in the value or in its logarithm
    whole: bool = False  # whether to round to whole numbers; texts with a unit are always rounded to the smallest unit


class SweepFile(BaseModel):
    """The schema of a sweep file."""

    model_config = ConfigDict(extra="forbid")

    run: str | None = Field(None, description="run file, relative to this file's folder; None = no run file")
    method: Literal["grid", "list", "latin-hypercube"] = Field("grid", description="method that generates the points")
    values: dict[str, Annotated[list[Value], Field(min_length=1)]] = Field(
        default_factory=dict, description="values by key of a grid; combined with every listed or drawn point"
    )
    points: list[dict[str, Value]] = Field(default_factory=list, description="values by key of each point of a list")
    ranges: dict[str, Range] = Field(default_factory=dict, description="bounds by key of a Latin hypercube")
    rank: str = Field("", description="figure that ranks the points, such as p99_completion_ps; default: step time")
    samples: int = Field(0, ge=0, le=MAX_POINTS, description="number of points of a Latin hypercube")
    seed: int = Field(1, ge=0, description="seed of a Latin hypercube")


class Point(NamedTuple):
    """One run of a sweep."""

    values: Mapping[str, Value]  # values by key of the run file
    config: RunConfig  # settled configuration of the run
    # name of the run's folder: a hash of the configuration, of the contents of its input files and of Nadi's version,
    # so that equal names mean equal runs
    name: str

    def overrides(self) -> list[str]:
        """Return the values in the form of --set options."""
        return [f"{key}={toml(value)}" for key, value in self.values.items()]


class SweepDefinition(NamedTuple):
    """A parsed sweep file."""

    path: Path  # path of the sweep file
    run_file: Path | None  # path of the run file; None = no run file
    keys: tuple[str, ...]  # keys whose values differ between points, in order
    points: list[Point]  # all points, in order
    rank: str = ""  # name of the metric that ranks the points; "" = default metric


def read_sweep(path: Path) -> SweepDefinition:
    """Read a sweep file and check the configuration of each of its points; a wrong one is an error of one line.

    Args:
        path: The sweep file.
    """
    file = checked(SweepFile, read_toml(path, "a sweep file", ConfigError), path, ConfigError)
    metric_names = [metric.name for metric in METRICS]
    if file.rank and file.rank not in metric_names:
        raise ConfigError(f"{path}: rank: found {file.rank!r}; expected one of {', '.join(metric_names)}")
    run_file = path.parent / file.run if file.run else None
    combinations = _combinations(path, file)
    if len(combinations) > MAX_POINTS:
        raise ConfigError(f"{path}: {len(combinations):,} points; expected at most {MAX_POINTS:,}")
    files: Known = {}
    points: list[Point] = []
    number_of_name: dict[str, int] = {}
    for number, values in enumerate(combinations):
        try:
            made = point(run_file, values, files)
        except ValueError as error:
            assignments = ", ".join(f"{key} = {value}" for key, value in values.items())
            raise ConfigError(f"{path}: point {number} ({assignments}): {error}") from None
        if made.name in number_of_name:
            earlier = number_of_name[made.name]
            raise ConfigError(f"{path}: points {earlier} and {number} are the same run; expected each once")
        number_of_name[made.name] = number
        points.append(made)
    keys = tuple(dict.fromkeys(key for values in combinations for key in values))
    return SweepDefinition(path, run_file, keys, points, file.rank)


def point(run_file: Path | None, values: Mapping[str, Value], files: Known) -> Point:
    """Return the point of a run file with these values; ConfigError if the configuration is wrong.

    Args:
        run_file: The run file with the other keys; None = `values` has all keys.
        values: Values by key of the run file.
        files: Files whose hashes are known, to which those of the point are added.
    """
    config = load_config(run_file, [f"{key}={toml(value)}" for key, value in values.items()])
    return Point(values, config, _name(config, files))


def toml(value: Value) -> str:
    """Return a value as one line of TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(inner) for inner in value) + "]"
    return json.dumps(value)


def _combinations(sweep_file: Path, parsed_sweep: SweepFile) -> list[dict[str, Value]]:
    """Return the values by key of each point of a sweep file; the path is for messages."""
    required = {"grid": "values", "list": "points", "latin-hypercube": "ranges"}[parsed_sweep.method]
    if not getattr(parsed_sweep, required):
        raise ConfigError(f'{sweep_file}: {required}: missing; expected it with method = "{parsed_sweep.method}"')
    for other in {"points", "ranges"} - {required}:
        if getattr(parsed_sweep, other):
            raise ConfigError(
                f'{sweep_file}: {other}: found beside method = "{parsed_sweep.method}"; expected {required}'
            )
    grid = [
        dict(zip(parsed_sweep.values, chosen, strict=True))
        for chosen in itertools.product(*parsed_sweep.values.values())
    ]
    if parsed_sweep.method == "grid":
        return grid
    points = parsed_sweep.points if parsed_sweep.method == "list" else _drawn(sweep_file, parsed_sweep)
    return [{**common, **point} for common in grid for point in points]


def _drawn(sweep_file: Path, parsed_sweep: SweepFile) -> list[dict[str, Value]]:
    """Return the values by key of the points of a Latin hypercube; the path is for messages."""
    from scipy.stats import qmc

    if parsed_sweep.samples < 1:
        raise ConfigError(
            f'{sweep_file}: samples: found {parsed_sweep.samples}; expected 1 or more with method = "latin-hypercube"'
        )
    samples = qmc.LatinHypercube(d=len(parsed_sweep.ranges), rng=parsed_sweep.seed).random(parsed_sweep.samples)
    return [
        {
            key: _value_at(sweep_file, key, bounds, float(position))
            for (key, bounds), position in zip(parsed_sweep.ranges.items(), row, strict=True)
        }
        for row in samples
    ]


_QUANTITIES = ((parse_bytes, format_bytes), (parse_rate, format_rate), (parse_time, format_time))


def _value_at(sweep_file: Path, key: str, value_range: Range, position: float) -> Value:
    """Return the value of a key's range at a position from 0 to 1."""
    read, write = _quantity(sweep_file, key, value_range)
    low, high = (float(read(end)) for end in (value_range.least, value_range.most))
    if not low <= high or (value_range.scale == "log" and low <= 0):
        raise ConfigError(
            f"{sweep_file}: ranges.{key}: found {value_range.least} to {value_range.most}; expected rising bounds"
            + (" above 0" if value_range.scale == "log" else "")
        )
    value = low * (high / low) ** position if value_range.scale == "log" else low + (high - low) * position
    if isinstance(value_range.least, str):
        return write(round(value))
    return round(value) if value_range.whole else value


def _quantity(sweep_file: Path, key: str, value_range: Range) -> tuple[Any, Any]:
    """Return the parser of both bounds of a key's range and the formatter of a value."""
    if not isinstance(value_range.least, str) and not isinstance(value_range.most, str):
        return float, float
    for read, write in _QUANTITIES:
        try:
            read(value_range.least), read(value_range.most)
        except (ValueError, TypeError, AttributeError):
            continue
        return read, write
    found = f"found {value_range.least!r} to {value_range.most!r}"
    raise ConfigError(f"{sweep_file}: ranges.{key}: {found}; expected two numbers, sizes, rates or times")


def _name(config: RunConfig, known_files: Known) -> str:
    """Return a hash of everything that determines the run; known_files: files whose hashes are cached."""
    files = [entry.document() for entry in files_read(config, known_files)]
    determinants = {"version": __version__, "config": config.settled(), "files": files}
    if tables := config.vendor_tables():
        determinants["tables"] = tables
    text = json.dumps(determinants, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_FOLDER_NAME_LENGTH]


_OTHER_COLUMNS = ("point", "run", "error", "seeds", "runs", "low", "high")  # neither keys nor metrics
_SEED = re.compile(r"[:,]seed=[0-9]+")  # in values such as "poisson:1ms,seed=2"


def keys_of(table: pa.Table) -> list[str]:
    """Return the names of the columns that are keys of the run file.

    Args:
        table: The table with a row for each setting.
    """
    metrics = {metric.name for metric in METRICS}
    return [name for name in table.column_names if name not in metrics and name not in _OTHER_COLUMNS]


def name_of(table: pa.Table, keys: Sequence[str], row: int) -> str:
    """Return the values of the setting in a row as text: "rate = 100Gbps, mtu = 4KiB".

    The last part of a key names it, unless several end in the same one: charts have little room for names.

    Args:
        table: The table with a row for each setting.
        keys: The keys whose values make up the text.
        row: The number of the row.
    """
    ends = [key.rpartition(".")[2] for key in keys]
    names = [end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)]
    return ", ".join(f"{name} = {table[key][row].as_py()}" for key, name in zip(keys, names, strict=True))


def settings_of(points: pa.Table, ranking_metric: Metric | None) -> pa.Table:
    """Return a table with a row per setting of a sweep's table of points, in the order of its first point.

    Columns: the keys that are no seeds, with values that name none; `seeds`, the number of finished points; `runs`,
    lists of their folders; `error`, null if any point is finished; the means of the metrics over the finished points,
    NaN where no point has the metric; and `low` and `high`, the 95 % confidence interval of the metric that ranks, NaN
    with a single point.

    Args:
        points: The table with a row for each point.
        ranking_metric: The metric that sorts settings; None if no point is finished.
    """
    columns = {key: [_without_seed(value) for value in points[key].to_pylist()] for key in keys_of(points)}
    columns = {key: values for key, values in columns.items() if key.rpartition(".")[2] != "seed"}
    points_of: dict[tuple[object, ...], list[int]] = {}
    for row in range(len(points)):
        points_of.setdefault(tuple(values[row] for values in columns.values()), []).append(row)
    errors, runs = points["error"].to_pylist(), points["run"].to_pylist()
    finished = [[row for row in rows if errors[row] is None] for rows in points_of.values()]
    first = np.array([rows[0] for rows in points_of.values()])
    found: dict[str, pa.Array] = {}
    for key, column in columns.items():
        is_text = pa.types.is_string(points[key].type)  # without seeds; else as it is
        found[key] = arrow_texts(column[row] for row in first) if is_text else points[key].take(arrow_numbers(first))
    counts = np.array([len(rows) for rows in finished])
    found["seeds"] = arrow_numbers(counts)
    ends = arrow_numbers(np.append(0, counts.cumsum()).astype(np.int32))
    # a list per setting: its runs are those from ends[i] to ends[i + 1] of one column
    found["runs"] = pa.ListArray.from_arrays(ends, arrow_texts(runs[row] for rows in finished for row in rows))
    found["error"] = arrow_texts(None if own else errors[row] for own, row in zip(finished, first, strict=True))
    for metric in METRICS:
        if metric.name in points.column_names:
            values = numpy_column(points[metric.name])
            known = [values[rows][~np.isnan(values[rows])] for rows in finished]
            found[metric.name] = arrow_numbers(np.array([own.mean() if len(own) else np.nan for own in known]))
            if metric == ranking_metric:
                intervals = [confidence_interval(own, metric.minimum) or (np.nan, np.nan) for own in known]
                found["low"], found["high"] = map(arrow_numbers, np.array(intervals).reshape(-1, 2).T)
    return pa.table(found)


def by_level_and_seed(points: pa.Table, key: str, metric: Metric) -> dict[object, list[float]]:
    """Return by value of a key the means of a metric over the finished points of each seed."""
    of_seed = _seeds(points)
    found: dict[object, dict[object, list[float]]] = {}
    for row, (level, value) in enumerate(zip(points[key].to_pylist(), points[metric.name].to_pylist(), strict=True)):
        if value is not None:
            found.setdefault(_without_seed(level), {}).setdefault(of_seed[row], []).append(value)
    return {level: [float(np.mean(own)) for own in by_seed.values()] for level, by_seed in found.items()}


def _seeds(points: pa.Table) -> list[tuple[object, ...]]:
    """Return the seeds of each point, as keys or parts of their values."""
    columns = []
    for key in keys_of(points):
        values = points[key].to_pylist()
        is_seed = key.rpartition(".")[2] == "seed"
        columns.append(values if is_seed else [tuple(_SEED.findall(str(value))) for value in values])
    return list(zip(*columns, strict=True))


def _without_seed(value: Any) -> Any:  # noqa: ANN401 - a value of any key
    return _SEED.sub("", value) if isinstance(value, str) else value
