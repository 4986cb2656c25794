"""What the user wants for sizes: `0-64KiB/tree/ll;64KiB-4MiB/auto/ll128;4MiB-/ring/simple`.

Each part is FROM-TO/ALGORITHM/PROTOCOL, for sizes from FROM up to but without TO; a side left out is open. The first
part that fits a size counts; sizes that none fits get what the parameters algo and proto say.
"""

from typing import NamedTuple

from topologies import TopologyError
from topologies.units import parse_bytes
from workload.errors import WorkloadError

ALGORITHMS = ("auto", "ring", "tree", "nvls", "nvls-tree", "pat", "collnet-direct")
PROTOCOLS = ("auto", "ll", "ll128", "simple")


class TuningOverride(NamedTuple):
    """One part.

    Attributes:
        first_bytes: the least size.
        end_bytes: the least size that is too large; None = there is none.
        algorithm: one of ALGORITHMS.
        protocol: one of PROTOCOLS.
    """

    first_bytes: int
    end_bytes: int | None
    algorithm: str
    protocol: str

    def fits(self, size_bytes: int) -> bool:
        """Whether it is meant for a buffer of this size."""
        return self.first_bytes <= size_bytes and (self.end_bytes is None or size_bytes < self.end_bytes)


def overrides_of(text: str) -> tuple[TuningOverride, ...]:
    """All parts; none of an empty text.

    Raises:
        WorkloadError: a part that is none.
    """
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
