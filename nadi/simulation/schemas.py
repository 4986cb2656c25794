"""Schemas of all Parquet tables that Nadi writes: columns with types, units and meanings.

Writers create their tables with `Schema.table`, which refuses unknown columns. Readers check files against the schema.
docs/reference/results.md includes the output of `documentation()`.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nadi.inputs.arrays import arrow_numbers, arrow_texts

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_VALUE = 1 << 62  # largest number in any table: times end at 2^62 ps, and counts and sizes stay far below
TEXT, WORD = "text", "word"  # types of text columns; WORD is dictionary-encoded: few distinct values in many rows


class Field(NamedTuple):
    """One column of a table."""

    name: str  # name of the column, which ends in the unit of times, sizes and rates
    type: str  # name of an Arrow type, or TEXT or WORD
    meaning: str  # short description of the values
    null: str = ""  # rows without a value; "" = every row has one
    where: str = ""  # files that contain the column; "" = all files
    minimum: int = 0  # smallest value of a number
    below: str = ""  # key of summary.json whose value is larger than every index in the column; "" = no such key

    @property
    def is_name(self) -> bool:
        """Return whether values are text rather than numbers."""
        return self.type in {TEXT, WORD}

    @property
    def unit(self) -> str:
        """Return the unit that the name implies."""
        return next((unit for end, unit in _UNITS.items() if self.name.endswith(end)), "")


_UNITS = {
    "_ps": "ps",
    "_bytes": "B",
    "bytes": "B",
    "packets": "packets",
    "_frames": "frames",
    "_hops": "hops",
    "_s": "s",
    "_bps": "bit/s",
    "_Bps": "B/s",
}


class Schema(NamedTuple):
    """One kind of table."""

    name: str  # name of the file without its suffix
    row: str  # description of what one row represents
    fields: tuple[Field, ...]  # columns, in order
    rows: str = ""  # key of summary.json that holds the number of rows; "" = no such key

    @property
    def file(self) -> str:
        """Return the name of the file."""
        return f"{self.name}.parquet"

    def arrow(self, names: Iterable[str] | None = None) -> "pa.Schema":
        """Return the Arrow schema of the columns with these names; None = the columns that every file has."""
        import pyarrow as pa

        types = {TEXT: pa.string(), WORD: pa.dictionary(pa.int32(), pa.string()), "bool": pa.bool_()}
        wanted = {field.name for field in self.fields if not field.where} if names is None else set(names)
        return pa.schema(
            pa.field(field.name, types.get(field.type) or getattr(pa, field.type)(), nullable=bool(field.null))
            for field in self.fields
            if field.name in wanted
        )

    def table(self, columns: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> "pa.Table":
        """Return a table of columns by name, and the file's metadata; KeyError if a column is unknown, or lacks."""
        import pyarrow as pa

        schema = self.arrow(columns)
        # columns that every such table has
        lacking = set(self.arrow().names) - set(columns)
        unknown = set(columns) - set(schema.names)
        if lacking or unknown:
            raise KeyError(
                f"{self.file}: lacks {sorted(lacking)}, has unknown {sorted(unknown)}; see nadi/simulation/schemas.py"
            )
        arrays = [_array(columns[field.name], field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema.with_metadata(metadata))

    def kinds(self, names: Iterable[str]) -> dict[str, bool]:
        """Return for each column name whether its values are text.

        Args:
            names: Names of columns.
        """
        of_name = {field.name: field.is_name for field in self.fields}
        return {name: of_name[name] for name in names}


def _array(values: Any, arrow_type: "pa.DataType") -> "pa.Array":  # noqa: ANN401 - numbers or texts of any kind
    """Return values, an Arrow array or what becomes one, as an Arrow array of this type."""
    import pyarrow as pa

    array = values
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        is_number = pa.types.is_primitive(arrow_type)
        array = arrow_numbers(np.asarray(values)) if is_number else arrow_texts(values)
    return array if array.type == arrow_type else array.cast(arrow_type)


JOB = Field("job", WORD, "name of the job", "no job", where="runs of [[jobs]]")

NODES = Schema(
    "nodes",
    "trace node of an NPU",
    (
        Field("npu", "int32", "NPU that runs the node", below="npus"),
        Field("row", "int32", "row of the node in the NPU's trace"),
        Field("node_id", "uint64", "id of the node in the trace"),
        Field("name", WORD, "name of the node in the trace"),
        Field("kind", WORD, "noop, compute, memory, send, recv, collective"),
        Field("lane", WORD, "resource that the node occupies: cpu, compute, memory, remote", "not compute or memory"),
        Field("group", "int32", "number of the group", "not a collective"),
        Field("bytes", "int64", "size of the message, or of the collective's whole buffer"),
        Field("start_ps", "int64", "start of the node"),
        Field("finish_ps", "int64", "end of the node"),
        JOB,
    ),
)

FLOWS = Schema(
    "flows",
    "message",
    (
        Field("src", "int64", "node that sends: an NPU, or a switch that reduces", below="nodes"),
        Field("dst", "int64", "node that receives, likewise", below="nodes"),
        Field("group", "int64", "number of the group; -1 = send and receive of a trace", minimum=-1),
        Field("seq", "int64", "index of the message in its group, or for its peer and tag"),
        Field("lane", "int64", "lane of the receiver; tag of a send; -1 of a call", minimum=-1),
        Field("control", "int8", "0 data, 1 request to send, 2 its answer, 3 call of a collective"),
        Field("bytes", "int64", "size of the message"),
        Field("start_ps", "int64", "time of its post"),
        Field("finish_ps", "int64", "arrival of its last byte"),
        Field("ideal_ps", "int64", "time of the message alone on an idle network", "not computed"),
        Field("slowdown", "float64", "(finish_ps - start_ps) / ideal_ps", "not computed"),
        JOB,
    ),
)

LINKS = Schema(
    "links",
    "direction of a cable",
    (
        Field("link", "int64", "number of the link; the opposite direction is link ^ 1", below="links"),
        Field("src", WORD, "node that sends"),
        Field("dst", WORD, "node that receives"),
        Field("rate_bps", "int64", "rate of the link"),
        Field("delay_ps", "int64", "propagation delay"),
        Field("tx_bytes", "int64", "sent bytes, including headers"),
        Field("tx_packets", "int64", "sent packets"),
        Field("dropped_packets", "int64", "packets lost at the port or by a fault"),
        Field("max_queue_bytes", "int64", "longest wait of a packet times rate_bps"),
        Field("buffered_bytes", "int64", "maximum of the bytes that waited at the port of a shared buffer"),
        Field("marked_packets", "int64", "packets marked at the port (ECN)"),
        Field("trimmed_packets", "int64", "packets cut to their headers at the port"),
        Field("pause_frames", "int64", "pause frames, or frames that return credits, sent over the link"),
        Field("paused_ps", "int64", "time for which the link itself was paused, or a lane had no credits"),
        Field("utilisation", "float64", "sent bytes divided by the bytes that the link could have sent"),
    ),
    rows="links",
)

COLLECTIVES = Schema(
    "collectives",
    "collective of a group",
    (
        Field("group", "int32", "number of the group; 0 = all NPUs"),
        Field("group_name", TEXT, "name of the group in traces"),
        Field("seq", "int32", "index of the collective in its group"),
        Field("kind", WORD, "all-reduce, all-gather, ..."),
        Field("algorithm", TEXT, "algorithm with its parameters"),
        Field("members", "int64", "number of NPUs of the group"),
        Field("bytes", "int64", "size of the whole buffer, as nccl-tests counts it"),
        Field("start_ps", "int64", "start of the first member"),
        Field("ready_ps", "int64", "start of the last member"),
        Field("finish_ps", "int64", "end of the last member"),
        Field("time_ps", "int64", "finish_ps - ready_ps"),
        Field("algbw_Bps", "float64", "bytes / time_ps"),
        Field("busbw_Bps", "float64", "algbw_Bps times the factor of nccl-tests"),
        Field("closed_form_ps", "float64", "time of the algorithm on an idle network"),
        Field("closed_form_played", "bool", "true: played as packets; false: as flows, or computed by a formula"),
        Field("ratio", "float64", "time_ps / closed_form_ps", "closed_form_ps is 0"),
        JOB,
    ),
)

NPUS = Schema(
    "npus",
    "NPU",
    (
        Field("npu", "int64", "number of the NPU", below="npus"),
        Field("compute_ps", "int64", "time covered by compute nodes of the accelerator"),
        Field("cpu_ps", "int64", "time covered by compute nodes of the host"),
        Field("memory_ps", "int64", "time covered by memory nodes"),
        Field("communication_ps", "int64", "time covered by sends, receives and collectives"),
        Field("exposed_ps", "int64", "communication time that no compute of the accelerator covers"),
        Field("host_ps", "int64", "time covered by compute nodes of the host alone"),
        Field("idle_ps", "int64", "time covered by no node, up to the end of the run"),
        Field("finish_ps", "int64", "end of its last node"),
        Field(
            "represented_by",
            "int32",
            "NPU whose trace nodes represent those of this NPU",
            where="runs that fold NPUs",
            below="npus",
        ),
        JOB,
    ),
    rows="npus",
)

QUEUES = Schema(
    "queues",
    "port and time interval (at most 64 intervals, longer in longer runs) in which a shared buffer was not empty",
    (
        Field("link", "int64", "link behind the port", below="links"),
        Field("time_ps", "int64", "start of the interval"),
        Field("bytes", "int64", "maximum of the bytes that waited in the interval"),
    ),
)

MARKS = Schema(
    "marks",
    "port and time interval, as in queues.parquet, in which the port marked packets (ECN)",
    (
        Field("link", "int64", "link behind the port", below="links"),
        Field("time_ps", "int64", "start of the interval"),
        Field("packets", "int64", "number of marked packets"),
    ),
)

SAMPLES = Schema(
    "samples",
    "link and interval of `[output] sample` in which it sent, or packets waited at its port",
    (
        Field("link", "int64", "link", below="links"),
        Field("time_ps", "int64", "start of the interval"),
        Field("tx_bytes", "int64", "bytes sent in the interval, as counted in links.parquet"),
        Field(
            "queue_bytes",
            "int64",
            "maximum of the bytes that waited at the port of a switch when a packet joined them or had left; behind an "
            "output queue, of the bytes before a packet",
        ),
    ),
)

PAUSES = Schema(
    "pauses",
    "pause or resume of a traffic class of a link, up to the first 65,536",
    (
        Field("time_ps", "int64", "time at which the frame was sent"),
        Field("link", "int64", "paused or resumed link", below="links"),
        Field("data_class", "int64", "traffic class, 0 or 1"),
        Field("paused", "bool", "true: pause; false: resume"),
    ),
)

JOB_LINKS = Schema(
    "job_links",
    "job and link that it uses, in a run of [[jobs]]",
    (
        Field("job", WORD, "name of the job", "packets of no job, such as those of aggregators"),
        Field("link", "int64", "number of the link", below="links"),
        Field("tx_bytes", "int64", "bytes that the job's NPUs sent over the link, including headers"),
    ),
)

LIMITS = Schema(
    "limits",
    "connection of flows, or kind of coupled collectives of a group, that one link limited for most of its time",
    (
        Field("src", "int64", "node that sends, as a flow; -1 = coupled collectives", minimum=-1, below="nodes"),
        Field("dst", "int64", "node that receives, likewise", minimum=-1, below="nodes"),
        Field("group", "int64", "number of the group; -1 = sends of traces", minimum=-1),
        Field("link", "int64", "full link that limited the rate", below="links"),
        Field("limited_ps", "int64", "time for which it did, less the time for which it did not"),
    ),
)

WORKERS = Schema(
    "workers",
    "worker (a thread or process that runs some of the logical processes) of a packet run",
    (
        Field("worker", "int64", "number of the worker"),
        Field("rank", "int64", "MPI rank of the worker"),
        Field("packet_hops", "int64", "simulated packet-hops"),
        Field("events", "int64", "handled events"),
        Field("working_s", "float64", "wall time of simulation"),
        Field("waiting_s", "float64", "wall time of waiting for other workers and for messages of other ranks"),
        Field("windows", "int64", "number of windows"),
    ),
)

COMMUNICATION_AXES = ("tp", "cp", "ep", "etp", "dp", "pp", "embedding", "kv", "world")
"""Possible beginnings of the last part of a communication's name, as in step0/forward/mb3/layer17/tp:all-gather."""
STEP_CATEGORIES = ("compute", *COMMUNICATION_AXES, "unnamed", "bubble", "other", "idle")
"""Categories of the time of a training step; communication counts as far as it is exposed."""

STEPS = Schema(
    "steps",
    "NPU of a run whose names of communication contain the axis; the times of a row add up to the run's time",
    (
        Field("npu", "int64", "number of the NPU", below="npus"),
        Field("compute_ps", "int64", "time in which the accelerator computes"),
        *(Field(f"{axis}_ps", "int64", f"exposed communication of the axis {axis}") for axis in COMMUNICATION_AXES),
        Field("unnamed_ps", "int64", "exposed communication without an axis in its name"),
        Field("bubble_ps", "int64", "time of waiting for other stages of the pipeline"),
        Field("other_ps", "int64", "time of nodes of the host and of memory"),
        Field("idle_ps", "int64", "time after the last node"),
        JOB,
    ),
    rows="npus",
)

SWEEP = Schema(
    "collective",
    "algorithm and size of a sweep of `nadi collective`",
    (
        Field("topology", TEXT, "specification of the fabric"),
        Field("npus", "int64", "number of NPUs; all are members"),
        Field("kind", TEXT, "all-reduce, all-gather, ..."),
        Field("algorithm", TEXT, "name of the algorithm"),
        Field("parameters", TEXT, "parameters of the algorithm, as users write them"),
        Field("variant", TEXT, "choice of an algorithm that has several variants, or the protocol of its messages"),
        Field(
            "model",
            TEXT,
            "model of the network; by flows also steps (a flow for each message) or coupled; empty: the closed form",
        ),
        Field("bytes", "int64", "size of the whole buffer, as nccl-tests counts it"),
        Field("time_ps", "int64", "time of the collective"),
        Field("algbw_Bps", "float64", "bytes / time_ps"),
        Field("busbw_Bps", "float64", "algbw_Bps times the factor of nccl-tests"),
        Field("closed_form_ps", "float64", "time of the algorithm on an idle network"),
        Field("closed_form_played", "bool", "true: played as packets; false: as flows, or computed by a formula"),
        Field("ratio", "float64", "time_ps / closed_form_ps", "closed_form_ps is 0"),
        Field("bound_ps", "float64", "lower bound on the time of any run"),
        Field("busiest_link", "float64", "share of the time in which the busiest link sent"),
        Field("mean_link", "float64", "the same share, mean of all links"),
        Field("packet_hops", "int64", "packets times links"),
        Field("digest", TEXT, "digest of the run"),
        Field("fastest", "bool", "no algorithm is faster at this size"),
    ),
)

OF_EVERY_RUN = (NODES, FLOWS, LINKS, COLLECTIVES, NPUS)
LOGS = (QUEUES, SAMPLES, MARKS, PAUSES, LIMITS, WORKERS)  # tables that a run writes only if it has recorded rows
OF_A_RUN = (*OF_EVERY_RUN, STEPS, JOB_LINKS, *LOGS)
SCHEMAS = (*OF_A_RUN, SWEEP)


def documentation() -> str:
    """Return the Markdown documentation of all tables."""
    lines = []
    for schema in SCHEMAS:
        lines += [f"### `{schema.file}`", "", f"A row for each {schema.row}.", ""]
        lines += ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
        for field in schema.fields:
            more = f"; null: {field.null}" * bool(field.null) + f"; in {field.where}" * bool(field.where)
            lines.append(f"| {field.name} | {field.type} | {field.unit} | {field.meaning}{more} |")
        lines.append("")
    return "\n".join(lines)
