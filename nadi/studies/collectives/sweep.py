"""A sweep of `nadi collective`: all rows of one collective on one fabric, and its JSON document."""

from dataclasses import dataclass, field
from typing import Any

from nadi.configuration.sections import NetworkSection, SystemSection
from nadi.studies.collectives.microbench import SkippedAlgorithm, SweepRow
from nadi.studies.collectives.winners import Band, winners


@dataclass(frozen=True)
class CollectiveSweep:
    """One collective on one fabric, with all sizes and algorithms."""

    kind: str  # kind of the collective, one of workload.KINDS or "all-to-all-v"
    topology: str  # name of the fabric
    npus: int  # number of NPUs, all of which are members
    network: NetworkSection  # network section of the run
    seed: int  # seed of hashed path choices
    rows: list[SweepRow]  # rows, ordered by algorithm and size
    left_out: list[SkippedAlgorithm]  # algorithms of "all" that cannot perform the collective
    matrix: str = ""  # source of an all-to-all-v's bytes: "zipf:1.2" or a file; "" for other kinds
    system: SystemSection = field(default_factory=SystemSection)  # system section of the run: settings of collectives

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
            "network": self.network.model_dump(mode="json"),
            "system": self.system.model_dump(mode="json"),
            "rows": [row._asdict() | {"ratio": row.ratio if row.closed_form_ps > 0 else None} for row in self.rows],
            "winners": [band._asdict() for band in self.winners()],
            "left_out": [skipped._asdict() for skipped in self.left_out],
        }
