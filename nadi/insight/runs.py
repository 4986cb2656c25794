"""A finished run read from its folder: summary and tables, fabric and program built again, energy and cost."""

import html
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nadi import energy
from nadi.configuration.run_config import RunConfig, validated
from nadi.errors import ConfigError
from nadi.inputs.arrays import numpy_column
from nadi.inputs.files import shown
from nadi.inputs.units import PS_PER_MS, PS_PER_S, short
from nadi.pdes import NetworkModel, fidelity
from nadi.simulation import schemas
from nadi.simulation.earlier_run import read_summary, read_table, table_blocks
from nadi.simulation.schemas import JOB_LINKS, LINKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from nadi.simulation.assembly.reading import LoadedWorkload, WorkReader
    from nadi.topologies import Graph


_EXPECTED = "expected results of `nadi run --out`"


class Run:
    """The results of a run in a `folder` that `nadi run --out DIR` wrote; `summary` holds its summary.json.

    Run reads a table at its first use and keeps it. Its columns are those of docs/reference/results.md; `to_pandas()`
    of a table returns a DataFrame (pandas is an extra).
    """

    def __init__(self, folder: str | Path, *, config: RunConfig | None = None) -> None:
        """Open a folder of results; config: configuration if this process simulated the run, else None."""
        self.folder = Path(folder)
        self._simulated = config
        try:
            self.summary: dict[str, Any] = read_summary(self.folder)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def __repr__(self) -> str:
        return (
            f"Run({str(self.folder)!r}: {self.summary.get('npus', 0):,} NPUs on {self.summary.get('topology')}, "
            f"{self.finish_time_ps / PS_PER_MS:,.6g} ms simulated)"
        )

    def _repr_html_(self) -> str:
        """Return a small table, which notebooks show for a run."""
        rows = {
            "folder": self.folder,
            "fabric": f"{self.summary.get('npus', 0):,} NPUs on {self.summary.get('topology')}",
            "network": self.summary.get("network"),
            "simulated": f"{self.finish_time_ps / PS_PER_MS:,.6g} ms",
            "messages": f"{self.summary.get('flows', 0):,}",
            "warnings": "; ".join(self.warnings),
        }
        cells = ((name, html.escape(shown(str(value)))) for name, value in rows.items() if value)
        body = "".join(f"<tr><th style='text-align: left'>{name}</th><td>{value}</td></tr>" for name, value in cells)
        return f"<table>{body}</table>"

    @property
    def finish_time_ps(self) -> int:
        """Time in picoseconds at which the last event of the run ends."""
        return int(self.summary.get("finish_time_ps", 0))

    @property
    def digest(self) -> str:
        """Digest of all events: two runs with the same digest are the same."""
        return str(self.summary.get("digest", ""))

    def check_job(self, name: str) -> None:
        """Raise ConfigError if the run has no job of this name."""
        names = [job["name"] for job in self.summary.get("jobs", [])]
        if name not in names:
            expected = f"expected one of {', '.join(names[:8])}" if names else "expected a run of [[jobs]]"
            raise ConfigError(f"--job {short(name)}: {self.folder} has no such job; {expected}")

    @property
    def warnings(self) -> list[str]:
        """Sentences about what the run leaves out or cannot show."""
        return list(self.summary.get("warnings", []))

    @property
    def network(self) -> NetworkModel:
        """Model of the network with its capabilities."""
        from nadi.configuration.sections import known_model

        return known_model(self.summary.get("network")) or fidelity.PACKET

    @cached_property
    def nodes(self) -> "pa.Table":
        """Table with a row per trace node of each NPU."""
        return self._table(schemas.NODES, '[output] nodes = "none" leaves it out')

    @cached_property
    def flows(self) -> "pa.Table":
        """Table with a row per message."""
        return self._table(schemas.FLOWS, '[output] flows = "none" leaves it out')

    @cached_property
    def links(self) -> "pa.Table":
        """Table with a row per direction of a cable."""
        return self._table(schemas.LINKS)

    @cached_property
    def collectives(self) -> "pa.Table":
        """Table with a row per collective of a group."""
        return self._table(schemas.COLLECTIVES)

    @cached_property
    def npus(self) -> "pa.Table":
        """Table with a row per NPU."""
        return self._table(schemas.NPUS)

    @cached_property
    def steps(self) -> "pa.Table | None":
        """Table with a row per NPU: its time by axis of parallelism; None where no node name has an axis."""
        return self._maybe(schemas.STEPS)

    @cached_property
    def queues(self) -> "pa.Table | None":
        """Table of the bytes in shared buffers over time; None where no packet waited."""
        return self._maybe(schemas.QUEUES)

    @cached_property
    def samples(self) -> "pa.Table | None":
        """Table of the bytes that links sent, and of their queues, over time; None where links were not sampled."""
        return self._maybe(schemas.SAMPLES)

    @cached_property
    def marks(self) -> "pa.Table | None":
        """Table of the packets that ports marked (ECN) over time; None where no packet was marked."""
        return self._maybe(schemas.MARKS)

    @cached_property
    def pauses(self) -> "pa.Table | None":
        """Table of pauses and resumes; None where no link was paused."""
        return self._maybe(schemas.PAUSES)

    @cached_property
    def limits(self) -> "pa.Table | None":
        """Table of the links that limited flows; None where no link did."""
        return self._maybe(schemas.LIMITS)

    @cached_property
    def workers(self) -> "pa.Table | None":
        """Table of working and waiting times of the simulation's workers; None where the run did not record them."""
        return self._maybe(schemas.WORKERS)

    @cached_property
    def has_only_messages(self) -> bool:
        """Whether the NPUs only sent and received: no computation, memory access or collective.

        Such a run is traffic without a job, of which the share of exposed communication and the energy say nothing.
        Time of the CPU does not count, because generators of traffic wait with it until the next message.
        """
        if not self.has(schemas.NPUS) or (self.has(schemas.COLLECTIVES) and len(self.collectives)):
            return False
        return not any(numpy_column(self.npus[name]).any() for name in ("compute_ps", "memory_ps"))

    def has(self, schema: schemas.Schema) -> bool:
        """Return whether the folder has this table.

        Args:
            schema: Columns of the table.
        """
        return (self.folder / schema.file).is_file()

    @cached_property
    def config(self) -> RunConfig:
        """The settled configuration; relative paths start from the folder in which the run was started.

        Fabric and traces that were Python objects are text in it, unless `nadi.simulate` returned this Run.
        """
        if self._simulated is not None:
            return self._simulated
        config = validated(self.summary.get("config", {}), self.folder / "summary.json")
        return config.with_paths_from(Path(self.summary.get("working_folder", ".")))

    @cached_property
    def reader(self) -> "WorkReader":
        """What reads fabric and work of the run again; ConfigError or TopologyError as for `graph`."""
        from nadi.simulation.assembly.reading import WorkReader

        reader = WorkReader.of(self.config, force=True)
        found = f"the run had {self.summary.get('links')} links, {reader.graph.name} has {reader.graph.links} now"
        # a fabric file that has changed since the run would give wrong paths; the number of links is a cheap check
        if reader.graph.links != self.summary.get("links"):
            raise ConfigError(f"{self.folder}: {found}")
        return reader

    @property
    def graph(self) -> "Graph":
        """The fabric, built again; ConfigError or TopologyError if a file is missing or the fabric has changed."""
        return self.reader.graph

    @cached_property
    def work(self) -> "LoadedWorkload":
        """Traces and program, built again; row r of an NPU is that of `nodes`. Refuse traces that have changed."""
        work = self.reader.work()
        # nodes.parquet has the rows of every NPU, or of one NPU of each kind ("represented_by")
        rows = int(np.diff(work.program.trace_ptr)[work.program.trace_of_npu].sum())
        if self.has(schemas.NODES) and "represented_by" not in self.npus.column_names and len(self.nodes) != rows:
            raise ConfigError(
                f"{self.folder}: the run had {len(self.nodes):,} trace nodes, its traces have {rows:,} now"
            )
        return work

    def _table(self, schema: schemas.Schema, why_missing: str = "") -> "pa.Table":
        """Return a table that the folder must have."""
        found = self._maybe(schema)
        # a run that was stopped has a summary, but not yet all tables: say that instead of naming a key of [output]
        if found is None and "partial" in self.summary:
            raise ConfigError(f"{self.folder}: the run was not over, and has no {schema.file}; {_EXPECTED}")
        if found is None:
            raise ConfigError(
                f"{self.folder}: no {schema.file}" + (f" ({why_missing})" if why_missing else "") + f"; {_EXPECTED}"
            )
        return found

    def blocks(self, schema: schemas.Schema, columns: "Sequence[str]") -> "Iterator[pa.RecordBatch]":
        """Yield batches of some columns of a table that may exceed memory; nothing where the table does not exist.

        Args:
            schema: Columns of the table.
            columns: Names of the columns to read.
        """
        try:
            yield from table_blocks(self.folder, schema, columns, self.summary)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def _maybe(self, schema: schemas.Schema) -> "pa.Table | None":
        # columns with a `where` exist only in runs with that feature; a table without them is complete
        return self.read(schema, [field.name for field in schema.fields if not field.where])

    def read(
        self, schema: schemas.Schema, needed: "Sequence[str]", wanted_columns: "Sequence[str] | None" = None
    ) -> "pa.Table | None":
        """Read columns of a table without keeping it; None where it does not exist.

        Args:
            schema: Columns of the table.
            needed: Names of columns that the table must have.
            wanted_columns: Names of further columns, which may be absent; None = all.
        """
        try:
            return read_table(self.folder, schema, needed, wanted_columns, self.summary)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError | ValueError) -> ConfigError:
        """Return the error as one line, with the file that the system names."""
        if isinstance(error, OSError):
            return ConfigError(f"{error.filename or self.folder}: {error.strerror or error}; {_EXPECTED}")
        return ConfigError(f"{self.folder}: {' '.join(str(error).split())}; {_EXPECTED}")


