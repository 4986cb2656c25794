"""Process groups: the ranks that a call is for, and one name per group on all ranks.

PyTorch names groups by a counter that is the same on all ranks, or (in old traces) by a number that means something
to one process only. A group is identified by its members, and by its name where that is a counter. Several groups of
the same members without such a name are identified by the order in which a rank uses them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from et.pytorch.comm_calls import CommCall

_MAX_COUNTER_DIGITS = 6  # longer numbers are ids of a process, such as hashes
_DEFAULT = ("", "0")


@dataclass
class Groups:
    """Groups of all ranks."""

    world: tuple[int, ...]  # numbers of all ranks
    # ranks of each group, by its name in the resulting traces, a number as text; all ranks ("") are not listed
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _names: dict[tuple[tuple[int, ...], str], str] = field(default_factory=dict)
    _order: dict[tuple[int, tuple[int, ...]], list[str]] = field(default_factory=dict)

    def name(self, rank: int, members: tuple[int, ...], own_name: str) -> str:
        """Return the name in the resulting traces of the group of these members, which a rank knows by its own name."""
        label = own_name
        if len(own_name) > _MAX_COUNTER_DIGITS or (own_name and not own_name.isdigit()):
            used = self._order.setdefault((rank, members), [])
            if own_name not in used:
                used.append(own_name)
            label = f"#{used.index(own_name)}"
        if members == self.world and label in {*_DEFAULT, "#0"}:
            return ""
        key = (members, label)
        if key not in self._names:
            self._names[key] = str(len(self._names) + 1)
            self.members[self._names[key]] = members
        return self._names[key]


def ranks_of(
    rank: int, call: CommCall, listed_groups: Mapping[str, tuple[int, ...]], world: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the members of a call's group by the rank's traces or, if it is the `world`, all; None if unknown."""
    if call.ranks and rank in call.ranks:
        return call.ranks
    listed = listed_groups.get(call.group)
    if listed:
        return listed
    size = call.group_size
    if size == 1:
        return (rank,)
    if size == len(world) or (size == 0 and (call.group in _DEFAULT or listed is not None or len(listed_groups) <= 1)):
        return world
    return None
