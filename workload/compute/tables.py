"""Tables of measured operator times: CSV or Parquet with a row per operator, as `scripts/profile_gpu.py` writes them.

Columns: gpu, operator, shape, dtype, time_ps, source, date; others are ignored. Lines that begin with # are comments. A
name without a suffix is a table of this library, in the folder beside this file. `workload.compute.measured_times`
interpolates between measured shapes.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.inputs.limits import LONGEST_PS
from nadi.workload.compute.operators import Operator, parse_operators
from nadi.workload.errors import WorkloadError

_FOLDER = Path(__file__).parent / "tables"
COLUMNS = ("gpu", "operator", "shape", "dtype", "time_ps", "source", "date")
_REQUIRED = COLUMNS[:5]


class Measurement(NamedTuple):
    """One row of a table."""

    gpu: str  # Name of the GPU
    operator: Operator  # Operator that was measured
    time_ps: int  # Measured time in ps
    source: str = ""  # Tool or person that measured it
    date: str = ""  # Date of the measurement


def table_names() -> tuple[str, ...]:
    """Return the names of the library's tables."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.csv")))


def read_tables(tables: Sequence[str | Path]) -> list[Measurement]:
    """Read the rows of tables, by name in the library or by path; WorkloadError: one is missing or wrong."""
    return [row for table in tables for row in read_table(table)]


def read_table(table: str | Path) -> list[Measurement]:
    """Read the rows of a table, by name in the library or by path; WorkloadError: it is missing or wrong."""
    path = _FOLDER / f"{table}.csv" if str(table) in table_names() else Path(table)
    if path.suffix not in {".csv", ".parquet"}:
        known = ", ".join(table_names()) or "none"
        raise WorkloadError(f"table {str(table)!r}: not known; expected one of {known}, or a path NAME.csv or .parquet")
    with inputs.refusing(path, "a table of measured times", WorkloadError, ValueError):
        rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
    return [_measurement(path, number, row) for number, row in rows]


def write_table(path: Path, rows: Iterable[Measurement]) -> None:
    """Write rows as CSV, replacing the file. Raises OSError: the file cannot be written."""
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
        table = pq.ParquetFile(pa.BufferReader(inputs.read_bytes(path))).read()
    except pa.ArrowException as error:
        raise WorkloadError(f"{path}: no Parquet: {str(error).splitlines()[0]}; expected a table") from None
    _check_columns(path, table.column_names)
    return list(enumerate(table.to_pylist(), 1))


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Check that a table, whose path errors name, has the required columns."""
    missing = [column for column in _REQUIRED if column not in columns]
    if missing:
        raise WorkloadError(f"{path}: no column {missing[0]}; expected {', '.join(COLUMNS)}")


def _measurement(path: Path, row_number: int, row: Mapping[str, object]) -> Measurement:
    """Return the measurement of a row of a table, by column; WorkloadError if it is wrong."""
    text = {column: str(row.get(column) or "").strip() for column in COLUMNS}
    try:
        operator = parse_operators(f"{text['operator']} {text['shape']} {text['dtype']}")[0]
    except WorkloadError as error:
        raise WorkloadError(f"{path}: row {row_number}: {error}") from None
    if not text["time_ps"].isdecimal() or len(text["time_ps"]) > 18 or not 0 < int(text["time_ps"]) <= LONGEST_PS:
        raise WorkloadError(
            f"{path}: row {row_number}: time_ps {text['time_ps']!r}; expected whole picoseconds above 0"
        )
    if not text["gpu"]:
        raise WorkloadError(f"{path}: row {row_number}: no gpu; expected its name, as h100")
    return Measurement(text["gpu"], operator, int(text["time_ps"]), text["source"], text["date"])
