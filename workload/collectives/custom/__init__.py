"""Collectives that users bring: MSCCL's XML, and Chakra traces of one member each as ASTRA-sim has them.

`read_custom` makes plans of them and refuses what does not do what the kind promises. An algorithm in MSCCL's form says
which chunk goes where, so the oracle plays it; one in Chakra's form says only how many bytes:
workload.collectives.custom.chakra.
"""

import functools
from pathlib import Path

from workload.collectives.custom.chakra import chakra_files, chakra_plans
from workload.collectives.custom.export import to_msccl
from workload.collectives.custom.flow import check_races, flow_of
from workload.collectives.custom.msccl import read_msccl
from workload.collectives.plans.plan import Plans
from workload.collectives.schedules.oracle import OracleError, check
from workload.collectives.schedules.packed import pack
from workload.errors import WorkloadError
from workload.kinds import kind_index

__all__ = ["custom_files", "is_msccl", "read_custom", "to_msccl"]

_KEPT = 64
_LONGEST_REASON = 160


def is_msccl(path: Path) -> bool:
    """Whether it is one file; else it is the beginning of the names of Chakra traces."""
    return path.suffix == ".xml" or path.is_file()


def custom_files(path: Path) -> list[Path]:
    """The files of an algorithm; none if they are not there."""
    if is_msccl(path):
        return [path]
    try:
        return chakra_files(path)
    except WorkloadError:
        return []


def read_custom(path: Path, kind: str, size_bytes: int = 1) -> Plans:
    """The plans of an algorithm in a file, each file read once unless it changes.

    Args:
        path: MSCCL's XML; or P of Chakra's P.0.et, P.1.et, ..., a trace for each member.
        kind: see workload.kinds.KINDS.
        size_bytes: the whole buffer for which the messages of Chakra's form are; MSCCL's form fits all sizes.

    Raises:
        WorkloadError: no such kind; a file cannot be read or is wrong; a message without its other end, steps that wait
            for each other, chunks used by two steps at a time, or another result than the kind promises.
        et.TraceError: a trace is none.
    """
    kind_index(kind)
    if is_msccl(path):
        return _msccl(path, kind, _stamps([path]))
    files = chakra_files(path)
    return chakra_plans(path, files, _stamps(files), kind, size_bytes)


@functools.lru_cache(_KEPT)
def _msccl(path: Path, kind: str, stamps: tuple[tuple[int, int], ...]) -> Plans:  # noqa: ARG001 - a key of the cache
    plans, names = read_msccl(path, kind)
    flow = flow_of(plans, lambda member, lane, number: names[member][lane][number])
    check_races(flow, plans, lambda member, lane, number: names[member][lane][number])
    try:
        check(kind, pack([plans]), 0)
    except OracleError as error:
        reason = str(error)
        shown = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
        raise WorkloadError(f"{path}: no {kind}: {shown}") from None
    return plans


def _stamps(files: list[Path]) -> tuple[tuple[int, int], ...]:
    """When each was written and how long it is; nothing for those that cannot be read."""
    try:
        return tuple((at.st_mtime_ns, at.st_size) for at in (file.stat() for file in files))
    except OSError:
        return ()
