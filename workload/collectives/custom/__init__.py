"""Collectives that users supply: MSCCL's XML, plans of MSCCL++, or Chakra traces with one member each, as in ASTRA-sim.

`read_custom` turns them into plans and refuses plans that do not do what the kind promises. An algorithm in MSCCL's
format names the chunk of every message, so the oracle can run it; one in Chakra's format gives only numbers of bytes:
workload.collectives.custom.chakra.
"""

import functools
import hashlib
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.workload.collectives.custom.chakra import BYTES_OF_TRACES, chakra_files, chakra_plans
from nadi.workload.collectives.custom.export import check_races, check_result, flow_of, to_msccl
from nadi.workload.collectives.custom.msccl import read_msccl
from nadi.workload.collectives.custom.mscclpp import read_mscclpp
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import kind_index

# Algorithms that are Python objects, not files: `custom:plans=DIGEST`, where the digest is that of the plans.
#
# Run files and results hold algorithms as text. Plans made in Python are therefore kept here under a digest of all
# their contents: equal plans have equal names, and a name never refers to other plans.

MAX_KEPT = 256  # number of plans that are kept, the most recent ones; a search over algorithms must not fill the memory

_kept: "OrderedDict[str, Plans]" = OrderedDict()
_checked: dict[tuple[str, str], None] = {}


def keep(plans: Plans, kind: str) -> str:
    """Check plans made in Python, keep them, and return their name in run files: "custom:plans=<digest>".

    The name is valid in this process and its forks. Raises WorkloadError: unknown kind; or the plans do something else,
    have unmatched messages, wait for each other, or use a chunk twice at a time.

    Args:
        plans: The plans of all members.
        kind: The kind of collective, one of workload.KINDS.
    """
    kind_index(kind)
    digest = _digest(plans)
    if (digest, kind) not in _checked:
        if not plans.relative:
            check_races(flow_of(plans, _name), plans, _name)
        check_result(plans, kind, f"plans of {plans.members} members")
        _checked[digest, kind] = None
    _kept[digest] = plans
    _kept.move_to_end(digest)
    while len(_kept) > MAX_KEPT:
        _kept.popitem(last=False)
    return f"custom:plans={digest}"


def given(digest: str) -> Plans:
    """Return the plans of a digest. Raises WorkloadError: this process has no such plans.

    Args:
        digest: The digest in the name that `keep` has returned.
    """
    if digest not in _kept:
        raise WorkloadError(f"algorithm 'custom': plans {digest!r} were made in Python, and only that process has them")
    return _kept[digest]


def _name(member: int, lane: int, number: int) -> str:
    return f"plans: member {member}, lane {lane}, step {number}"


def _digest(plans: Plans) -> str:
    """Return a digest of all contents of plans."""
    digest = hashlib.blake2b(digest_size=12)
    numbers = (
        plans.members,
        plans.chunks,
        plans.relative,
        plans.regions,
        plans.launch_ps,
        plans.aggregators,
        plans.protocol,
    )
    lanes = [[[tuple(step) for step in lane] for lane in own] for own in plans.plans]
    views = [(view.size, view.member.tolist(), view.part.tolist(), view.parts) for view in plans.views]
    attributes = [tuple(plans.attributes_of(plan)) for plan in range(len(plans.plans))]
    arrangements = [order.tolist() for order in plans.arrangements]
    digest.update(repr((numbers, plans.uneven, lanes, attributes, views, arrangements)).encode())
    return digest.hexdigest()


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
