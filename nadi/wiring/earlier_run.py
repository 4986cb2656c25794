"""Reading what an earlier run has written: files that others may have changed since."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import inputs
from nadi.schemas import Schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_WORD_BYTES = 8
_BLOCK_ROWS = 1 << 20
_NUMBERS, _NAMES = "numbers", "names"


_PLAIN = (str, int, float)
_OTHERS = {"config": dict, "settled": dict, "step": dict, "serving": dict, "ports": dict, "warnings": list}
"""What the values of summary.json are: plain ones, but these."""


def read_summary(folder: Path) -> dict[str, Any]:
    """What summary.json holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, or none of a run.
    """
    path = folder / "summary.json"
    try:
        found = json.loads(inputs.read_text(path))
    except RecursionError:
        raise ValueError("summary.json: lists in lists in lists; expected what a run writes") from None
    except ValueError as error:
        raise ValueError(f"summary.json: no JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("finish_time_ps", 0), int):
        raise ValueError("summary.json: no finish_time_ps; expected what a run writes")  # noqa: TRY004 - of a file
    wrong = next((key for key, value in found.items() if not isinstance(value, _OTHERS.get(key, _PLAIN))), None)
    step = found.get("step", {}) if wrong is None else {}
    wrong = wrong or next((f"step.{key}" for key, value in step.items() if not isinstance(value, int | float)), None)
    if wrong is not None:
        raise ValueError(f"summary.json: {wrong}: found another kind of value; expected what a run writes")
    return found


def read_table(
    folder: Path, schema: Schema, needed: Iterable[str], columns: Iterable[str] | None = None
) -> "pa.Table | None":
    """A table of a folder of results; None where there is none.

    Args:
        folder: of the run.
        schema: which table.
        needed: columns that it must have.
        columns: what is read of it, as far as it has them; None = all.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no Parquet file, a column is missing or of the other kind, or it claims more rows than
            memory holds.
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
            _check(file, path, schema.kinds(needed), len(kept))
            return file.read(columns=kept)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None


def table_blocks(folder: Path, schema: Schema, needed: Sequence[str]) -> "Iterator[pa.RecordBatch]":
    """Some columns of a table, a million rows after another, so that memory need not hold it; nothing where none is.

    Args:
        folder: of the run.
        schema: which table.
        needed: the columns.

    Raises:
        OSError, ValueError: as `read_table`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / schema.file
    if not path.is_file():
        return
    try:
        with pq.ParquetFile(path) as file:
            _check(file, path, schema.kinds(needed), 0)
            yield from file.iter_batches(_BLOCK_ROWS, columns=list(needed))
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None


def _check(file: "pq.ParquetFile", path: Path, names: Mapping[str, bool], width: int) -> None:
    """Believe the header of a file.

    Args:
        file: opened.
        path: of it.
        names: of columns that it must have, whether they hold names or numbers.
        width: columns that memory must hold.
    """
    rows = file.metadata.num_rows
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if rows * width * _WORD_BYTES > memory_bytes:
        raise ValueError(f"{path.name}: {rows:,} rows of {width} columns, more than this machine's memory holds")
    for name, is_name in names.items():
        kind = _NAMES if is_name else _NUMBERS
        found = file.schema_arrow.get_field_index(name)
        if found < 0:
            raise ValueError(f"{path.name}: no column {name}; expected what a run writes")
        if _kind(file.schema_arrow.field(found).type) != kind:
            raise ValueError(f"{path.name}: column {name} is {file.schema_arrow.field(found).type}; expected {kind}")


def _kind(column: "pa.DataType") -> str:
    import pyarrow as pa

    if pa.types.is_integer(column) or pa.types.is_floating(column) or pa.types.is_boolean(column):
        return _NUMBERS
    inner = column.value_type if pa.types.is_dictionary(column) else column
    return _NAMES if pa.types.is_string(inner) or pa.types.is_large_string(inner) else str(column)
