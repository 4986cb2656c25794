"""Settings of collectives: algorithms, meaning of comm_size, and parameters of the system layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nadi.et.arrays import Int64
from nadi.workload import collectives
from nadi.workload.collectives.uneven.all_to_all_v import NAME as UNEVEN
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import ALL_GATHER, ALL_TO_ALL, BARRIER, GATHER, KINDS

_BY_COPIES, _COPIED_KINDS = "direct", ("all-gather", "reduce-scatter")
"""Algorithm of collectives that copy engines run in place of NCCL, and their kinds."""
ALL_GATHER_SIZES = ("contribution", "total")


@dataclass(frozen=True)
class CollectiveSettings:
    """Settings of all collectives of a run.

    comm_size is the whole buffer S for all-reduce, reduce, broadcast, all-to-all, reduce-scatter and scatter (at the
    root). For all-gather and gather, trace writers differ: comm_size is either each member's contribution, as in ASTRA-
    sim and in traces of PyTorch (the size of the input), so that S is n times as large; or S. A barrier has no bytes.
    """

    # Algorithm by kind, with parameters as in `ring:channels=4,bidirectional=true`; other kinds use their default. The
    # kind all-to-all-v is an all-to-all with split sizes; its default is NCCL if all-to-alls use NCCL.
    algorithm: Mapping[str, str] = field(default_factory=dict)
    # Meaning of comm_size of all-gather and gather: "contribution" or "total"
    all_gather_size: Literal["contribution", "total"] = "contribution"
    splits: int = 1  # Default number of splits for algorithms over several dimensions
    # Default order of dimensions for algorithms that have one
    dimension_order: Literal["baseline", "bandwidth-aware", "themis"] = "baseline"
    dataset_splits: int = 1  # Default number of splits for other algorithms, and for those algorithms if `splits` is 1
    chains: int = 1  # Default number of splits of the other algorithms that run at a time
    copied: frozenset[str] = frozenset()  # Groups whose collectives run on copy engines; see Settings.compute_slowdown
    most_bytes: int | None = None  # Maximum memory in bytes to construct collectives' plans, None = unlimited

    def __post_init__(self) -> None:
        """Check the algorithms and the size of all-gathers; WorkloadError if one is unknown."""
        for kind in self.algorithm:
            if kind == UNEVEN:
                collectives.choose_uneven(self.algorithm_of(kind))
            else:
                collectives.choose(kind, self.algorithm_of(kind))
        if self.all_gather_size not in ALL_GATHER_SIZES:
            raise WorkloadError(f"all_gather_size {self.all_gather_size!r}: expected {' or '.join(ALL_GATHER_SIZES)}")

    def algorithm_of(self, kind: str, *, is_copied: bool = False) -> str:
        """Return the algorithm of a kind, with the run's parameters where the algorithm's text sets none.

        Copy engines (`is_copied`) write directly into the memory of the other members, without NCCL's protocols.
        """
        if is_copied and kind in _COPIED_KINDS and self.algorithm.get(kind) == collectives.ON_NVSWITCHES:
            return _BY_COPIES
        if kind == UNEVEN:
            return self.algorithm.get(kind) or collectives.default_uneven(self.algorithm.get(KINDS[ALL_TO_ALL], ""))
        spec = self.algorithm.get(kind) or collectives.default_algorithm(kind)
        name, _, given = spec.partition(":")
        module = collectives.find_algorithm(name)
        known: Mapping[str, object] = getattr(module, "PARAMETERS", {})
        named = {part.partition("=")[0].strip() for part in given.split(",")}
        defaults: list[tuple[str, int | str]] = [
            ("splits", self.splits if self.splits > 1 else self.dataset_splits),
            ("order", self.dimension_order),
        ]
        if "splits" not in known and kind != KINDS[BARRIER] and getattr(module, "NAMED_ONLY", False) is not True:
            known = {**known, **collectives.PARTS}
            if named.isdisjoint(collectives.PARTS):
                defaults += [("dataset_splits", self.dataset_splits), ("chains", min(self.chains, self.dataset_splits))]
        added = [f"{key}={v}" for key, v in defaults if key in known and key not in named and known[key] != v]
        return f"{name}:{','.join(filter(None, [given, *added]))}" if added else spec

    def buffer_factor(self, members: Int64) -> Int64:
        """Return int64[len(KINDS), len(members)]: ratio of S to comm_size by kind and number of members."""
        factor = np.ones((len(KINDS), len(members)), np.int64)
        factor[BARRIER] = 0
        if self.all_gather_size == "contribution":
            factor[[ALL_GATHER, GATHER]] = members
        return factor
