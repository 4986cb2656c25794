"""The user's algorithm and protocol by size: `0-64KiB/tree/ll;64KiB-4MiB/auto/ll128;4MiB-/ring/simple`.

Each part is FROM-TO/ALGORITHM/PROTOCOL, for sizes from FROM up to, but not including, TO; an empty bound is open. The
first part that contains the size applies; for other sizes the parameters algo and proto apply.
"""

from typing import NamedTuple

from topologies import TopologyError
from topologies.units import parse_bytes
from workload.errors import WorkloadError

ALGORITHMS = ("auto", "ring", "tree", "nvls", "nvls-tree", "pat", "collnet-direct")
PROTOCOLS = ("auto", "ll", "ll128", "simple")


class TuningOverride(NamedTuple):
    """One part."""

    first_bytes: int  # minimum size of a buffer
    end_bytes: int | None  # smallest size above the range; None = no upper bound
    algorithm: str  # one of ALGORITHMS
    protocol: str  # one of PROTOCOLS

    def fits(self, size_bytes: int) -> bool:
        """Return whether the part applies to a buffer of this size."""
        return self.first_bytes <= size_bytes and (self.end_bytes is None or size_bytes < self.end_bytes)


def overrides_of(text: str) -> tuple[TuningOverride, ...]:
    """Return all parts; none for an empty text. Raises WorkloadError: an invalid part."""
    return tuple(_part(part.strip()) for part in text.split(";")) if text.strip() else ()


def _part(text: str) -> TuningOverride:
    sizes, *names = (word.strip() for word in text.split("/"))
    first, dash, end = (word.strip() for word in sizes.partition("-"))
    if not dash or len(names) != 2 or names[0] not in ALGORITHMS or names[1] not in PROTOCOLS:
        choices = f"{'|'.join(ALGORITHMS)}/{'|'.join(PROTOCOLS)}"
        raise WorkloadError(f"algorithm nccl: overrides has {text!r}, expected FROM-TO/{choices}")
    try:
        bounds = parse_bytes(first) if first else 0, parse_bytes(end) if end else None
    except TopologyError as error:
        raise WorkloadError(f"algorithm nccl: overrides has {text!r}: {error}") from None
    if bounds[1] is not None and bounds[1] <= bounds[0]:
        raise WorkloadError(f"algorithm nccl: overrides has {text!r}, expected FROM below TO")
    return TuningOverride(*bounds, *names)
