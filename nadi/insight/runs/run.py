"""A finished run as its folder has it: the summary, the tables, and the fabric and the program built again."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from inputs.units import PS_PER_MS
from nadi.configuration.sections import RunConfig
from nadi.errors import ConfigError
from nadi.simulation.schemas import (
    COLLECTIVES,
    FLOWS,
    LINKS,
    MARKS,
    NODES,
    NPUS,
    PAUSES,
    QUEUES,
    STEPS,
    WORKERS,
    Schema,
)
from nadi.simulation.wiring.earlier_run import read_summary, read_table, table_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from nadi.simulation.wiring.reading import LoadedWorkload
    from topologies import Graph

_EXPECTED = "expected results of `nadi run --out`"


class Run:
    """A folder of `nadi run --out DIR`.

    Tables are read when they are asked for, and kept. Each has the columns of docs/reference/results.md; `to_pandas()`
    of a table returns a DataFrame (pandas is an extra).

    Attributes:
        folder: where it stands.
        summary: what summary.json holds.
    """

    def __init__(self, folder: str | Path, *, config: RunConfig | None = None) -> None:
        """Open a folder.

        Args:
            folder: of the results.
            config: what was simulated, if this process did, with fabric and traces that no file holds.

        Raises:
            ConfigError: no folder of results, or one that cannot be read.
        """
        self.folder = Path(folder)
        self._simulated = config
        try:
            self.summary: dict[str, Any] = read_summary(self.folder)
        except OSError as error:
            raise ConfigError(f"{error.filename or folder}: {error.strerror or error}; {_EXPECTED}") from None
        except ValueError as error:
            raise ConfigError(f"{folder}: {error}; {_EXPECTED}") from None

    def __repr__(self) -> str:
        return (
            f"Run({str(self.folder)!r}: {self.summary.get('npus', 0):,} NPUs on {self.summary.get('topology')}, "
            f"{self.finish_time_ps / PS_PER_MS:,.6g} ms simulated)"
        )

    @property
    def finish_time_ps(self) -> int:
        """When the last thing was done."""
        return int(self.summary.get("finish_time_ps", 0))

    @property
    def digest(self) -> str:
        """Of all that happened: equal digests, equal runs."""
        return str(self.summary.get("digest", ""))

    @property
    def warnings(self) -> list[str]:
        """What the run leaves out or cannot mean."""
        return list(self.summary.get("warnings", []))

    @cached_property
    def nodes(self) -> "pa.Table":
        """A row for each trace node of each NPU."""
        return self._table(NODES, '[output] nodes = "none" leaves it out')

    @cached_property
    def flows(self) -> "pa.Table":
        """A row for each message."""
        return self._table(FLOWS, '[output] flows = "none" leaves it out')

    @cached_property
    def links(self) -> "pa.Table":
        """A row for each direction of a cable."""
        return self._table(LINKS)

    @cached_property
    def collectives(self) -> "pa.Table":
        """A row for each collective of a group."""
        return self._table(COLLECTIVES)

    @cached_property
    def npus(self) -> "pa.Table":
        """A row for each NPU."""
        return self._table(NPUS)

    @cached_property
    def steps(self) -> "pa.Table | None":
        """A row for each NPU: where its time went by axis of parallelism; None where no name tells."""
        return self._maybe(STEPS)

    @cached_property
    def queues(self) -> "pa.Table | None":
        """What waited in shared buffers over time; None where nothing did."""
        return self._maybe(QUEUES)

    @cached_property
    def marks(self) -> "pa.Table | None":
        """Packets that ports marked over time (ECN); None where there were none."""
        return self._maybe(MARKS)

    @cached_property
    def pauses(self) -> "pa.Table | None":
        """Pauses and resumes; None where there were none."""
        return self._maybe(PAUSES)

    @cached_property
    def workers(self) -> "pa.Table | None":
        """What each worker of the simulation did and how long it waited; None where that was not recorded."""
        return self._maybe(WORKERS)

    def has(self, schema: Schema) -> bool:
        """Whether the folder has this table."""
        return (self.folder / schema.file).is_file()

    @cached_property
    def config(self) -> RunConfig:
        """The settled configuration; its relative paths are from the folder in which the run was started.

        Fabric and traces that Python gave are words in it, unless this Run is the one that `nadi.simulate` gave.

        Raises:
            ConfigError: summary.json holds none that this version can read.
        """
        from nadi.configuration.run_file import explain, with_paths_from

        if self._simulated is not None:
            return self._simulated
        try:
            config = RunConfig.model_validate(self.summary.get("config", {}))
        except ValidationError as error:
            raise ConfigError(f"{self.folder / 'summary.json'}: {explain(error, RunConfig)}") from None
        return with_paths_from(config, Path(self.summary.get("working_folder", ".")))

    @cached_property
    def graph(self) -> "Graph":
        """The fabric, built again.

        Raises:
            TopologyError, ConfigError: it cannot be built, as a file that it names has gone; or it is another one now.
        """
        from nadi.simulation.wiring.building import built_fabric

        graph = built_fabric(self.config)
        if graph.links != self.summary.get("links"):
            raise ConfigError(
                f"{self.folder}: the run had {self.summary.get('links')} links, {graph.name} has {graph.links} now"
            )
        return graph

    @cached_property
    def work(self) -> "LoadedWorkload":
        """Traces and what the NPUs did with them, made again; row r of an NPU is that of `nodes`.

        Raises:
            TraceError, WorkloadError, ConfigError: the traces have gone, or are others now.
        """
        from nadi.simulation.wiring.reading import read_work

        work = read_work(self.config, self.graph, force=True)
        program = work.program
        rows = int(np.diff(program.trace_ptr)[program.trace_of_npu].sum())
        if self.has(NODES) and "like" not in self.npus.column_names and len(self.nodes) != rows:
            had = f"the run had {len(self.nodes):,} trace nodes"
            raise ConfigError(f"{self.folder}: {had}, its traces have {rows:,} now")
        return work

    def _table(self, schema: Schema, why: str = "") -> "pa.Table":
        found = self._maybe(schema)
        if found is None:
            raise ConfigError(f"{self.folder}: no {schema.file}" + (f" ({why})" if why else "") + f"; {_EXPECTED}")
        return found

    def blocks(self, schema: Schema, columns: "Sequence[str]") -> "Iterator[pa.RecordBatch]":
        """Some columns of a table, block by block, for tables that need not be in memory; nothing where there is none.

        Raises:
            ConfigError: the table cannot be read.
        """
        try:
            yield from table_blocks(self.folder, schema, columns, self.summary)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def _maybe(self, schema: Schema) -> "pa.Table | None":
        needed = [field.name for field in schema.fields if not field.where]
        try:
            return read_table(self.folder, schema, needed, counts=self.summary)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError | ValueError) -> ConfigError:
        """In one line, with the file that was looked for where the system names it."""
        if isinstance(error, OSError):
            return ConfigError(f"{error.filename or self.folder}: {error.strerror or error}; {_EXPECTED}")
        return ConfigError(f"{self.folder}: {' '.join(str(error).split())}; {_EXPECTED}")
