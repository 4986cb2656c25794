"""Process groups: which ranks a call is for, and one name for each group on all ranks.

PyTorch names groups by a counter that is the same on all ranks, or (in old traces) by a number that means something
to one process only. A group is known by its members, and by its name where it is a counter; of several groups of the
same members that have no such name, by the order in which a rank uses them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from et.pytorch.comm_calls import CommCall
from et.pytorch.kineto import KinetoTrace

_LONGEST_COUNTER = 6
_DEFAULT = ("", "0")


@dataclass
class Groups:
    """Groups of all ranks.

    Attributes:
        world: all ranks.
        members: by the name in the traces that are made: a number as text; "" (all ranks) is not among them.
        unknown: calls whose group could not be found, a sentence each.
    """

    world: tuple[int, ...]
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    _names: dict[tuple[tuple[int, ...], str], str] = field(default_factory=dict)
    _order: dict[tuple[int, tuple[int, ...]], list[str]] = field(default_factory=dict)

    def name(self, rank: int, ranks: tuple[int, ...], group: str) -> str:
        """The name of the group that a rank knows by `group`, of these ranks."""
        label = group
        if len(group) > _LONGEST_COUNTER or (group and not group.isdigit()):
            used = self._order.setdefault((rank, ranks), [])
            if group not in used:
                used.append(group)
            label = f"#{used.index(group)}"
        if ranks == self.world and label in {*_DEFAULT, "#0"}:
            return ""
        key = (ranks, label)
        if key not in self._names:
            self._names[key] = str(len(self._names) + 1)
            self.members[self._names[key]] = ranks
        return self._names[key]


def world_of(ranks: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """All ranks, of those whose traces are there and of what the traces say."""
    return tuple(range(max([*sizes, max(ranks) + 1])))


def ranks_of(
    rank: int, call: CommCall, said: Mapping[str, tuple[int, ...]], world: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Members of a call's group; None if nothing says them.

    Args:
        rank: whose call it is.
        call: with what it says itself.
        said: groups that the rank's traces list.
        world: all ranks.
    """
    if call.ranks and rank in call.ranks:
        return call.ranks
    listed = said.get(call.group)
    if listed:
        return listed
    size = call.group_size
    if size == 1:
        return (rank,)
    if size == len(world) or (size == 0 and (call.group in _DEFAULT or listed is not None or len(said) <= 1)):
        return world
    return None


def said_by(kineto: KinetoTrace | None, host: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Groups that a rank's traces list, those of Kineto first."""
    return {**host, **{name: ranks for name, ranks in (kineto.groups if kineto else {}).items() if ranks}}