CLOSED_FORM_NOTE = (
    "Closed forms send nothing over links: what links sent is told from the traces, spread over all equal ways."
)


_BUSY_COLUMNS = {"compute": "compute_ps", "communication": "exposed_ps"}  # activity of NPUs: column of npus.parquet


class RunBill(NamedTuple):
    """The energy and cost of a run."""

    usage: energy.Usage  # times, ports, steps and tokens of the run that the bill counts
    bill: energy.Bill  # energy and cost of this usage
    table: energy.EnergyTable  # energy table that holds the powers and prices
    table_from: Path | None  # path of the user's table; None for the default table alone
    notes: tuple[str, ...]  # sentences about what the bill assumes or does not count
    jobs: tuple[tuple[str, energy.Usage, energy.Bill], ...] = ()  # name, usage and bill of each of [[jobs]]

    def document(self) -> dict[str, Any]:
        """Return the bill as a JSON document."""
        totals = energy.bill_document(self.usage, self.bill)
        used = self.table.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"ranges"})
        used["gpus"] = {self.bill.gpu: used["gpus"][self.bill.gpu]}
        if self.jobs:
            totals["jobs"] = [{"job": name, **energy.bill_document(usage, costs)} for name, usage, costs in self.jobs]
        source = None if self.table_from is None else str(self.table_from)
        return totals | {"notes": list(self.notes), "table_from": source, "table": used}


