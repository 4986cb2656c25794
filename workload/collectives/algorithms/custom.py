"""Custom: an algorithm from the user's file, `custom:file=PATH`. See workload.collectives.custom.

PATH is MSCCL's XML, or the prefix of the names of Chakra traces, PATH.0.et, PATH.1.et, ..., one per member, whose
messages have the bytes of the traces. With `size=1MiB` those are the bytes for a buffer of this size, and they scale
with the size of the buffer.

`custom:plans=DIGEST` is an algorithm made in Python: workload.collectives.custom.python_plans.
"""

from collections.abc import Callable
from pathlib import Path

from nadi.inputs import plug_ins
from nadi.inputs.units import parse_bytes
from nadi.workload.collectives.custom import check_size as check_size_of_file
from nadi.workload.collectives.custom import is_msccl, read_custom
from nadi.workload.collectives.custom.python_plans import given
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
_MIN_STEP_BYTES = 24


def plan(kind: str, shape: GroupShape, size_bytes: int, file: str, size: str, plans: str) -> Plans:
    """Return the plans in a file, or if given, of a digest (`plans`) that python_plans.keep has made."""
    # size: buffer size for which the file is made, "" = size_bytes. Raises WorkloadError: the plans are unreadable, or
    # for another number of members.
    read_plans = given(plans) if plans else read_custom(_path(file), kind, _made_for(size_bytes, size))
    if read_plans.members != shape.members:
        label = file or f"plans {plans}"
        raise WorkloadError(
            f"{label}: {read_plans.members} members, expected {shape.members} as the group of this {kind}"
        )
    return read_plans


def extent(kind: str, shape: GroupShape, size_bytes: int, file: str, size: str, plans: str) -> PlanExtent:  # noqa: ARG001 - see plan
    """Return a bound from the size of the files: no step takes fewer bytes than a node of a trace; as `plan`."""
    if plans:
        return PlanExtent(sum(len(lane) for own in given(plans).plans for lane in own), 0, shape.members)
    path = _path(file)
    files = [path] if is_msccl(path) else path.parent.glob(f"{path.name}.*.et")
    steps = sum(trace.stat().st_size for trace in files if trace.exists()) // _MIN_STEP_BYTES
    return PlanExtent(steps, 0, shape.members)


def check_size(kind: str, size_bytes: int, file: str, size: str, plans: str) -> None:  # noqa: ARG001 - see plan
    """Raise WorkloadError if a file is not for buffers of a size."""
    if not plans:
        check_size_of_file(_path(file), kind, size_bytes)


def size_class(kind: str, shape: GroupShape, size_bytes: int, file: str, size: str, plans: str) -> int:  # noqa: ARG001 - see plan
    """Return the size for messages of fixed bytes, else 0."""
    return 0 if plans or size or is_msccl(_path(file)) else size_bytes


def with_path(algorithm: str, replace_path: Callable[[str], str]) -> str:
    """Return the text of an algorithm with its path replaced, if it is `custom:file=PATH` or FILE.py."""
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
    """Return the buffer size for which a file is made: that of a text like "1MiB", or size_bytes if it is ""."""
    if not size_text:
        return size_bytes
    try:
        made_for = parse_bytes(size_text)
    except ValueError as error:
        raise WorkloadError(f"algorithm 'custom': size is {error}") from None
    if made_for == 0:
        raise WorkloadError(f"algorithm 'custom': size is {size_text!r}, expected more than 0")
    return made_for
