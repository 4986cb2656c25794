"""Custom: an algorithm from the user's file, `custom:file=PATH`. See workload.collectives.custom.

PATH is MSCCL's XML, or the prefix of the names of Chakra traces, PATH.0.et, PATH.1.et, ..., one per member, whose
messages have the bytes of the traces. With `size=1MiB` those are the bytes for a buffer of this size, and they scale
with the size of the buffer.

`custom:plans=DIGEST` is an algorithm made in Python: workload.collectives.custom.
"""

from collections.abc import Callable
from pathlib import Path

from nadi.inputs import plug_ins
from nadi.inputs.units import parse_bytes
from nadi.workload.collectives import custom
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import KINDS as ALL_KINDS
from nadi.workload.shape import GroupShape

NAME = "custom"
KINDS = tuple(kind for kind in ALL_KINDS if kind != "barrier")
PARAMETERS = {"file": "", "size": "", "plans": ""}
NEEDS_SHAPE = True
OWN_CONNECTIONS = True
NAMED_ONLY = True
READS_FILES = True
_MIN_STEP_BYTES = 24


def plan(kind: str, shape: GroupShape, size_bytes: int, file: str, size: str, plans: str) -> Plans:
    """Return the plans in a file, or those made in Python.

    Raises WorkloadError: the plans are unreadable, or for another number of members.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        file: The path of an MSCCL file or the prefix of Chakra traces; "" if `plans` is given.
        size: The buffer size that the file fits, as a text with a unit ("1MiB"); "" = the buffer's own size.
        plans: The digest under which `custom.keep` keeps plans made in Python; "" = a file.
    """
    read_plans = custom.given(plans) if plans else custom.read_custom(_path(file), kind, _made_for(size_bytes, size))
    if read_plans.members != shape.members:
        label = file or f"plans {plans}"
        raise WorkloadError(
            f"{label}: {read_plans.members} members, expected {shape.members} as the group of this {kind}"
        )
    return read_plans


def extent(kind: str, shape: GroupShape, size_bytes: int, file: str, size: str, plans: str) -> PlanExtent:  # noqa: ARG001 - see plan
    """Return a bound of the steps from the size of the files, as no step takes fewer bytes than a node of a trace.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        file: The path of an MSCCL file or the prefix of Chakra traces; "" if `plans` is given.
        size: The buffer size that the file fits, as a text with a unit ("1MiB"); "" = the buffer's own size.
        plans: The digest under which `custom.keep` keeps plans made in Python; "" = a file.
    """
    if plans:
        return PlanExtent(sum(len(lane) for own in custom.given(plans).plans for lane in own), 0, shape.members)
    path = _path(file)
    files = [path] if custom.is_msccl(path) else path.parent.glob(f"{path.name}.*.et")
    # A missing file is reported by `plan`, with a better message than a bound could give
    steps = sum(trace.stat().st_size for trace in files if trace.exists()) // _MIN_STEP_BYTES
    return PlanExtent(steps, 0, shape.members)


def protocol(kind: str, file: str, size: str, plans: str) -> str:  # noqa: ARG001 - see plan
    """Return the protocol whose bytes the plans have; "" = none.

    Args:
        kind: The kind of collective, one of KINDS.
        file: The path of an MSCCL file or the prefix of Chakra traces; "" if `plans` is given.
        size: The buffer size that the file fits, as a text with a unit ("1MiB"); "" = the buffer's own size.
        plans: The digest under which `custom.keep` keeps plans made in Python; "" = a file.
    """
    if plans:
        return custom.given(plans).protocol
    return custom.read_custom(_path(file), kind).protocol if custom.is_msccl(_path(file)) else custom.BYTES_OF_TRACES


def check_size(kind: str, size_bytes: int, file: str, size: str, plans: str) -> None:  # noqa: ARG001 - see plan
    """Raise WorkloadError if the user's file does not take buffers of this size.

    Args:
        kind: The kind of collective, one of KINDS.
        size_bytes: The size of the whole buffer S in bytes.
        file: The path of an MSCCL file or the prefix of Chakra traces; "" if `plans` is given.
        size: The buffer size that the file fits, as a text with a unit ("1MiB"); "" = the buffer's own size.
        plans: The digest under which `custom.keep` keeps plans made in Python; "" = a file.
    """
    if not plans:
        custom.check_size(_path(file), kind, size_bytes)


def size_class(kind: str, shape: GroupShape, size_bytes: int, file: str, size: str, plans: str) -> int:  # noqa: ARG001 - see plan
    """Return the buffer size if messages have the fixed bytes of traces, so that each size has its own plans; else 0.

    Args:
        kind: The kind of collective, one of KINDS.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer S in bytes.
        file: The path of an MSCCL file or the prefix of Chakra traces; "" if `plans` is given.
        size: The buffer size that the file fits, as a text with a unit ("1MiB"); "" = the buffer's own size.
        plans: The digest under which `custom.keep` keeps plans made in Python; "" = a file.
    """
    # MSCCL's chunks are fractions of the buffer, and so are messages with `size=`: one plan serves all sizes
    return 0 if plans or size or custom.is_msccl(_path(file)) else size_bytes


def with_path(algorithm: str, replace_path: Callable[[str], str]) -> str:
    """Return the name of an algorithm with the path in it replaced; names without a path stay as they are.

    Args:
        algorithm: The algorithm as users write it, such as `custom:file=PATH`, FILE.py or `ring:channels=4`.
        replace_path: A function that gets the path in the name and returns the path to put in its place.
    """
    # A relative path in a run file counts from the file's folder: callers replace it before the algorithm reads it
    name, colon, rest = algorithm.partition(":")
    if name.strip() != NAME:
        return plug_ins.with_path("collective algorithm", algorithm, replace_path)
    parts = [part.partition("=") for part in rest.split(",")]
    changed = [
        f"file={replace_path(value.strip())}" if key.strip() == "file" and value.strip() else key + equals + value
        for key, equals, value in parts
    ]
    return name + colon + ",".join(changed)


def _path(file_path: str) -> Path:
    """Return the path that a user gives; WorkloadError if it is ""."""
    if not file_path:
        raise WorkloadError("algorithm 'custom': no file, expected custom:file=PATH")
    return Path(file_path)


def _made_for(size_bytes: int, size_text: str) -> int:
    """Return the buffer size that a file fits: that of a text like "1MiB", or size_bytes if it is ""."""
    if not size_text:
        return size_bytes
    try:
        made_for = parse_bytes(size_text)
    except ValueError as error:
        raise WorkloadError(f"algorithm 'custom': size is {error}") from None
    if made_for == 0:
        raise WorkloadError(f"algorithm 'custom': size is {size_text!r}, expected more than 0")
    return made_for
