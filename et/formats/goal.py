"""GOAL schedules, text: a rank for each NPU, with computations and messages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import inputs
from et.errors import TraceError
from et.goal.reading import GoalTraces
from et.goal.writing import RankWriter
from et.trace_tables import TraceTables

NAME = "goal"
TITLE = "a GOAL schedule of LogGOPSim and ATLAHS (text)"
OPTIONS = {
    "tflops": "rate of computations that have num_ops and no duration, for writing",
    "memory_gbps": "gigabytes per second of memory accesses that have no duration, for writing",
}
_NOTES = (
    "Times are nanoseconds in the file and microseconds in traces; duration_nanos keeps what is no whole microsecond.",
    "All computations of a rank share the NPU's compute lane, whatever cpu and nic the file names.",
    "Tags from 2^24 on are folded below it, the same at both ends.",
    "What irequires an operation waits for the same as that does: it starts no earlier.",
)


def recognises(path: Path) -> bool:
    """Whether it is such a file."""
    kind = inputs.kind_of(path)
    return kind is not None and kind.key in {"goal", "gzip:goal"}


def read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables:  # noqa: ARG001 - none for reading
    """The ranks of one file, each read when it is asked for.

    Raises:
        TraceError: several files, or a wrong one.
    """
    if len(paths) != 1:
        raise TraceError(f"{paths[1]}: a second file, expected one GOAL schedule")
    return TraceTables(GoalTraces(paths[0]), notes=_NOTES)


def names(traces: TraceTables, prefix: str) -> list[str]:  # noqa: ARG001 - one file for all
    """One file."""
    return [f"{prefix}.goal"]


def write(traces: TraceTables, folder: Path, prefix: str, options: Mapping[str, str]) -> None:
    """Write all ranks; NPUs without a trace have nothing to do.

    Raises:
        TraceError: a node without time, size or peer, a group that is not known, or a rate that is none.
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


def _rate(name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise TraceError(f"--to goal: {name} is {text[:40]!r}, expected a number from 0")
    return found
