"""GOAL schedules, text or binary, with a rank per NPU, made of computations and messages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.et.goal.reading import BinaryGoalFile, GoalFile
from nadi.et.goal.writing import RankWriter
from nadi.et.table import LazyTraces, TraceTables

TITLE = "a GOAL schedule of LogGOPSim and ATLAHS (text or binary)"
OPTIONS = {
    "tflops": "TFLOP/s of computations that have num_ops and no duration, for writing",
    "memory_gbps": "GB/s of memory accesses that have no duration, for writing",
}
_NOTES = (
    "Times are nanoseconds in the file and microseconds in traces; duration_nanos keeps times with fractions of one.",
    "All computations of a rank share the NPU's compute lane; the file's cpu and nic are kept as attributes.",
    "Tags from 2^24 on are mapped to smaller ones, equally at both ends.",
    "An operation with irequires waits for the parents of the named one, so that it starts no earlier.",
)


def recognises(path: Path) -> bool:
    """Return whether the path is a GOAL schedule, gzipped or not.

    Args:
        path: The path of a file or folder.
    """
    return _kind(path) in {"goal", "goal-binary"}


def read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables:  # noqa: ARG001 - none for reading
    """Return the ranks of one file, each read on demand.

    Args:
        paths: The files or folders that the user gives.
        options: The values of the format's options by name.
    """
    if len(paths) != 1:
        raise TraceError(f"{paths[1]}: a second file, expected one GOAL schedule")
    file = BinaryGoalFile(paths[0]) if _kind(paths[0]) == "goal-binary" else GoalFile(paths[0])
    return TraceTables(LazyTraces(range(file.ranks), file.table), notes=_NOTES)


def names(traces: TraceTables, prefix: str) -> list[str]:  # noqa: ARG001 - one file for all
    """Return the name of the only file.

    Args:
        traces: The traces by NPU, with their groups.
        prefix: The beginning of the files' names.
    """
    return [f"{prefix}.goal"]


def write(traces: TraceTables, folder: Path, prefix: str, options: Mapping[str, str]) -> None:
    """Write all ranks, also without traces, to PREFIX.goal in a folder.

    Args:
        traces: The traces by NPU, with their groups.
        folder: The folder of the files.
        prefix: The beginning of the files' names.
        options: The values of options by name: rates of work without a duration.
    """
    rates = [_rate(name, options.get(name, "0")) for name in OPTIONS]
    ranks = max(traces.tables, default=-1) + 1
    own = set(traces.tables)
    with (folder / f"{prefix}.goal").open("w", encoding="utf-8") as file:
        file.write(f"num_ranks {ranks}\n\n")
        for rank in range(ranks):
            if rank in own:
                file.writelines(RankWriter(traces.tables[rank], rank, ranks, traces.groups, *rates).lines())
            else:
                file.write(f"rank {rank} {{\n}}\n")


def _kind(path: Path) -> str:
    """Return the key of the kind of a file, whether it is gzipped or not."""
    kind = inputs.kind_of(path)
    return kind.key.removeprefix("gzip:") if kind else ""


def _rate(option: str, text: str) -> float:
    """Return the value of an option as a number from 0; raise TraceError if it is not."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise TraceError(f"--to goal: {option} is {text[:40]!r}, expected a number from 0")
    return found
