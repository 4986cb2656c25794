"""NVIDIA's measurements of NCCL (package aiconfigurator-core), beside Nadi's times: groups of scripts/validation.py.

A table holds 80 rows: four kinds of collectives in 20 sizes from 1 KiB to 512 MiB, in half precision, by the newest
NCCL of the system's folder. The package's `message_size` is the number of elements of nccl-tests' size, the whole
buffer (its collector, ai-dynamo/aiconfigurator collector/collect_nccl.py, divides the bytes by the element's size; int8
and half have equal times at equal bytes). Times are those of operations in a row, out of place, from one process with
a thread per GPU.

A row is marked if a larger buffer of the same kind takes less than 1 / MARKED of its time: more bytes never take less
in NCCL but where it changes its protocol, and never so much less.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from packaging.version import Version

from nadi.configuration.run_file import collective_config
from nadi.simulation.assembly.reading import WorkReader
from nadi.studies.collectives.measuring import CollectiveCase
from nadi.workload.compute.nvidia import folder

KINDS = {"all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter"}
KINDS["all-to-all"] = "alltoall"
SIZES = tuple(1 << exponent for exponent in range(10, 30))
MARKED = 1.2
_BYTES_PER_ELEMENT = 2  # of half precision


class NcclTable(NamedTuple):
    """The measurements of one system with one number of GPUs."""

    system: str  # folder of the package
    machine: str  # topology of Nadi
    gpus: int  # number of GPUs
    status: str  # of all rows, one of nadi.validation.STATUSES

    @property
    def topology(self) -> str:
        """The table's GPUs as a topology."""
        return f"{self.machine}:npus={self.gpus}"

    @property
    def title(self) -> str:
        """The table's heading."""
        return f"{self.machine}, {self.gpus} GPUs"

    def version(self) -> str:
        """Return the newest measured version of NCCL; "" without the package."""
        path = self._folder()
        return max((each.name for each in path.iterdir()), key=Version) if path and path.is_dir() else ""

    def predicted_us(self) -> list[float]:
        """Return Nadi's times in microseconds by closed form, in the order of `KINDS` and `SIZES`."""
        return closed_forms_us([(self.topology, *of_row, "") for of_row in every_row()])

    def measured_us(self) -> list[float]:
        """Return the measured times in microseconds, in the order of `KINDS` and `SIZES`."""
        path = self._folder()
        if path is None:
            raise FileNotFoundError("the package aiconfigurator-core is not installed")
        rows = pq.read_table(
            path / self.version() / "nccl_perf.parquet",
            columns=["op_name", "message_size", "latency"],
            filters=[("nccl_dtype", "=", "half"), ("num_gpus", "=", self.gpus)],
        ).to_pylist()
        us = {(row["op_name"], row["message_size"] * _BYTES_PER_ELEMENT): 1e3 * row["latency"] for row in rows}
        return [us[name, size_bytes] for name in KINDS.values() for size_bytes in SIZES]

    def _folder(self) -> Path | None:
        root = folder()
        return root / self.system / "comm" / "nccl" if root else None


def every_row() -> list[tuple[str, int]]:
    """Return kind and size in bytes of each row of a table."""
    return [(kind, size_bytes) for kind in KINDS for size_bytes in SIZES]


def closed_forms_us(of_rows: Sequence[tuple[str, str, int, str]]) -> list[float]:
    """Return the times of NCCL's collectives of all NPUs in microseconds, by closed form.

    Args:
        of_rows: The topology, the kind, the size in bytes and the algorithm with its parameters ("" = the fabric's
            default) of each row; rows of a topology follow each other.
    """
    times_us = []
    for topology, of_topology in groupby(of_rows, itemgetter(0)):
        reader = WorkReader.of(collective_config(topology, []), force=True)
        graph, collectives, settings = reader.graph, reader.collective_settings(), reader.fitted_settings(records=False)
        for _, kind, size_bytes, named in of_topology:
            case = CollectiveCase(kind, None, collectives)
            algorithm = case.with_parameters(named or case.default(graph))
            program = case.program(graph, algorithm, size_bytes)
            times_us.append(case.closed_form(graph, program, settings, algorithm).time_ps / 1e6)
    return times_us


def marked(measured_us: Sequence[float]) -> list[bool]:
    """Return bool per row of a table: whether it takes far longer than a larger buffer of the same collective.

    Args:
        measured_us: The measured times in microseconds, a row per size.
    """
    of_kind = [measured_us[first : first + len(SIZES)] for first in range(0, len(measured_us), len(SIZES))]
    return [us > MARKED * min(times[place:]) for times in of_kind for place, us in enumerate(times)]


def rows(tables: Sequence[NcclTable], published_us: Sequence[float]) -> list[dict[str, Any]]:
    """Return the rows of tables as those of a group of published_figures.toml; none for what has not been measured.

    Args:
        tables: The tables in the order of the rows.
        published_us: The measured times in microseconds of all rows.
    """
    named = [
        {"what": f"{table.machine}, {table.gpus} GPUs, {kind}, {shown(size)}", "status": table.status}
        for table in tables
        for kind, size in every_row()
    ]
    return [{**row, "published": us} for row, us in zip(named, published_us, strict=False)]


def shown(size_bytes: int) -> str:
    """Return a size in KiB or MiB.

    Args:
        size_bytes: The size in bytes.
    """
    return f"{size_bytes >> 10} KiB" if size_bytes < 1 << 20 else f"{size_bytes >> 20} MiB"


def lines(table: NcclTable, status: str, predicted_us: Sequence[float], measured_us: Sequence[float]) -> list[str]:
    """Return the table as Markdown, a row per size: predicted time, measured time (if known) and error of each kind.

    Args:
        table: The table of NCCL's measured times.
        status: The status of its rows.
        predicted_us: The predicted times in microseconds, in the order of the rows.
        measured_us: The measured times in microseconds, in the order of the rows.
    """
    marks = marked(measured_us) if measured_us else [False] * len(predicted_us)

    def cell(row: int) -> str:
        """Return the text of a row's times in us."""
        if not measured_us:
            return f"{predicted_us[row]:.4g}"
        error = predicted_us[row] / measured_us[row] - 1
        return f"{predicted_us[row]:.4g} / {measured_us[row]:.4g}{'*' if marks[row] else ''} ({error:+.0%})"

    rows = [
        f"| {shown(size)} | {' | '.join(cell(kind * len(SIZES) + place) for kind in range(len(KINDS)))} |"
        for place, size in enumerate(SIZES)
    ]
    means = []
    if measured_us:
        errors = np.abs(np.array(predicted_us) / np.array(measured_us) - 1).reshape(len(KINDS), -1)
        unmarked = ~np.array(marks)
        means = [f"| mean, worst | {' | '.join(f'{kind.mean():.1%}, {kind.max():.0%}' for kind in errors)} |"]
        own = errors.reshape(-1)
        summary = f"All rows: mean {own.mean():.1%}, worst {own.max():.0%}; without the {sum(marks)} marked: "
        means += ["", f"{summary}mean {own[unmarked].mean():.1%}, worst {own[unmarked].max():.0%}."]
    return [
        f"\n### {table.title}: {status}\n",
        f"| size | {' | '.join(KINDS)} |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        *means,
    ]
