"""Reading of the results of an earlier run, whose files others may have changed since: summary and tables."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Required

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from nadi.simulation.schemas import LARGEST_VALUE, Schema
from nadi.validation import ErrorBarDocument

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_WORD_BYTES = 8
_BLOCK_ROWS = 1 << 20
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
_LARGEST = 1 << 62
_LARGEST_FABRIC = 1 << 26  # maximum number of NPUs, nodes or links of a fabric, which bounds what readers allocate

_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Size = Annotated[int, Field(ge=0, le=_LARGEST_FABRIC)]
_Amount = Annotated[float, Field(ge=0, le=1e30)]
_Text = Annotated[str, Field(max_length=10_000)]


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json of a run; OSError, or ValueError of one line if the contents are not what a run writes.

    Args:
        folder: Folder of the run's results.
    """
    from nadi.inputs.documents import DocumentError, read_document

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


def _plain_extras(document: dict[str, Any]) -> dict[str, Any]:
    """Require that keys without a schema hold a text or a non-negative number."""
    for key, value in document.items():
        if key in RunSummary.__annotations__ or isinstance(value, str):
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST:
            raise ValueError(f"{key}: expected a text or a number from 0 on")
    return document


@with_config(_STRICT)
class ExpectedPorts(TypedDict):
    """Ports of one kind: how many the run uses, their rates in bits per second, sent bytes, and how many there are."""

    number: _Amount
    rate_bps: _Amount
    tx_bytes: _Amount
    present: _Count


@with_config(_STRICT)
class PortsByKind(TypedDict):
    """Expected use of ports in a run at closed forms."""

    used: dict[str, ExpectedPorts]
    unused_switches: _Count


@with_config(_STRICT)
class RequestTimes(TypedDict):
    """Times of requests in picoseconds: mean, percentiles (None: too few), and the quantiles from 0 % to 100 %."""

    mean_ps: _Amount
    p50_ps: _Amount
    p90_ps: _Amount | None
    p95_ps: _Amount | None
    p99_ps: _Amount | None
    quantiles_ps: Annotated[list[_Amount], Field(min_length=101, max_length=101)]


@with_config(_STRICT)
class ServingFigures(TypedDict):
    """Throughput and latencies of served requests."""

    requests: _Count
    tokens: _Count
    tokens_per_s: _Amount
    ttft: NotRequired[RequestTimes]
    tpot: NotRequired[RequestTimes]


@with_config(_STRICT)
class HashedFiles(TypedDict):
    """Files of one key of the run file, with their hash."""

    key: _Text
    path: _Text
    files: _Count
    bytes: _Count
    sha256: _Text


@with_config(_STRICT)
class SharedLinks(TypedDict):
    """Links that a job shares with another one."""

    job: _Text
    links: _Count
    bytes: _Count
    other_bytes: _Count
    link: _Count
    link_name: _Text


@with_config(_STRICT)
class JobFigures(TypedDict):
    """Results of a job."""

    name: _Text
    npus: _Size
    start_ps: _Count
    finish_ps: _Count
    time_ps: _Count
    digest: _Text
    compute_slowdown: NotRequired[_Amount]
    step: dict[str, _Amount]
    alone_ps: NotRequired[_Count]
    slowdown: NotRequired[_Amount]
    shares: list[SharedLinks]


@with_config(_STRICT)
class DoneCollectives(TypedDict):
    """Collectives of a kind that are done so far, and their mean time."""

    kind: _Text
    done: _Count
    mean_ps: _Amount


@with_config(_STRICT)
class PartialFigures(TypedDict):
    """Figures of a run that is not over."""

    simulated_ps: _Count
    steps_done: NotRequired[_Count]
    steps: NotRequired[_Count]
    compute_share: _Amount
    exposed_share: _Amount
    collectives: list[DoneCollectives]


@with_config(_STRICT)
class _Compute(TypedDict, total=False):
    gpu: _Text | None


@with_config(_STRICT)
class _Energy(TypedDict, total=False):
    table: _Text | None


@with_config(_STRICT)
class _Workload(TypedDict, total=False):
    model: _Text | None
    plan: _Text | dict[str, Any] | None


@with_config(_STRICT)
class _Config(TypedDict, total=False):
    """Settled run file; `nadi.configuration.run_config.RunConfig` validates all of it before a run is built again."""

    workload: _Workload
    topology: dict[str, Any]
    system: dict[str, Any]
    network: dict[str, Any]
    compute: _Compute
    memory: dict[str, Any]
    energy: _Energy


@with_config(_STRICT)
class RunSummary(TypedDict, total=False):
    """Keys that readers use; other keys are counters and names."""

    version: _Text
    network: Required[_Text]
    switches: _Text
    topology: _Text
    digest: _Text
    working_folder: _Text
    npus: Required[_Size]
    nodes: Required[_Size]
    links: Required[_Size]
    finish_time_ps: Required[_Count]
    without_faults_ps: _Count
    packet_hops: _Count
    dropped_packets: _Count
    marked_packets: _Count
    pause_frames: _Count
    retransmitted_packets: _Count
    timeouts: _Count
    events: _Count
    windows: _Count
    flows: _Count
    packets: _Count
    payload_bytes: _Count
    ranks: _Count
    threads: _Count
    processes: _Count
    lps: _Count
    wall_s: _Amount
    setup_s: _Amount
    first_event_s: float
    packet_hops_per_s: _Amount
    reuse: dict[str, _Count]
    peak_rss_bytes: _Count
    warnings: list[_Text]
    files: list[HashedFiles]
    step: dict[str, _Amount]
    jobs: list[JobFigures]
    partial: PartialFigures
    operators: dict[str, _Count]
    serving: ServingFigures
    ports: PortsByKind
    settled: dict[str, Any]
    error_bars: list[ErrorBarDocument]
    config: _Config
    named: list[_Text]


SUMMARY = TypeAdapter(Annotated[RunSummary, AfterValidator(_plain_extras)])
