"""A sweep of `nadi collective`: all rows of one collective on one fabric, its fastest algorithms and JSON document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nadi.studies.collectives.microbench import SkippedAlgorithm, SweepRow


class Band(NamedTuple):
    """Consecutive sizes with the same fastest algorithm."""

    algorithm: str  # name of the fastest algorithm
    from_bytes: int  # smallest size in bytes
    to_bytes: int  # largest size in bytes
    # minimum over the sizes of the second-best time divided by the best; None without a second algorithm
    least_lead: float | None
    most_lead: float | None  # maximum of the same ratio


def winners(rows: Sequence[SweepRow]) -> list[Band]:
    """Return the bands from the smallest size to the largest; a tie keeps the winner of the size before.

    Args:
        rows: The measured rows, of any order.
    """
    rows_by_size: dict[int, list[SweepRow]] = {}
    for row in rows:
        rows_by_size.setdefault(row.bytes, []).append(row)
    bands: list[Band] = []
    for size, timed in sorted(rows_by_size.items()):
        last = bands[-1].algorithm if bands else ""
        # at equal times the winner of the size before comes first (False before True): bands then do not alternate
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


@dataclass(frozen=True)
class CollectiveSweep:
    """One collective on one fabric, with all sizes and algorithms."""

    kind: str  # kind of the collective, one of workload.KINDS or "all-to-all-v"
    topology: str  # name of the fabric
    npus: int  # number of NPUs, all of which are members
    keys: Mapping[str, Mapping[str, Any]]  # values of [network] and [system], settled, for JSON
    seed: int  # seed of hashed path choices
    rows: list[SweepRow]  # rows, ordered by algorithm and size
    left_out: list[SkippedAlgorithm]  # algorithms of "all" that cannot perform the collective
    matrix: str = ""  # source of an all-to-all-v's bytes: "zipf:1.2" or a file; "" for other kinds
    simulates: bool = True  # whether rows are simulated, not closed forms alone
    overload: str = ""  # why links may carry more than they can, as the network's model declares it; "" = they cannot

    def winners(self) -> list[Band]:
        """Return the fastest algorithm by size."""
        return winners(self.rows)

    def document(self) -> dict[str, Any]:
        """Return the document that --json prints; `ratio` is null if the closed form is 0."""
        return {
            "kind": self.kind,
            "topology": self.topology,
            "npus": self.npus,
            "seed": self.seed,
            "matrix": self.matrix,
            **self.keys,
            "rows": [row._asdict() | {"ratio": row.ratio if row.closed_form_ps > 0 else None} for row in self.rows],
            "winners": [band._asdict() for band in self.winners()],
            "left_out": [skipped._asdict() for skipped in self.left_out],
        }
