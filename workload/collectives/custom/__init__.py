"""Collectives that users supply: MSCCL's XML, plans of MSCCL++, or Chakra traces with one member each, as in ASTRA-sim.

`read_custom` turns them into plans and refuses plans that do not do what the kind promises. An algorithm in MSCCL's
format names the chunk of every message, so the oracle can run it; one in Chakra's format gives only numbers of bytes:
workload.collectives.custom.chakra.
"""

import functools
from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.workload.collectives.custom.chakra import chakra_files, chakra_plans
from nadi.workload.collectives.custom.export import check_races, check_result, flow_of, to_msccl
from nadi.workload.collectives.custom.msccl import read_msccl
from nadi.workload.collectives.custom.mscclpp import read_mscclpp
from nadi.workload.collectives.custom.python_plans import keep
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import kind_index

_KEPT = 64


class _MscclFile(NamedTuple):
    """The checked plans of a file, and the range of buffers that it fits."""

    plans: Plans
    sizes_bytes: tuple[int, int] | None  # smallest and largest buffer; None = any


def is_msccl(path: Path) -> bool:
    """Return whether the path is a file of MSCCL or MSCCL++; else it is the prefix of the names of Chakra traces.

    Args:
        path: The path of a file, or the prefix of the names of Chakra traces.
    """
    return path.suffix == ".xml" or path.is_file()


def custom_files(prefix: Path) -> list[Path]:
    """Return the files of an algorithm: MSCCL's XML, or P.0.et, ... of a prefix P; none if they do not exist.

    Args:
        prefix: The path of a file of MSCCL or MSCCL++, or the prefix P of P.0.et, P.1.et, ...
    """
    if is_msccl(prefix):
        return [prefix]
    try:
        return chakra_files(prefix)
    except WorkloadError:
        return []


def read_custom(path: Path, kind: str, size_bytes: int = 1) -> Plans:
    """Return the plans of an algorithm in a file; each file is read once unless it changes.

    Raises WorkloadError: unknown kind; an unreadable or invalid file; a message without its other end, a cycle of
    steps, parallel use of a chunk, or a result other than the kind promises; et.TraceError: not a trace.

    Args:
        path: The path of a file of MSCCL or MSCCL++; or the prefix P of Chakra traces P.0.et, P.1.et, ..., one per
            member.
        kind: The kind of collective, one of workload.KINDS.
        size_bytes: The size in bytes of the whole buffer to which the messages of Chakra traces belong; other formats
            fit all sizes.
    """
    kind_index(kind)
    if is_msccl(path):
        return _msccl(path, kind, _stamps([path])).plans
    files = chakra_files(path)
    return chakra_plans(path, tuple(files), _stamps(files), kind, size_bytes)


def check_size(path: Path, kind: str, size_bytes: int) -> None:
    """Raise WorkloadError if a file of MSCCL++ is not for buffers of a size, as MSCCL++'s executor does.

    Args:
        path: The path of a file, or the prefix of the names of Chakra traces, which fit all sizes.
        kind: The kind of collective, one of workload.KINDS.
        size_bytes: The size of the whole buffer in bytes.
    """
    sizes_bytes = _msccl(path, kind, _stamps([path])).sizes_bytes if is_msccl(path) else None
    if sizes_bytes and not sizes_bytes[0] <= size_bytes <= sizes_bytes[1]:
        raise WorkloadError(
            f"{path}: {kind} of {size_bytes} B, expected min_message_size {sizes_bytes[0]} B "
            f"to max_message_size {sizes_bytes[1]} B"
        )


@functools.lru_cache(_KEPT)
def _msccl(path: Path, kind: str, stamps: tuple[tuple[int, int], ...]) -> _MscclFile:  # noqa: ARG001 - a key of the cache
    """Return the checked plans of MSCCL's XML or MSCCL++ for a kind; stamps: changes when the file does."""
    kind_of_file = inputs.kind_of(path)
    is_plan = kind_of_file is not None and kind_of_file.key in {"mscclpp", "json"}
    plans, names, sizes_bytes = read_mscclpp(path, kind) if is_plan else (*read_msccl(path, kind), None)

    def name(member: int, lane: int, number: int) -> str:
        """Return the name of a step, by `member`, `lane` and `number` of the step in the lane."""
        return names[member][lane][number]

    check_races(flow_of(plans, name), plans, name)
    check_result(plans, kind, str(path))
    return _MscclFile(plans, sizes_bytes)


def _stamps(files: list[Path]) -> tuple[tuple[int, int], ...]:
    """Return the modification time and size of each file; () if a file cannot be read."""
    try:
        return tuple((status.st_mtime_ns, status.st_size) for status in (file.stat() for file in files))
    except OSError:
        return ()
