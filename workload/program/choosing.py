"""Settings of collectives (algorithms, meaning of comm_size, system layer), and the schedule of each collective."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np

from nadi.inputs.arrays import Int32, Int64
from nadi.topologies import Graph
from nadi.workload import collectives
from nadi.workload.collectives.schedules.packed import DONE_AT_ONCE, ScheduleSet
from nadi.workload.collectives.trees import IF_ANY, trees_of
from nadi.workload.collectives.uneven import NAME as UNEVEN, Matrices, units
from nadi.workload.errors import WorkloadError
from nadi.workload.kept import MEMBER_BYTES, KeptResults
from nadi.workload.kinds import ALL_GATHER, ALL_TO_ALL, BARRIER, GATHER, KINDS
from nadi.workload.program.program import InNetworkGroup
from nadi.workload.shape import GroupShape, shape_of, stripes_of
from nadi.workload.trace_sets.groups import GroupTable

_BY_COPIES, _COPIED_KINDS = "direct:proto=none", ("all-gather", "reduce-scatter")
"""Algorithm of collectives that copy engines run in place of NCCL, without its kernels, and their kinds."""
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
    # Whether a message of a trace is divided over several NICs of its sender (workload.program.program)
    divides_sends: bool = True
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

        Args:
            kind: The kind of collective, one of workload.KINDS or "all-to-all-v".
            is_copied: Whether copy engines run the collective: they write directly into other members' memory, without
                NCCL.
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
        """Return int64[len(KINDS), len(members)]: the ratio of the whole buffer S to comm_size.

        Args:
            members: The numbers of members of groups, int64[].
        """
        factor = np.ones((len(KINDS), len(members)), np.int64)
        factor[BARRIER] = 0
        if self.all_gather_size == "contribution":
            factor[[ALL_GATHER, GATHER]] = members
        return factor


# Choice of the schedule of each collective of a Program.


_SHAPELESS = ("direct", "pairwise")
"""Algorithms of all-to-alls with split sizes that do not depend on the places of members."""


def _trees(settings: CollectiveSettings) -> str:
    """Return the trees of the in-network algorithms, "" = no such algorithm."""
    # Algorithms that can run without trees adopt those of the others. All must be the same, because a group has one set
    # of aggregators.
    chosen = (collectives.choose(kind, settings.algorithm_of(kind)) for kind in KINDS if kind in settings.algorithm)
    all_trees = {choice.trees: choice.name for choice in chosen if choice.trees}
    required = {trees: name for trees, name in all_trees.items() if not trees.startswith(IF_ANY)} or all_trees
    if len(required) > 1:
        both = " and ".join(f"{name} (trees over {trees})" for trees, name in sorted(required.items()))
        raise WorkloadError(f"collectives: found {both} in one run; expected algorithms over the same trees")
    return next(iter(required), "")


class ScheduleChooser:
    """Choice of the schedule of each collective; the NPUs that run a trace have the same groups."""

    def __init__(
        self,
        settings: CollectiveSettings,
        group_table: GroupTable,
        fabric: Graph | None,
        matrices: Matrices,
        schedules: ScheduleSet,
        trees_of: dict[int, str],
        placement: Int32 | None = None,
        kept: KeptResults | None = None,
    ) -> None:
        """Prepare the choice of schedules.

        Args:
            settings: The settings of collectives: algorithms and the meaning of sizes.
            group_table: The groups of all NPUs, with the members of those that this rank's NPUs use.
            fabric: The fabric as a graph of nodes and links; None = unknown.
            matrices: The bytes between members of each uneven all-to-all, by group and index in it.
            schedules: The schedules so far, to which new ones are added.
            trees_of: The kind of collective of each schedule that switches reduce, by its number; new ones are added.
            placement: The NPU of each rank, int32[ranks], if members of groups are ranks; None = they are NPUs.
            kept: Shapes that several programs have in common; None = none.
        """
        self._kept = kept or KeptResults(0)
        self.settings, self._placement = settings, placement
        self.schedules = schedules  # Schedules that have been chosen so far
        self.trees = _trees(settings)  # Trees of the kinds that switches reduce, "" = no kind
        self.trees_of = trees_of  # Kind of collective by number of a schedule that switches reduce
        self._uneven = matrices
        self._uneven_of: dict[int, list[Int64]] = {}
        for (group, _), matrix in sorted(matrices.items(), key=operator.itemgetter(0)):
            self._uneven_of.setdefault(group, []).append(matrix)
        self._uneven_schedules: dict[tuple[int, GroupShape | None], tuple[int, int]] = {}
        self._groups, self._fabric = group_table, fabric
        self._shapes: dict[int, GroupShape] = {}
        self._stripes: dict[int, int] = {}
        self._known: dict[tuple[str, int, GroupShape | None, int, str, int], int] = {}

    def needs_shape(self, kind: str) -> bool:
        """Return whether the algorithm of a kind depends on the group's shape and on the size.

        Args:
            kind: The kind of collective, one of workload.KINDS.
        """
        return self._needs_shape(collectives.choose(kind, self.settings.algorithm_of(kind)))

    def _needs_shape(self, chosen: collectives.AlgorithmChoice) -> bool:
        return chosen.needs_shape or (self._fabric is not None and chosen.pays(self._fabric.accelerator))

    def schedule(self, kind: str, group: int, size_bytes: int, *, is_copied: bool) -> int:
        """Return the number of the schedule of a group's collective.

        Args:
            kind: The kind of collective, one of workload.KINDS.
            group: The number of the group.
            size_bytes: The size of the whole buffer in bytes.
            is_copied: Whether copy engines run the collective.
        """
        members = len(self._groups.members(group))
        algorithm = self.settings.algorithm_of(kind, is_copied=is_copied)
        if not self._needs_shape(collectives.choose(kind, algorithm)):
            return self._add(kind, members, None, 0, algorithm, self._stripes_of(group))
        shape = self._shape(group) if members > 1 else None
        return self._add(kind, members, shape, size_bytes, algorithm, self._stripes_of(group))

    def use(self, group: int, members: Int32, kinds: list[str], size_bytes: Int64, priority: Int32) -> InNetworkGroup:
        """Return a group with collectives that switches reduce.

        Args:
            group: The number of the group.
            members: The NPUs of the group in member order, int32[n]; they may be other ranks'.
            kinds: The kind of each collective in order; "" = it is not reduced in the network.
            size_bytes: The buffer size of each collective in bytes, int64[k].
            priority: The priority of each collective, int32[k].
        """
        fabric = cast("Graph", self._fabric)  # without a fabric there is no tree
        is_held = len(self._groups.members(group)) > 0
        shape = self._shape(group) if is_held else shape_of(fabric, members, trees=self.trees)
        calls = list(zip(kinds, size_bytes.tolist(), strict=True))
        number = {
            (kind, size): self._add(kind, len(members), shape, size, self.settings.algorithm_of(kind))
            if kind
            else DONE_AT_ONCE
            for kind, size in dict.fromkeys(calls)
        }
        switches = trees_of(fabric, members, self.trees)[1]
        return InNetworkGroup(
            group, members, switches, np.array([number[call] for call in calls], np.int32), size_bytes, priority
        )

    def _add(
        self, kind: str, members: int, shape: GroupShape | None, size_bytes: int, algorithm: str, stripes: int = 1
    ) -> int:
        """Return the number of the schedule of a collective, DONE_AT_ONCE without steps."""
        key = kind, members, shape, size_bytes, algorithm, stripes
        if key in self._known:
            return self._known[key]
        if members > 1:  # closed forms also ask for plans of sizes between those of the program
            collectives.choose(kind, algorithm).check_size(kind, size_bytes)
        number = self._known[key] = self.schedules.add(kind, algorithm, members, shape, size_bytes, stripes)
        if number != DONE_AT_ONCE and self.schedules.aggregators(number):
            self.trees_of[number] = kind
        return number

    def uneven(self, group: int, seq: int) -> tuple[int, int]:
        """Return the schedule's number and the buffer's bytes of an uneven all-to-all.

        Args:
            group: The number of the group.
            seq: The index of the collective in its group.
        """
        matrix = self._uneven[group, seq]
        algorithm = self.settings.algorithm_of(UNEVEN)
        pays = self._fabric is not None and collectives.kernel_times.has_times(self._fabric.accelerator)
        shape = self._shape(group) if (pays or algorithm not in _SHAPELESS) and len(matrix) > 1 else None
        key = id(matrix), shape  # equal matrices are one array
        if key not in self._uneven_schedules:
            schedule, cut = self.schedules.add_uneven(matrix, algorithm, shape), units(matrix)
            chunks = cut.chunks if schedule == DONE_AT_ONCE else self.schedules.chunks(schedule)
            self._uneven_schedules[key] = schedule, chunks * cut.unit_bytes
        return self._uneven_schedules[key]

    def schedule_key(self, group: int, *, by_shape: bool) -> object:
        """Return a key that is equal for groups with equal schedules.

        Args:
            group: The number of the group.
            by_shape: Whether schedules depend on the group's shape.
        """
        members = len(self._groups.members(group))
        shape = (by_shape and self._shape(group)) or members
        return (
            shape,
            self._stripes_of(group),
            tuple(id(matrix) for matrix in self._uneven_of.get(group, ())),
        )  # equal matrices are one array

    def _shape(self, group: int) -> GroupShape | None:
        """Return the shape of a group, by number; None without a fabric."""
        if group not in self._shapes and self._fabric is not None:
            fabric, npus = self._fabric, self._npus(group)
            self._shapes[group] = self._kept.get(
                (fabric, npus.tobytes(), self.trees),
                lambda: shape_of(fabric, npus, trees=self.trees),
                lambda shape: MEMBER_BYTES * shape.members,
            )
        return self._shapes.get(group)

    def _stripes_of(self, group: int) -> int:
        """Return the stripes of a group's buffers, by number; 1 without a fabric."""
        if group not in self._stripes and self._fabric is not None:
            self._stripes[group] = stripes_of(self._fabric, self._npus(group))
        return self._stripes.get(group, 1)

    def _npus(self, group: int) -> Int32:
        """Return int32[n], the NPUs of a group's members."""
        members = self._groups.members(group)
        return members if self._placement is None else self._placement[members]
