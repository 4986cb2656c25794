"""Settings of a sweep: points that differ only in seeds are repetitions of one setting."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nadi.inputs.arrow import arrow_numbers, arrow_texts, numpy_column
from nadi.insight.metrics import METRICS, Metric, confidence_interval

_OTHER_COLUMNS = ("point", "run", "error", "seeds", "runs", "low", "high")  # neither keys nor figures
_SEED = re.compile(r"[:,]seed=[0-9]+")  # in values such as "poisson:1ms,seed=2"


def keys_of(table: pa.Table) -> list[str]:
    """Return the names of the columns that are keys of the run file.

    Args:
        table: The table with a row for each setting.
    """
    figures = {figure.name for figure in METRICS}
    return [name for name in table.column_names if name not in figures and name not in _OTHER_COLUMNS]


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


def settings_of(points: pa.Table, ranking_figure: Metric | None) -> pa.Table:
    """Return a table with a row per setting of a sweep's table of points, in the order of its first point.

    Columns: the keys that are no seeds, with values that name none; `seeds`, the number of finished points; `runs`,
    lists of their folders; `error`, null if any point is finished; the means of the figures over the finished points,
    NaN where no point has the figure; and `low` and `high`, the 95 % confidence interval of the figure that ranks, NaN
    with a single point.

    Args:
        points: The table with a row for each point.
        ranking_figure: The figure that sorts settings; None if no point is finished.
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
    for figure in METRICS:
        if figure.name in points.column_names:
            values = numpy_column(points[figure.name])
            known = [values[rows][~np.isnan(values[rows])] for rows in finished]
            found[figure.name] = arrow_numbers(np.array([own.mean() if len(own) else np.nan for own in known]))
            if figure == ranking_figure:
                intervals = [confidence_interval(own, figure.minimum) or (np.nan, np.nan) for own in known]
                found["low"], found["high"] = map(arrow_numbers, np.array(intervals).reshape(-1, 2).T)
    return pa.table(found)


def by_level_and_seed(points: pa.Table, key: str, figure: Metric) -> dict[object, list[float]]:
    """Return by value of a key the means of a figure over the finished points of each seed."""
    of_seed = _seeds(points)
    found: dict[object, dict[object, list[float]]] = {}
    for row, (level, value) in enumerate(zip(points[key].to_pylist(), points[figure.name].to_pylist(), strict=True)):
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
