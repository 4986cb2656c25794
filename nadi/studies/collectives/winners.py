"""The fastest algorithm of a collective by size."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class TimedCollective(Protocol):
    """A collective with its time, such as nadi.studies.collectives.microbench.SweepRow."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""

    @property
    def bytes(self) -> int:
        """Size of the whole buffer in bytes."""

    @property
    def time_ps(self) -> int:
        """Time of the collective in ps."""


class Band(NamedTuple):
    """Consecutive sizes with the same fastest algorithm."""

    algorithm: str  # name of the fastest algorithm
    from_bytes: int  # smallest size in bytes
    to_bytes: int  # largest size in bytes
    # minimum over the sizes of the second-best time divided by the best; None without a second algorithm
    least_lead: float | None
    most_lead: float | None  # maximum of the same ratio


def winners(rows: Sequence[TimedCollective]) -> list[Band]:
    """Return the bands from the smallest size to the largest; a tie keeps the winner of the size before."""
    rows_by_size: dict[int, list[TimedCollective]] = {}
    for row in rows:
        rows_by_size.setdefault(row.bytes, []).append(row)
    bands: list[Band] = []
    for size, timed in sorted(rows_by_size.items()):
        last = bands[-1].algorithm if bands else ""
        by_time = sorted((row.time_ps, row.algorithm != last, row.algorithm) for row in timed)
        first_ps, _, algorithm = by_time[0]
        lead = None
        if len(by_time) > 1:
            lead = by_time[1][0] / first_ps if first_ps > 0 else 1.0
        if algorithm != last:
            bands.append(Band(algorithm, size, size, lead, lead))
            continue
        leads = [each for each in (bands[-1].least_lead, bands[-1].most_lead, lead) if each is not None]
        minimum, maximum = min(leads, default=None), max(leads, default=None)
        bands[-1] = bands[-1]._replace(to_bytes=size, least_lead=minimum, most_lead=maximum)
    return bands
