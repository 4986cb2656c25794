"""Tables of measured operator times: CSV or Parquet with a row per operator, as `scripts/profile_gpu.py` writes them.

Columns: gpu, operator, shape, dtype, time_ps, source, date; others are ignored. Lines that begin with # are comments. A
name without a suffix is a table of this library, in the folder beside this file.

A measured shape has its measured time. Other shapes of the same kind and data type have the time of the roofline
(`workload.compute.roofline`) times a correction factor: the geometric mean of measurement over roofline at the nearest
measured shapes, weighted by the inverse square of their distance between the logarithms of the entries. Entries that
are not sizes (head dimensions, causal or not, reads and writes) must be equal. There is no extrapolation: each entry
must be between the measured minimum and maximum, and the nearest shape must be within a factor of 4 (2 in logarithms to
base 2).
"""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import inputs
from topologies.bounds import LONGEST_PS
from workload.compute.operators import KINDS, Operator, parse_operators
from workload.errors import WorkloadError

_FOLDER = Path(__file__).parent / "tables"
COLUMNS = ("gpu", "operator", "shape", "dtype", "time_ps", "source", "date")
_REQUIRED = COLUMNS[:5]
_NOT_SIZES = {"head_dim", "value_dim", "causal", "reads", "writes", "bytes", "top_k"}
"""Entries of shapes that are not sizes and must be equal."""
_MAX_DISTANCE = 2.0
"""Maximum distance of the nearest measured shape, in logarithms to base 2."""
_NEIGHBOURS = 4
"""Number of measured shapes from which others are interpolated."""

Roofline = Callable[[Operator], float]


class Measurement(NamedTuple):
    """One row of a table.

    Attributes:
        gpu: Name of the GPU.
        operator: Operator that was measured.
        time_ps: Measured time in ps.
        source: Tool or person that measured it.
        date: Date of the measurement.
    """

    gpu: str
    operator: Operator
    time_ps: int
    source: str = ""
    date: str = ""


class MeasuredTimes:
    """Measured times on one GPU; of several rows of one operator, the last one counts."""

    def __init__(self, gpu: str, rows: Iterable[Measurement]) -> None:
        """Index the rows of one GPU.

        Args:
            gpu: Name of the GPU; rows of other GPUs are ignored.
            rows: Rows of tables, in their order.
        """
        self.gpu = gpu
        self.exact: dict[Operator, int] = {row.operator: row.time_ps for row in rows if row.gpu == gpu}
        self._families: dict[tuple[object, ...], list[tuple[tuple[float, ...], Operator]]] = defaultdict(list)
        for operator in self.exact:
            if min(operator.shape) > 0:
                self._families[_family(operator)].append((_position(operator), operator))

    def __len__(self) -> int:
        return len(self.exact)

    def time_ps(self, operator: Operator, roofline_ps: Roofline) -> float | None:
        """Return the measured or interpolated time in ps; None outside the measured range.

        Args:
            operator: Operator to look up.
            roofline_ps: Roofline of this table's GPU.
        """
        if operator in self.exact:
            return float(self.exact[operator])
        neighbours = self._near(operator)
        if not neighbours:
            return None
        weights = [1.0 / distance**2 for distance, _ in neighbours]
        logs = [math.log(max(self.exact[known], 1) / max(roofline_ps(known), 1.0)) for _, known in neighbours]
        factor = math.exp(sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights))
        return roofline_ps(operator) * factor

    def _near(self, operator: Operator) -> list[tuple[float, Operator]]:
        """Return the nearest measured shapes with their distances; none outside the measured range."""
        family = self._families.get(_family(operator)) if min(operator.shape) > 0 else None
        if not family:
            return []
        position = _position(operator)
        for axis, value in enumerate(position):
            values = [other_position[axis] for other_position, _ in family]
            if not min(values) <= value <= max(values):
                return []
        by_distance = sorted((math.dist(position, sizes), str(other), other) for sizes, other in family)
        if by_distance[0][0] > _MAX_DISTANCE:
            return []
        return [(distance, other) for distance, _, other in by_distance[:_NEIGHBOURS]]


def _family(operator: Operator) -> tuple[object, ...]:
    """Return the properties that two operators must share for interpolation."""
    names = KINDS[operator.kind].shape
    fixed = [entry for name, entry in zip(names, operator.shape, strict=True) if name in _NOT_SIZES]
    return (operator.kind, operator.dtype, *fixed)