def energy_of(run: Run, table: Path | None = None) -> RunBill:
    """Return the energy and cost of a run.

    Args:
        run: The run, read from its folder.
        table: Path of an energy table that replaces the one of the run file; None = that of the run file.
    """
    named = run.summary.get("config", {}).get("energy", {}).get("table")
    path = table or (Path(run.summary.get("working_folder", ".")) / named if named else None)
    rows = energy.read_table(path)
    usage, unused = _usage(run, rows)
    notes = []
    if energy.gpu_cost(rows, usage.gpu)[0] == energy.OTHER_GPU:
        which = f"the table has no GPU {usage.gpu!r}" if usage.gpu else "the run names no GPU"
        notes.append(f"{which}: power and price are those of gpus.{energy.OTHER_GPU}.")
    if "ports" in run.summary:
        notes.append(CLOSED_FORM_NOTE)
    switch_ports = usage.ports.get("switch_port")
    if switch_ports and switch_ports.number < 0.999 * switch_ports.present:
        notes.append(
            f"Switch ports: the run's share is {switch_ports.number:,.1f} of {switch_ports.present:,}, as many as its "
            "NPUs can fill; the others are left to other jobs."
        )
    if unused:
        notes.append(f"{unused:,} switches that serve no NPU and sent nothing are not counted.")
    jobs = [(name, own, energy.bill(own, rows)) for name, own in _usages_of_jobs(run, usage)]
    if jobs:
        notes.append(
            "Jobs: NPUs from start to end of the job, ports by its share of NPUs, traffic by its share of bytes."
        )
    return RunBill(usage, energy.bill(usage, rows), rows, path, tuple(notes), tuple(jobs))


