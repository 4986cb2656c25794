"""Tables of measured times: CSV or Parquet with a row for each operator, as `scripts/profile_gpu.py` writes them.

Columns: gpu, operator, shape, dtype, time_ps, source, date; others are not read. Lines that begin with # say more. A
name without a suffix is a table of this library, in the folder beside this file.

A shape that was measured has its measured time. Another one of the same kind and data type has what the roofline
(`workload.compute.roofline`) says of it, times what measurement and roofline differ by at the shapes around it: the
mean of the logarithms of these factors at the nearest shapes, weighted by the inverse square of their distance, which
is that of the logarithms of the entries. Entries that are no sizes (a head's dimensions, causal or not, reads and
writes) must be the same. Nothing is extrapolated: each entry must lie between the least and the greatest that were
measured, and the nearest shape must be within a factor of 4 in all (2 in the logarithms to base 2).
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
_SAME = {"head_dim", "value_dim", "causal", "reads", "writes", "bytes", "top_k"}
"""Entries of shapes that are no sizes."""
_FARTHEST = 2.0
_NEIGHBOURS = 4

Roofline = Callable[[Operator], float]


class Measurement(NamedTuple):
    """One row.

    Attributes:
        gpu: its name.
        operator: what was measured.
        time_ps: how long it took.
        source: who measured it, or with what.
        date: when.
    """

    gpu: str
    operator: Operator
    time_ps: int
    source: str = ""
    date: str = ""


class MeasuredTimes:
    """What was measured on one GPU; of several rows of one operator the last one counts."""

    def __init__(self, gpu: str, rows: Iterable[Measurement]) -> None:
        """Take the rows of one GPU.

        Args:
            gpu: its name; rows of others are left out.
            rows: of tables, in their order.
        """
        self.gpu = gpu
        self.exact: dict[Operator, int] = {row.operator: row.time_ps for row in rows if row.gpu == gpu}
        self._families: dict[tuple[object, ...], list[tuple[tuple[float, ...], Operator]]] = defaultdict(list)
        for operator in self.exact:
            if min(operator.shape) > 0:
                self._families[_family(operator)].append((_place(operator), operator))

    def __len__(self) -> int:
        return len(self.exact)

    def time_ps(self, operator: Operator, roofline_ps: Roofline) -> float | None:
        """Picoseconds as measured, or between shapes that were; None where the table says nothing.

        Args:
            operator: any.
            roofline_ps: the roofline of this table's GPU.
        """
        if operator in self.exact:
            return float(self.exact[operator])
        near = self._near(operator)
        if not near:
            return None
        weights = [1.0 / distance**2 for distance, _ in near]
        logs = [math.log(max(self.exact[found], 1) / max(roofline_ps(found), 1.0)) for _, found in near]
        factor = math.exp(sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights))
        return roofline_ps(operator) * factor

    def _near(self, operator: Operator) -> list[tuple[float, Operator]]:
        """The nearest measured shapes of its family and how far they are; none if it is beyond their bounds."""
        family = self._families.get(_family(operator)) if min(operator.shape) > 0 else None
        if not family:
            return []
        place = _place(operator)
        for axis, value in enumerate(place):
            values = [found[axis] for found, _ in family]
            if not min(values) <= value <= max(values):
                return []
        near = sorted((math.dist(place, found), str(other), other) for found, other in family)[:_NEIGHBOURS]
        return [(distance, other) for distance, _, other in near] if near[0][0] <= _FARTHEST else []


def _family(operator: Operator) -> tuple[object, ...]:
    """What must be the same for shapes to be compared."""
    names = KINDS[operator.kind].shape
    same = [entry for name, entry in zip(names, operator.shape, strict=True) if name in _SAME]
    return (operator.kind, operator.dtype, *same)


def _place(operator: Operator) -> tuple[float, ...]:
    """Logarithms to base 2 of the sizes."""
    names = KINDS[operator.kind].shape
    return tuple(math.log2(entry) for name, entry in zip(names, operator.shape, strict=True) if name not in _SAME)


def table_names() -> tuple[str, ...]:
    """Tables of this library."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.csv")))


def read_tables(tables: Sequence[str | Path]) -> list[Measurement]:
    """The rows of tables, by their names in this library or their paths.

    Raises:
        WorkloadError: a table is not there or cannot be read, or a row is wrong.
    """
    return [row for table in tables for row in read_table(table)]


def read_table(table: str | Path) -> list[Measurement]:
    """The rows of one table.

    Raises:
        WorkloadError: as `read_tables`.
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
    """Write rows as CSV, in place of what was there.

    Raises:
        OSError: it cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        shape = "x".join(map(str, row.operator.shape))
        writer.writerow([row.gpu, row.operator.kind, shape, row.operator.dtype, row.time_ps, row.source, row.date])
    inputs.write_whole(path, text.getvalue())


def _csv_rows(path: Path) -> list[tuple[int, Mapping[str, object]]]:
    lines = inputs.read_text(path).splitlines()
    kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    rows = [next(csv.reader([line])) for _, line in kept]
    columns = rows[0] if rows else []
    _check_columns(path, columns)
    for (number, _), row in zip(kept[1:], rows[1:], strict=True):
        if len(row) != len(columns):
            raise WorkloadError(
                f"{path}: row {number}: {len(row)} fields; expected {len(columns)}, as the heading has (is it cut off?)"
            )
    return [(number, dict(zip(columns, row, strict=True))) for (number, _), row in zip(kept[1:], rows[1:], strict=True)]


def _parquet_rows(path: Path) -> list[tuple[int, Mapping[str, object]]]:
    import pyarrow as pa  # noqa: PLC0415 - half a second, which only who has such a table pays
    import pyarrow.parquet as pq  # noqa: PLC0415 - the same

    try:
        table = pq.read_table(pa.BufferReader(inputs.read_bytes(path)))
    except pa.ArrowException as error:
        raise WorkloadError(f"{path}: no Parquet: {str(error).splitlines()[0]}; expected a table") from None
    _check_columns(path, table.column_names)
    return list(enumerate(table.to_pylist(), 1))


def _check_columns(path: Path, found: Sequence[str]) -> None:
    missing = [column for column in _REQUIRED if column not in found]
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