def _position(operator: Operator) -> tuple[float, ...]:
    """Return the logarithms to base 2 of the sizes."""
    names = KINDS[operator.kind].shape
    return tuple(math.log2(entry) for name, entry in zip(names, operator.shape, strict=True) if name not in _NOT_SIZES)


def table_names() -> tuple[str, ...]:
    """Return the names of the library's tables."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.csv")))


def read_tables(tables: Sequence[str | Path]) -> list[Measurement]:
    """Read the rows of several tables, by name in the library or by path.

    Raises:
        WorkloadError: A table does not exist or cannot be read, or a row is wrong.
    """
    return [row for table in tables for row in read_table(table)]


def read_table(table: str | Path) -> list[Measurement]:
    """Read the rows of one table.

    Raises:
        WorkloadError: The table does not exist or cannot be read, or a row is wrong.
    """
    path = _FOLDER / f"{table}.csv" if str(table) in table_names() else Path(table)
    if path.suffix not in {".csv", ".parquet"}:
        known = ", ".join(table_names()) or "none"
        raise WorkloadError(f"table {str(table)!r}: not known; expected one of {known}, or a path NAME.csv or .parquet")
    try:
        rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
    except WorkloadError:
        raise
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}; expected a table of measured times") from None
    except ValueError as error:
        raise WorkloadError(f"{path}: {error}; expected a table of measured times") from None
    return [_measurement(path, number, row) for number, row in rows]


def write_table(path: Path, rows: Iterable[Measurement]) -> None:
    """Write rows as CSV, replacing the file.

    Raises:
        OSError: The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        shape = "x".join(map(str, row.operator.shape))
        writer.writerow([row.gpu, row.operator.kind, shape, row.operator.dtype, row.time_ps, row.source, row.date])
    inputs.write_whole(path, text.getvalue())


def _csv_rows(path: Path) -> list[tuple[int, Mapping[str, object]]]:
    """Return line number and cells of each row of a CSV file."""
    lines = inputs.read_text(path).splitlines()
    kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    rows = [next(csv.reader([line])) for _, line in kept]
    columns = rows[0] if rows else []
    _check_columns(path, columns)
    for (number, _), row in zip(kept[1:], rows[1:], strict=True):
        if len(row) != len(columns):
            raise WorkloadError(
                f"{path}: row {number}: {len(row)} fields; expected {len(columns)}, as in the header (truncated file?)"
            )
    return [(number, dict(zip(columns, row, strict=True))) for (number, _), row in zip(kept[1:], rows[1:], strict=True)]


def _parquet_rows(path: Path) -> list[tuple[int, Mapping[str, object]]]:
    """Return number and cells of each row of a Parquet file."""
    import pyarrow as pa  # noqa: PLC0415 - half a second, only for Parquet tables
    import pyarrow.parquet as pq  # noqa: PLC0415 - the same

    try:
        table = pq.read_table(pa.BufferReader(inputs.read_bytes(path)))
    except pa.ArrowException as error:
        raise WorkloadError(f"{path}: no Parquet: {str(error).splitlines()[0]}; expected a table") from None
    _check_columns(path, table.column_names)
    return list(enumerate(table.to_pylist(), 1))


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    missing = [column for column in _REQUIRED if column not in columns]
    if missing:
        raise WorkloadError(f"{path}: no column {missing[0]}; expected {', '.join(COLUMNS)}")


def _measurement(path: Path, number: int, row: Mapping[str, object]) -> Measurement:
    text = {column: str(row.get(column) or "").strip() for column in COLUMNS}
    try:
        operator = parse_operators(f"{text['operator']} {text['shape']} {text['dtype']}")[0]
    except WorkloadError as error:
        raise WorkloadError(f"{path}: row {number}: {error}") from None
    if not text["time_ps"].isdecimal() or len(text["time_ps"]) > 18 or not 0 < int(text["time_ps"]) <= LONGEST_PS:
        raise WorkloadError(f"{path}: row {number}: time_ps {text['time_ps']!r}; expected whole picoseconds above 0")
    if not text["gpu"]:
        raise WorkloadError(f"{path}: row {number}: no gpu; expected its name, as h100")
    return Measurement(text["gpu"], operator, int(text["time_ps"]), text["source"], text["date"])
