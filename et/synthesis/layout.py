"""Members of groups: roles, NPUs of each role, and families of groups as products of roles and strides.

A *role* is the part of all NPUs with one distinct trace, usually a pipeline stage; all roles have equally many NPUs,
and NPU i of a role is its i-th in ascending order. A family of groups is a set of roles times an arithmetic progression
of NPUs within each of them: tensor parallelism is ((r,), 1, 8), data parallelism ((r,), 8, 4), first and last stage
((0, 3), 1, 1).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from nadi.et.attributes import ALL_NPUS
from nadi.et.errors import TraceError
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int32

Groups = tuple[tuple[int, ...], ...]


class TraceSetFields(Protocol):
    """A trace set, by the fields that are read here; see docs/reference/interfaces.md."""

    @property
    def traces(self) -> Sequence[TraceTable]:
        """Distinct traces."""

    @property
    def trace_of_npu(self) -> Int32:
        """Trace of each NPU."""

    @property
    def example_npu(self) -> Int32:
        """NPU from which each trace counts its peers."""

    @property
    def families(self) -> Mapping[str, Groups]:
        """Groups by name."""


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of groups, as one role sees it."""

    roles: tuple[int, ...]  # roles of its members, ascending
    stride: int  # distance between members of one role, in NPUs
    size: int  # number of members in each role
    slot: str  # name in streams: scope, shape, and an index among the families with both


