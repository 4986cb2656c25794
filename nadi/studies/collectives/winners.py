"""Which algorithm of a collective is fastest at which sizes."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class TimedCollective(Protocol):
    """A collective and how long it took, see nadi.studies.collectives.microbench.SweepRow."""

    @property
    def algorithm(self) -> str:
        """Its name."""

    @property
    def bytes(self) -> int:
        """Of the whole buffer."""

    @property
    def time_ps(self) -> int:
        """How long it took."""


class Band(NamedTuple):
    """Neighbouring sizes at which one algorithm is fastest.

    Attributes:
        algorithm: its name.
        from_bytes: least size.
        to_bytes: largest size.
        least_lead: time of the next best over its own, the least of these sizes; None where it is alone.
        most_lead: the same, the most.
    """

    algorithm: str
    from_bytes: int
    to_bytes: int
    least_lead: float | None
    most_lead: float | None


def winners(rows: Sequence[TimedCollective]) -> list[Band]:
    """Bands from the least size to the largest. Where several are equally fast, the winner of the size before stays."""
    of_size: dict[int, list[TimedCollective]] = {}
    for row in rows:
        of_size.setdefault(row.bytes, []).append(row)
    bands: list[Band] = []
    for size, alike in sorted(of_size.items()):
        last = bands[-1].algorithm if bands else ""
        by_time = sorted((row.time_ps, row.algorithm != last, row.algorithm) for row in alike)
        first_ps, _, algorithm = by_time[0]
        lead = None
        if len(by_time) > 1:
            lead = by_time[1][0] / first_ps if first_ps > 0 else 1.0
        if algorithm != last:
            bands.append(Band(algorithm, size, size, lead, lead))
            continue
        leads = [each for each in (bands[-1].least_lead, bands[-1].most_lead, lead) if each is not None]
        least, most = min(leads, default=None), max(leads, default=None)
        bands[-1] = bands[-1]._replace(to_bytes=size, least_lead=least, most_lead=most)
    return bands
