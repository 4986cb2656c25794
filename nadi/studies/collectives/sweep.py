"""A sweep of `nadi collective`: all rows of one collective on one fabric, and what is told of them."""

from dataclasses import dataclass, field
from typing import Any

from nadi.configuration.sections import NetworkSection, SystemSection
from nadi.studies.collectives.microbench import SkippedAlgorithm, SweepRow
from nadi.studies.collectives.winners import Band, winners


@dataclass(frozen=True)
class CollectiveSweep:
    """One collective on one fabric, all sizes and algorithms.

    Attributes:
        kind: see workload.KINDS.
        topology: name of the fabric.
        npus: how many it has, the members.
        network: packets and switches.
        seed: of hashed choices.
        rows: algorithm by algorithm.
        left_out: algorithms that refused.
        matrix: where the bytes of an all-to-all-v come from, "zipf:1.2" or a file; "" of other kinds.
        system: how collectives are done.
    """

    kind: str
    topology: str
    npus: int
    network: NetworkSection
    seed: int
    rows: list[SweepRow]
    left_out: list[SkippedAlgorithm]
    matrix: str = ""
    system: SystemSection = field(default_factory=SystemSection)

    def winners(self) -> list[Band]:
        """Which algorithm is fastest at which sizes."""
        return winners(self.rows)

    def document(self) -> dict[str, Any]:
        """What --json prints; ratio is null where the closed form is 0."""
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
            "left_out": [each._asdict() for each in self.left_out],
        }
