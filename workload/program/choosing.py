"""Choice of the schedule of each collective of a Program."""

import operator
from typing import cast

import numpy as np

from nadi.et.arrays import Int32, Int64
from nadi.topologies import Graph
from nadi.workload import collectives
from nadi.workload.collectives.schedules.packed import DONE_AT_ONCE, ScheduleSet
from nadi.workload.collectives.trees.aggregators import IF_ANY, trees_of
from nadi.workload.collectives.uneven.all_to_all_v import NAME as UNEVEN
from nadi.workload.collectives.uneven.all_to_all_v import units
from nadi.workload.collectives.uneven.splits import Matrices
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import KINDS
from nadi.workload.program.program import InNetworkGroup
from nadi.workload.program.settings import CollectiveSettings
from nadi.workload.shape import GroupShape, shape_of, stripes_of
from nadi.workload.trace_sets.groups import GroupTable

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
    ) -> None:
        """Prepare the choice of schedules; fabric: None = unknown; matrices: bytes of uneven all-to-alls by use."""
        # placement: int32[ranks], NPU of each rank, which members of groups are; None = members are NPUs.
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
        """Return whether the algorithm of a kind depends on the group's shape and on the size."""
        return collectives.choose(kind, self.settings.algorithm_of(kind)).needs_shape

    def schedule(self, kind: str, group: int, size_bytes: int, *, is_copied: bool) -> int:
        """Return the number of the schedule of a group's collective of a kind on a buffer of size_bytes."""
        # is_copied: Whether copy engines run it.
        members = len(self._groups.members(group))
        algorithm = self.settings.algorithm_of(kind, is_copied=is_copied)
        if not collectives.choose(kind, algorithm).needs_shape:
            return self._add(kind, members, None, 0, algorithm, self._stripes_of(group))
        shape = self._shape(group) if members > 1 else None
        return self._add(kind, members, shape, size_bytes, algorithm, self._stripes_of(group))

    def use(self, group: int, members: Int32, kinds: list[str], size_bytes: Int64, priority: Int32) -> InNetworkGroup:
        """Return the in-network group of collectives (kinds, sizes, priorities); members may be other ranks'."""
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
        """Return the schedule's number and the buffer's bytes of a group's seq-th collective, an uneven all-to-all."""
        matrix = self._uneven[group, seq]
        algorithm = self.settings.algorithm_of(UNEVEN)
        shape = self._shape(group) if algorithm not in _SHAPELESS and len(matrix) > 1 else None
        key = id(matrix), shape  # equal matrices are one array
        if key not in self._uneven_schedules:
            schedule, cut = self.schedules.add_uneven(matrix, algorithm, shape), units(matrix)
            chunks = cut.chunks if schedule == DONE_AT_ONCE else self.schedules.chunks(schedule)
            self._uneven_schedules[key] = schedule, chunks * cut.unit_bytes
        return self._uneven_schedules[key]

    def schedule_key(self, group: int, *, by_shape: bool) -> object:
        """Return a key that is equal for groups with equal schedules; by_shape: whether the shape matters."""
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
            self._shapes[group] = shape_of(self._fabric, self._npus(group), trees=self.trees)
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
