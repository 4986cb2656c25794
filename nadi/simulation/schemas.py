"""Every Parquet table that Nadi writes: its columns, their types, units and meanings.

Writers make their tables with `Schema.table`, which refuses a column that does not stand here; who reads results looks
here for what a file must have; docs/reference/results.md shows `documentation()`, and a test holds it to that.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_VALUE = 1 << 62
"""Largest number in any table: times end at 2^62 ps, and no count or size comes near it."""
TEXT, WORD = "text", "word"
"""Words are text, each kept once: few different ones in many rows."""


class Field(NamedTuple):
    """One column.

    Attributes:
        name: of the column; units of times, sizes and rates stand at its end.
        type: name of an Arrow type, or TEXT or WORD.
        meaning: a few words.
        null: when there is no value; "" = there always is one.
        where: in which files the column is; "" = in all.
        minimum: Smallest value of a number.
        below: Key of summary.json whose value the number, an index, stays below; "" = no such key.
    """

    name: str
    type: str
    meaning: str
    null: str = ""
    where: str = ""
    minimum: int = 0
    below: str = ""

    @property
    def is_name(self) -> bool:
        """Whether values are text rather than numbers."""
        return self.type in {TEXT, WORD}

    @property
    def unit(self) -> str:
        """As the name says it."""
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
    """One kind of table.

    Attributes:
        name: of its file, without the suffix.
        row: what has a row.
        fields: the columns, in order.
        rows: Key of summary.json that holds the number of rows; "" = no such key.
    """

    name: str
    row: str
    fields: tuple[Field, ...]
    rows: str = ""

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.name}.parquet"

    def arrow(self, names: Iterable[str] | None = None) -> "pa.Schema":
        """As Arrow has it; names: of the columns of one file, None = those that are in every file."""
        import pyarrow as pa

        types = {TEXT: pa.string(), WORD: pa.dictionary(pa.int32(), pa.string()), "bool": pa.bool_()}
        wanted = {field.name for field in self.fields if not field.where} if names is None else set(names)
        return pa.schema(
            pa.field(field.name, types.get(field.type) or getattr(pa, field.type)(), nullable=bool(field.null))
            for field in self.fields
            if field.name in wanted
        )

    def table(self, columns: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> "pa.Table":
        """A table of these columns, arrays of NumPy or Arrow or lists; those with `where` may be missing.

        Raises:
            KeyError: a column that the schema lacks, or one of the schema's that is missing.
        """
        import pyarrow as pa

        schema = self.arrow(columns)
        lacking = set(self.arrow().names) - set(columns)
        unknown = set(columns) - set(schema.names)
        if lacking or unknown:
            raise KeyError(
                f"{self.file}: lacks {sorted(lacking)}, has unknown {sorted(unknown)}; see nadi/simulation/schemas.py"
            )
        arrays = [_array(columns[field.name], field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema.with_metadata(metadata))

    def kinds(self, names: Iterable[str]) -> dict[str, bool]:
        """Of some columns whether they are names; the others are numbers."""
        of_name = {field.name: field.is_name for field in self.fields}
        return {name: of_name[name] for name in names}


def _array(values: object, kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    made = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
    return made if made.type == kind else made.cast(kind)


NODES = Schema(
    "nodes",
    "trace node of each NPU",
    (
        Field("npu", "int32", "whose node it is", below="npus"),
        Field("row", "int32", "of the NPU's trace"),
        Field("node_id", "uint64", "of the trace"),
        Field("name", WORD, "of the trace"),
        Field("kind", WORD, "noop, compute, memory, send, recv, collective"),
        Field("lane", WORD, "what the node occupies: cpu, compute, memory, remote", "not compute or memory"),
        Field("group", "int32", "number of the group", "not a collective"),
        Field("bytes", "int64", "of the message, or the collective's whole buffer"),
        Field("start_ps", "int64", "when the node began"),
        Field("finish_ps", "int64", "when it was done"),
    ),
)

FLOWS = Schema(
    "flows",
    "message",
    (
        Field("src", "int64", "NPU that sends", below="npus"),
        Field("dst", "int64", "NPU that receives", below="npus"),
        Field("group", "int64", "number of the group; -1 = send and receive of a trace", minimum=-1),
        Field("seq", "int64", "the how-manieth of its group, or with its peer and tag"),
        Field("lane", "int64", "of the receiver that takes it; the tag of a send; -1 of a call", minimum=-1),
        Field("control", "int8", "0 data, 1 request to send, 2 its answer, 3 call of a collective"),
        Field("bytes", "int64", "of the message"),
        Field("start_ps", "int64", "when it was posted"),
        Field("finish_ps", "int64", "when its last byte was there"),
        Field("ideal_ps", "int64", "what it takes alone on an idle network", "not worked out"),
        Field("slowdown", "float64", "(finish_ps - start_ps) / ideal_ps", "not worked out"),
    ),
)

LINKS = Schema(
    "links",
    "direction of a cable",
    (
        Field("link", "int64", "its number; the way back is link ^ 1", below="links"),
        Field("src", WORD, "node that sends"),
        Field("dst", WORD, "node that receives"),
        Field("rate_bps", "int64", "what it can send"),
        Field("delay_ps", "int64", "propagation"),
        Field("tx_bytes", "int64", "sent, with headers"),
        Field("tx_packets", "int64", "sent"),
        Field("dropped_packets", "int64", "lost at its port or by a fault"),
        Field("max_queue_bytes", "int64", "the longest wait of a packet times rate_bps"),
        Field("buffered_bytes", "int64", "the most that waited at the port of a shared buffer"),
        Field("marked_packets", "int64", "marked at the port (ECN)"),
        Field("trimmed_packets", "int64", "cut to their headers at the port"),
        Field("pause_frames", "int64", "pauses that were sent over the link"),
        Field("paused_ps", "int64", "how long the link itself was paused"),
        Field("utilisation", "float64", "what it sent over what it could have sent"),
    ),
    rows="links",
)

COLLECTIVES = Schema(
    "collectives",
    "collective of a group",
    (
        Field("group", "int32", "number of the group; 0 = all NPUs"),
        Field("group_name", TEXT, "as traces call it"),
        Field("seq", "int32", "the how-manieth of the group"),
        Field("kind", WORD, "all-reduce, all-gather, ..."),
        Field("algorithm", TEXT, "with its parameters"),
        Field("members", "int64", "NPUs of the group"),
        Field("bytes", "int64", "the whole buffer, as nccl-tests counts it"),
        Field("start_ps", "int64", "when the first member began"),
        Field("ready_ps", "int64", "when the last member began"),
        Field("finish_ps", "int64", "when the last member was done"),
        Field("time_ps", "int64", "finish_ps - ready_ps"),
        Field("algbw_Bps", "float64", "bytes over time"),
        Field("busbw_Bps", "float64", "algbw_Bps times the factor of nccl-tests"),
        Field("closed_form_ps", "float64", "what the algorithm takes on an idle network"),
        Field("closed_form_played", "bool", "its steps were played; else a formula stands"),
        Field("ratio", "float64", "time_ps / closed_form_ps", "closed_form_ps is 0"),
    ),
)

NPUS = Schema(
    "npus",
    "NPU",
    (
        Field("npu", "int64", "its number", below="npus"),
        Field("compute_ps", "int64", "covered by compute nodes of the accelerator"),
        Field("cpu_ps", "int64", "covered by compute nodes of the host"),
        Field("memory_ps", "int64", "covered by memory nodes"),
        Field("communication_ps", "int64", "covered by sends, receives and collectives"),
        Field("exposed_ps", "int64", "communication that no compute of the accelerator covers"),
        Field("host_ps", "int64", "covered by compute nodes of the host alone"),
        Field("idle_ps", "int64", "covered by nothing, up to the end of the run"),
        Field("finish_ps", "int64", "when its last node was done"),
        Field(
            "like",
            "int32",
            "the NPU whose trace nodes stand for its own",
            where="runs that fold NPUs",
            below="npus",
        ),
    ),
    rows="npus",
)

QUEUES = Schema(
    "queues",
    "port and stretch of time (64 at most, wider in longer runs) in which a shared buffer held anything",
    (
        Field("link", "int64", "behind the port", below="links"),
        Field("time_ps", "int64", "when the stretch begins"),
        Field("bytes", "int64", "the most that waited in it"),
    ),
)

MARKS = Schema(
    "marks",
    "port and stretch of time, as in queues.parquet, in which it marked packets (ECN)",
    (
        Field("link", "int64", "behind the port", below="links"),
        Field("time_ps", "int64", "when the stretch begins"),
        Field("packets", "int64", "that left it marked"),
    ),
)

PAUSES = Schema(
    "pauses",
    "pause or resume of a class of a link, the first 65,536",
    (
        Field("time_ps", "int64", "when it was sent"),
        Field("link", "int64", "which is paused or resumed", below="links"),
        Field("data_class", "int64", "0 or 1"),
        Field("paused", "bool", "a pause; else a resume"),
    ),
)

WORKERS = Schema(
    "workers",
    "worker: a thread or process that does some of the logical processes; of runs of packets",
    (
        Field("worker", "int64", "its number"),
        Field("rank", "int64", "of MPI, on which it runs"),
        Field("packet_hops", "int64", "that it simulated"),
        Field("events", "int64", "that it acted on"),
        Field("working_s", "float64", "wall time in which it simulated"),
        Field("waiting_s", "float64", "wall time in which it waited for other workers, and for what other nodes sent"),
        Field("windows", "int64", "that it took part in"),
    ),
)

COMMUNICATION_AXES = ("tp", "cp", "ep", "etp", "dp", "pp", "embedding", "kv", "world")
"""What names of communication may begin their last part with: step0/forward/mb3/layer17/tp:all-gather."""
STEP_CATEGORIES = ("compute", *COMMUNICATION_AXES, "unnamed", "bubble", "other", "idle")
"""Where the time of a training step goes; of communication what is exposed."""

STEPS = Schema(
    "steps",
    "NPU, of runs whose names of communication tell its axis: where its time went; they add up to the run",
    (
        Field("npu", "int64", "its number", below="npus"),
        Field("compute_ps", "int64", "the accelerator computes"),
        *(Field(f"{axis}_ps", "int64", f"exposed communication of the axis {axis}") for axis in COMMUNICATION_AXES),
        Field("unnamed_ps", "int64", "exposed communication whose name tells no axis"),
        Field("bubble_ps", "int64", "waits for other stages of the pipeline"),
        Field("other_ps", "int64", "nodes of the host and of memory"),
        Field("idle_ps", "int64", "after its last node"),
    ),
    rows="npus",
)

SWEEP = Schema(
    "collective",
    "algorithm and size of a sweep of `nadi collective`",
    (
        Field("topology", TEXT, "the fabric"),
        Field("npus", "int64", "all of them are members"),
        Field("kind", TEXT, "all-reduce, all-gather, ..."),
        Field("algorithm", TEXT, "its name"),
        Field("parameters", TEXT, "of the algorithm, as users write them"),
        Field("way", TEXT, "what an algorithm that chooses among several took"),
        Field("bytes", "int64", "the whole buffer, as nccl-tests counts it"),
        Field("time_ps", "int64", "of the collective"),
        Field("algbw_Bps", "float64", "bytes over time"),
        Field("busbw_Bps", "float64", "algbw_Bps times the factor of nccl-tests"),
        Field("closed_form_ps", "float64", "what the algorithm takes on an idle network"),
        Field("closed_form_played", "bool", "its steps were played; else a formula stands"),
        Field("ratio", "float64", "time_ps / closed_form_ps", "closed_form_ps is 0"),
        Field("bound_ps", "float64", "the least that any run takes"),
        Field("busiest_link", "float64", "share of the time in which the busiest link sent"),
        Field("mean_link", "float64", "the same, mean of all links"),
        Field("packet_hops", "int64", "packets times links"),
        Field("digest", TEXT, "of the run"),
        Field("fastest", "bool", "no algorithm takes less at this size"),
    ),
)

OF_EVERY_RUN = (NODES, FLOWS, LINKS, COLLECTIVES, NPUS)
LOGS = (QUEUES, MARKS, PAUSES, WORKERS)
"""Tables that a run writes only where it has recorded any."""
OF_A_RUN = (*OF_EVERY_RUN, STEPS, *LOGS)
SCHEMAS = (*OF_A_RUN, SWEEP)


def documentation() -> str:
    """Markdown: a table for each file."""
    return "\n".join(_section(schema) for schema in SCHEMAS)


def _section(schema: Schema) -> str:
    head = [f"### `{schema.file}`", "", f"A row for each {schema.row}.", ""]
    rows = ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows, *(_row(field) for field in schema.fields), ""])


def _row(field: Field) -> str:
    more = f"; null: {field.null}" * bool(field.null) + f"; in {field.where}" * bool(field.where)
    return f"| {field.name} | {field.type} | {field.unit} | {field.meaning}{more} |"