@dataclasses.dataclass(frozen=True)
class SetLayout:
    """Roles (NPUs that run one trace, such as a pipeline stage) and the families of groups of each."""

    roles: int  # number of roles
    width: int  # number of NPUs per role
    families: tuple[Family, ...]  # families of all roles; a role is in at most one family per slot

    def roles_of(self, role: int, slot: str) -> tuple[int, ...]:
        """Return the roles that take part in a collective of a role's slot.

        Args:
            role: A role, from 0.
            slot: The slot of a family that the role is in, or "" for operations that are no collectives.
        """
        return next((each.roles for each in self.families if each.slot == slot and role in each.roles), (role,))

    def scaled(self, npus: int) -> "SetLayout":
        """Return the layout for another number of NPUs: groups that reach to the last NPU of a role grow or shrink.

        Raise TraceError if the groups do not divide the NPUs of a role.

        Args:
            npus: The number of NPUs of all roles.
        """
        width, rest = divmod(npus, self.roles)
        families = [
            dataclasses.replace(each, size=max(width // each.stride, 1)) if _is_outer(each, self.width) else each
            for each in self.families
        ]
        # The NPUs of a role in one group of each family that does not grow: the unit of growth
        block = max([1, *(each.stride * (1 if _is_outer(each, self.width) else each.size) for each in families)])
        if rest or width < 1 or width % block:
            multiple = f"{self.roles * block}: {self.roles} stages of {block}"
            raise TraceError(f"{npus} ranks: expected a multiple of {multiple}")
        return SetLayout(self.roles, width, tuple(families))

    def groups(self, family: Family) -> Groups:
        """Return the groups of a family as NPUs, role after role.

        Args:
            family: A family of this layout.
        """
        found = []
        # For width 8, stride 2 and size 2: places 0 2, 1 3, 4 6 and 5 7
        for begin in range(0, self.width, family.stride * family.size):
            for first in range(begin, begin + family.stride):
                places = range(first, first + family.stride * family.size, family.stride)
                found.append(tuple(role * self.width + place for role in family.roles for place in places))
        return tuple(found)

    def family_names(self) -> dict[str, str]:
        """Return the name of each slot's groups in new traces: "g1", "g2" and so on."""
        slots = dict.fromkeys(family.slot for family in self.families)
        return {slot: f"g{number}" for number, slot in enumerate(slots, 1)}

    def families_by_name(self) -> dict[str, Groups]:
        """Return the groups of each name."""
        by_name: dict[str, Groups] = dict.fromkeys(self.family_names().values(), ())
        for family in self.families:
            name, groups = self.family_names()[family.slot], self.groups(family)
            if not set(groups) <= set(by_name[name]):
                by_name[name] += groups
        return by_name


class NamedLayout(NamedTuple):
    """A layout and the names that led to it."""

    layout: SetLayout  # layout of a trace set
    slots: dict[tuple[int, str], str]  # slot by role and name of the group
    places: dict[int, tuple[int, int]]  # role and index within the role by NPU


def layout_of(traces: TraceSetFields) -> NamedLayout:
    """Return the layout of a trace set.

    Args:
        traces: A trace set whose traces have equally many NPUs each.
    """
    roles = len(traces.traces)
    users = [np.flatnonzero(traces.trace_of_npu == role).tolist() for role in range(roles)]
    width = len(users[0]) if users else 0
    if not width or any(len(own) != width for own in users):
        path = traces.traces[0].path if roles else "trace set"
        raise TraceError(f"{path}: traces of different numbers of NPUs, expected as many for each")
    places = {npu: (role, i) for role, own in enumerate(users) for i, npu in enumerate(own)}
    families: dict[tuple[tuple[int, ...], str], Family] = {}
    slots: dict[tuple[int, str], str] = {}
    names_of_shape: dict[str, list[str]] = {}
    for role, table in enumerate(traces.traces):
        for row in np.unique(table.group[table.comm_type >= 0]).tolist():
            name = table.group_names[row]
            member_roles, stride, size = _product(traces, name, places, role)
            shape = _shape(len(member_roles), roles, stride, size, width)
            # Groups of one shape differ in the order of their first use
            names = names_of_shape.setdefault(shape, [])
            if name not in names:
                names.append(name)
            slot = slots[role, name] = f"{shape} {names.index(name)}"
            families[member_roles, slot] = Family(member_roles, stride, size, slot)
    return NamedLayout(SetLayout(roles, width, tuple(families.values())), slots, places)


def _product(
    traces: TraceSetFields, name: str, place_of_npu: Mapping[int, tuple[int, int]], role: int
) -> tuple[tuple[int, ...], int, int]:
    """Return roles, stride and size of groups that a role means by a name; place_of_npu: (role, index in the role)."""
    width = len(place_of_npu) // len(traces.traces)
    if name == ALL_NPUS:
        return tuple(range(len(traces.traces))), 1, width
    if name not in traces.families:
        raise TraceError(f'{traces.traces[role].path}: group "{name}", expected a family of the trace set')
    groups = [
        sorted(place_of_npu[npu] for npu in group)
        for group in traces.families[name]
        if any(place_of_npu.get(npu, (-1, 0))[0] == role for npu in group)
    ]
    first = min(groups)
    member_roles = tuple(sorted({place[0] for place in first}))
    # The places of one group's members in one role determine stride and size, as a comparison with all groups confirms
    own = [i for r, i in first if r == member_roles[0]]
    stride = own[1] - own[0] if len(own) > 1 else 1
    expected = SetLayout(len(traces.traces), width, ()).groups(Family(member_roles, stride, len(own), ""))
    as_numbers = {tuple(r * width + i for r, i in group) for group in groups}
    if as_numbers != set(expected):
        raise TraceError(f'{traces.traces[role].path}: family "{name}", expected groups of every n-th NPU of a role')
    return member_roles, stride, len(own)


def _shape(num_member_roles: int, num_roles: int, stride: int, size: int, role_width: int) -> str:
    """Return scope and shape of a family, which families of different sets share."""
    scope = "own" if num_member_roles == 1 else "all" if num_member_roles == num_roles else "some"
    if size == 1:
        return f"{scope}, one each"
    if size == role_width:
        return f"{scope}, whole"
    if stride == 1:
        return f"{scope}, inner"
    return f"{scope}, {'outer' if stride * size == role_width else 'middle'}"


def _is_outer(family: Family, width: int) -> bool:
    """Return whether its groups reach to the last NPU of a role."""
    return family.size > 1 and family.stride * family.size == width
