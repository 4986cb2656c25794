"""Reading of the results of an earlier run, whose files others may have changed since."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nadi.simulation.schemas import LARGEST_VALUE, Schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_WORD_BYTES = 8
_BLOCK_ROWS = 1 << 20


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json of a run; OSError, or ValueError of one line if the contents are not what a run writes.

    Args:
        folder: Folder of the run's results.
    """
    from nadi.inputs.documents import DocumentError, read_document
    from nadi.simulation.summary_schema import SUMMARY

    try:
        return dict(read_document(folder / "summary.json", SUMMARY))
    except DocumentError as error:
        raise ValueError(f"summary.json: {error}; expected what a run writes") from None


def read_table(
    folder: Path,
    schema: Schema,
    needed: Iterable[str],
    columns: Iterable[str] | None = None,
    summary: Mapping[str, Any] | None = None,
) -> "pa.Table | None":
    """Read a table of a folder of results and check it against its schema; None if the folder does not have it.

    `needed`: Names of columns without which the table is refused. `columns`: Names of the columns to read if the table
    has them; None = all. `summary`: Summary of the same run; the check compares rows and indices with its `npus`,
    `nodes` and `links`.

    Raises OSError, or ValueError if the file is no Parquet file, a column is missing or has another type, a value is
    out of range, or the file claims more rows than memory holds.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / schema.file
    if not path.is_file():
        return None
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            kept = names if columns is None else [name for name in names if name in set(columns)]
            _check_header(file, path, schema, needed, len(kept))
            table = file.read(columns=kept)
    except pa.ArrowException as error:
        raise ValueError(f"{path.name}: {error}") from None
    # tables with a row per NPU, node or link have a known length
    lines = (summary or {}).get(schema.rows)
    if lines is not None and table.num_rows != lines:
        raise ValueError(f"{path.name}: {table.num_rows:,} rows; expected one for each of {lines:,} {schema.rows}")
    _check_values(table, path.name, schema, summary or {})
    return table


def table_blocks(
    folder: Path, schema: Schema, needed: Sequence[str], summary: Mapping[str, Any] | None = None
) -> "Iterator[pa.RecordBatch]":
    """Yield columns of a table in blocks of a million rows; errors are those of read_table.

    Args:
        folder: Folder of the run's results.
        schema: Columns of the table.
        needed: Names of the columns to read.
        summary: Contents of the run's summary.json, with whose values they are checked; None = without it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / schema.file
    if not path.is_file():
        return
    try:
        with pq.ParquetFile(path) as file:
            # 0 columns: blocks need no memory for the whole table
            _check_header(file, path, schema, needed, 0)
            for block in file.iter_batches(_BLOCK_ROWS, columns=list(needed)):
                _check_values(block, path.name, schema, summary or {})
                yield block
    except pa.ArrowException as error:
        raise ValueError(f"{path.name}: {error}") from None


def _check_header(file: "pq.ParquetFile", path: Path, schema: Schema, needed: Iterable[str], num_columns: int) -> None:
    """Raise ValueError if the footer claims rows that memory cannot hold in so many columns, or other columns."""
    rows = file.metadata.num_rows
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # a damaged footer may claim any number of rows
    if rows * num_columns * _WORD_BYTES > memory_bytes:
        raise ValueError(f"{path.name}: {rows:,} rows of {num_columns} columns, more than this machine's memory holds")
    found = file.schema_arrow
    for name in needed:
        if found.get_field_index(name) < 0:
            raise ValueError(f"{path.name}: no column {name}; expected what a run writes")
    types = schema.arrow(found.names)
    for field in schema.fields:
        if field.name not in types.names:
            continue
        kind = found.field(field.name).type
        if kind != types.field(field.name).type:
            words = "text" if field.is_name else field.type
            raise ValueError(f"{path.name}: column {field.name} is {kind}; expected {words}")


def _check_values(
    table: "pa.Table | pa.RecordBatch", file_name: str, schema: Schema, summary: Mapping[str, Any]
) -> None:
    """Raise ValueError if a value lacks or is out of its schema's range; `summary` gives upper ends, as `npus`."""
    import pyarrow.compute as pc

    for field in schema.fields:
        if field.name not in table.schema.names:
            continue
        column = table.column(field.name)
        if column.null_count and not field.null:
            raise ValueError(f"{file_name}: column {field.name} has no value in a row; expected one in each")
        if field.is_name or field.type == "bool" or not len(column):
            continue
        if field.type.startswith("float"):
            # NaN stands for no value, and min_max would return it
            known = column.filter(pc.invert(pc.is_nan(column)))
            if len(known) < len(column) - column.null_count and not field.null:
                raise ValueError(f"{file_name}: column {field.name} has no number in a row; expected one in each")
            column = known
        ends = pc.min_max(column).as_py()
        below = summary.get(field.below)
        largest = LARGEST_VALUE if below is None else below - 1
        for value in (ends["min"], ends["max"]):
            if value is not None and not field.minimum <= value <= largest:
                raise ValueError(
                    f"{file_name}: column {field.name}: found {value}; expected {field.minimum} to {largest:.6g}"
                )