def _usage(run: Run, table: energy.EnergyTable) -> tuple[energy.Usage, int]:
    """Return the usage that counts, and the number of switches that do not count."""
    npus, step = run.npus, run.summary.get("step", {})
    finish_ps = float(run.finish_time_ps)
    # While the host computes alone, the accelerator is idle.
    columns = {"compute": ("compute_ps",), "communication": ("exposed_ps",), "idle": ("idle_ps", "host_ps")}
    times = {
        name: float(sum(np.sum(numpy_column(npus[column], np.float64)) for column in parts))
        for name, parts in columns.items()
    }
    times["memory"] = finish_ps * len(npus) - sum(times.values())
    steps = int(step.get("steps", 0))
    tokens = float(step.get("tokens_per_s", 0.0)) * finish_ps / PS_PER_S
    summary = run.summary.get("ports")
    if summary:  # only runs without links have it
        ports, unused = (
            {name: energy.PortUse(**use) for name, use in summary["used"].items()},
            int(summary["unused_switches"]),
        )
    else:
        ports, unused = _ports(run) if run.has(LINKS) else ({}, 0)
    return energy.Usage(_gpu(run, table), len(npus), finish_ps, times, ports, steps, tokens), unused


def _usages_of_jobs(run: Run, whole: energy.Usage) -> list[tuple[str, energy.Usage]]:
    """Return name and usage of each job of a run of [[jobs]]; whole: usage of the run."""
    jobs = run.summary.get("jobs", [])
    if not jobs or "job" not in run.npus.column_names:
        return []
    of_npu = np.array(run.npus["job"].to_pylist(), dtype=object)
    sent = run.read(JOB_LINKS, ["job", "tx_bytes"]) if run.has(JOB_LINKS) else None
    of_row = np.array([] if sent is None else sent["job"].to_pylist(), dtype=object)
    bytes_of_row = np.zeros(0) if sent is None else numpy_column(sent["tx_bytes"], np.float64)
    usages = []
    for job in jobs:
        own, count, time_ps = of_npu == job["name"], int(job["npus"]), float(job["time_ps"])
        # ports are shared by number of NPUs, as their power hardly depends on traffic
        of_npus = count / max(len(of_npu), 1)
        of_bytes = bytes_of_row[of_row == job["name"]].sum() / max(bytes_of_row.sum(), 1) if len(of_row) else of_npus
        busy = {name: float(numpy_column(run.npus[column])[own].sum()) for name, column in _BUSY_COLUMNS.items()}
        host = float(numpy_column(run.npus["host_ps"])[own].sum())
        # idle time of the run, less that before and after the job
        waits = float(numpy_column(run.npus["idle_ps"])[own].sum()) - (whole.finish_ps - time_ps) * count
        busy["idle"] = max(waits, 0.0) + host
        busy["memory"] = max(time_ps * count - sum(busy.values()), 0.0)
        ports = {
            sort: energy.PortUse(use.number * of_npus, use.rate_bps * of_npus, use.tx_bytes * of_bytes, use.present)
            for sort, use in whole.ports.items()
        }
        step = job["step"]
        tokens = float(step.get("tokens_per_s", 0.0)) * time_ps / PS_PER_S
        usages.append(
            (job["name"], energy.Usage(whole.gpu, count, time_ps, busy, ports, int(step.get("steps", 0)), tokens))
        )
    return usages


def _gpu(run: Run, table: energy.EnergyTable) -> str:
    """Return the configured GPU, else the first of the table whose name is in the fabric's ("dgx-h100:npus=16")."""
    configured = run.summary.get("config", {}).get("compute", {}).get("gpu")
    if configured:
        return Path(configured).stem
    words = set(re.split(r"[^a-z0-9]+", str(run.summary.get("topology", "")).lower()))
    return next((name for name in table.gpus if name in words), "")


def _ports(run: Run) -> tuple[dict[str, energy.PortUse], int]:
    """Return the usage of ports by kind, and the number of switches that do not count."""
    links = run.links
    ends = [*links["src"].to_pylist(), *links["dst"].to_pylist()]
    # nodes by their names, as the table of links has them
    number = {name: place for place, name in enumerate(dict.fromkeys(ends))}
    src, dst = np.array([number[name] for name in ends], np.int64).reshape(2, -1)
    is_npu = np.array([name.startswith("npu ") for name in number], np.bool_)
    is_nvswitch = np.array([name.startswith("nvswitch") for name in number], np.bool_)
    rate_bps, sent = (numpy_column(links[column], np.float64) for column in ("rate_bps", "tx_bytes"))
    return energy.port_uses(src, dst, is_npu, is_nvswitch, rate_bps, sent)
