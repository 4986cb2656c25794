"""Ranks of a run: their files, groups and clocks.

PyTorch names groups by a counter that is the same on all ranks, or (in old traces) by a number that means something
to one process only. A group is identified by its members, and by its name where that is a counter. Several groups of
the same members without such a name are identified by the order of their use on a rank.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nadi.et.errors import TraceError
from nadi.et.pytorch.comm_calls import CommCall
from nadi.et.pytorch.comms import Comm
from nadi.et.pytorch.host_trace import HostTrace, host_trace, is_merged, separated
from nadi.et.pytorch.kineto import (
    HOST,
    RESOLUTION_NS,
    Document,
    KinetoTrace,
    files_of,
    kineto_trace,
    ranks_by_name,
    read_document,
)
from nadi.et.schema import CollectiveCommType as Kind

_MAX_COUNTER_DIGITS = 6  # longer numbers are ids of a process, such as hashes
_DEFAULT = ("", "0")


@dataclass
class RankFiles:
    """Traces of a rank."""

    rank: int  # number of the rank
    host: HostTrace | None = None  # host trace, if there is one
    kineto: KinetoTrace | None = None  # Kineto trace, if there is one

    @property
    def path(self) -> Path:
        """Path of the trace that has the times, otherwise of the other one."""
        trace = self.kineto or self.host
        if trace is None:
            raise ValueError("a rank without traces")
        return trace.path


def rank_files(paths: Sequence[Path]) -> list[RankFiles]:
    """Read the traces of a run, and return them by rank.

    A Kineto trace has its rank, a host trace is of the Kineto trace with its process id. Otherwise file names decide.

    Args:
        paths: The files of all ranks, or folders with the files.
    """
    files = files_of(paths)
    documents: list[Document] = []
    for path in files:
        document = read_document(path)
        documents += separated(document) if document.kind == HOST and is_merged(document) else (document,)
    hosts = [host_trace(document) for document in documents if document.kind == HOST]
    kinetos = [kineto_trace(document) for document in documents if document.kind != HOST]
    ranks: dict[int, RankFiles] = {}
    by_name = ranks_by_name([kineto.path for kineto in kinetos])
    for place, (kineto, named) in enumerate(zip(kinetos, by_name, strict=True)):
        rank = kineto.rank if kineto.rank is not None else named if named is not None else place
        if rank in ranks:
            belongs = f"also belongs to rank {rank}, as {ranks[rank].path}"
            raise TraceError(f"{kineto.path}: {belongs}; expected one Kineto trace per rank")
        ranks[rank] = RankFiles(rank, kineto=kineto)
    pids = [kineto.pid for kineto in kinetos]
    # Process ids of several hosts may be equal: then they do not identify a rank
    by_pid = {files.kineto.pid: files for files in ranks.values() if files.kineto and pids.count(files.kineto.pid) == 1}
    by_path = {files.path: files for files in ranks.values()}  # for the two parts of a merged file
    for place, (host, named) in enumerate(zip(hosts, ranks_by_name([host.path for host in hosts]), strict=True)):
        found = by_path.get(host.path) or by_pid.get(host.pid)
        if found is None:
            rank = named if named is not None else place
            found = ranks.setdefault(rank, RankFiles(rank))
        if found.host is not None:
            belongs = f"also belongs to rank {found.rank}, as {found.host.path}"
            raise TraceError(f"{host.path}: {belongs}; expected one host trace per rank")
        found.host = host
    return [ranks[rank] for rank in sorted(ranks)]


@dataclass
class Groups:
    """Groups of all ranks."""

    world: tuple[int, ...]  # numbers of all ranks
    # ranks of each group, by its name in the resulting traces, a number as text; all ranks ("") are not listed
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # name of each group, by its members and its label
    _names: dict[tuple[tuple[int, ...], str], str] = field(default_factory=dict)
    # names of the groups with equal members, by rank and members, in order of use
    _order: dict[tuple[int, tuple[int, ...]], list[str]] = field(default_factory=dict)

    def name(self, rank: int, members: tuple[int, ...], own_name: str) -> str:
        """Return the name of a group in the resulting traces; "" for all ranks.

        Args:
            rank: A rank that uses the group.
            members: The ranks of the group.
            own_name: The rank's own name of the group.
        """
        label = own_name
        if len(own_name) > _MAX_COUNTER_DIGITS or (own_name and not own_name.isdigit()):
            used = self._order.setdefault((rank, members), [])
            if own_name not in used:
                used.append(own_name)
            # A name without meaning elsewhere: use its place in the order of use
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
    """Return the members of the group of a call; None if they are unknown.

    Args:
        rank: The rank that makes the call.
        call: The call, which may have the members or their number.
        listed_groups: The members of each group that the rank's traces list, by name; () = not listed.
        world: The numbers of all ranks.
    """
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


# Clocks of ranks, and the time that members of a collective waited for the last one.
#
# All members leave an all-reduce, all-gather, reduce-scatter, all-to-all or barrier at nearly the same moment, however
# late one of them arrived. So the ends of the same collective on two ranks, each on its own clock, differ by the offset
# of the clocks. The offset is the median over all collectives that two ranks share. Ranks without any use other ranks.
#
# Members do not leave at exactly the same moment, and may leave in the same order each time. An offset therefore counts
# only if it is several times the spread of single collectives; between processes of the same host it never counts.


# Kinds that no member can leave before the last one has arrived
TOGETHER = frozenset({Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.BARRIER})
_MIN_OFFSET_OF_SPREAD = 4  # smallest offset that counts, in spreads of single collectives; a choice for Nadi


@dataclass(frozen=True)
class ClockOffsets:
    """Offsets that convert a rank's times to the clock of the first rank."""

    offset_ns: dict[int, int] = field(default_factory=dict)  # offset of each rank
    spread_ns: dict[int, int] = field(default_factory=dict)  # median distance of single offsets from it
    collectives: dict[int, int] = field(default_factory=dict)  # number of collectives behind the rank's offset
    unknown: tuple[int, ...] = ()  # ranks that share no collective with the others; their times are used unchanged

    def significant(self, host_of_rank: Mapping[int, str]) -> dict[int, int]:
        """Return the offset to apply to each rank's times; 0 where it may be chance, or if all ranks are on one host.

        Args:
            host_of_rank: The name of the machine of each rank, "" = unknown.
        """
        if len(set(host_of_rank.values())) == 1 and "" not in host_of_rank.values():
            return dict.fromkeys(self.offset_ns, 0)
        return {
            rank: offset_ns if abs(offset_ns) > _MIN_OFFSET_OF_SPREAD * self.spread_ns[rank] else 0
            for rank, offset_ns in self.offset_ns.items()
        }


def estimate(ranks: Sequence[int], collectives: Sequence[Mapping[int, Comm]]) -> ClockOffsets:
    """Estimate the offsets of the ranks' clocks.

    Args:
        ranks: The ranks; offsets convert to the clock of the first one.
        collectives: The collectives of kinds in TOGETHER, each as the call of every member with its times.
    """
    clocks = ClockOffsets({ranks[0]: 0}, {ranks[0]: 0}, {ranks[0]: 0})
    left = [rank for rank in ranks if rank != ranks[0]]
    while left:
        # Ranks of one round do not count for each other, so that the result does not depend on the order of ranks
        found = []
        for rank in left:
            # The differences to each rank whose offset is known
            apart = {
                known: [
                    instance[known].end_ns - instance[rank].end_ns
                    for instance in collectives
                    if rank in instance and known in instance
                ]
                for known in clocks.offset_ns
            }
            # More collectives give a more reliable median
            best = max(apart, key=lambda known: (len(apart[known]), -known))
            if apart[best]:
                found.append((rank, best, apart[best]))
        if not found:
            break
        for rank, known, differences in found:
            middle = round(statistics.median(differences))
            clocks.offset_ns[rank] = clocks.offset_ns[known] + middle
            clocks.spread_ns[rank] = round(statistics.median(abs(value - middle) for value in differences))
            clocks.collectives[rank] = len(differences)
            left.remove(rank)
    for rank in left:
        clocks.offset_ns[rank], clocks.spread_ns[rank], clocks.collectives[rank] = 0, 0, 0
    return ClockOffsets(clocks.offset_ns, clocks.spread_ns, clocks.collectives, tuple(left))


def waited_and_early_ns(
    kind: int, instance: Mapping[int, Comm], offset_ns: Mapping[int, int], root: int | None
) -> tuple[dict[int, int], dict[int, int]]:
    """Return how long each rank waited in a collective for the last rank that it needs, and who left too early.

    Ranks that leave before that arrival show that clocks are wrong: their waiting cannot be determined and counts as 0,
    and the second result has how long before they leave.

    Args:
        kind: The kind of the collective.
        instance: The call of each rank, with its times on the rank's own clock.
        offset_ns: The nanoseconds to add to each rank's times.
        root: The root's rank in a broadcast, reduce, gather or scatter; None if it is unknown.
    """
    waited, early = {}, {}
    for rank, needed_ns in _needed_ns(kind, instance, offset_ns, root).items():
        interval, own_needed_ns = instance[rank], needed_ns - offset_ns[rank]
        waited[rank] = min(own_needed_ns, interval.end_ns) - interval.start_ns
        if own_needed_ns - interval.end_ns > RESOLUTION_NS:
            waited[rank], early[rank] = 0, own_needed_ns - interval.end_ns
    return waited, early


def _needed_ns(
    kind: int, call_of_rank: Mapping[int, Comm], offset_ns: Mapping[int, int], root_rank: int | None
) -> dict[int, int]:
    """Return, by rank, when all ranks that it needs had begun the call; `offset_ns` is added to each rank's times."""
    arrived_ns = {rank: taken.start_ns + offset_ns[rank] for rank, taken in call_of_rank.items()}
    if kind in TOGETHER:
        return dict.fromkeys(arrived_ns, max(arrived_ns.values()))
    if kind in {Kind.BROADCAST, Kind.SCATTER}:
        return {
            rank: max(at, arrived_ns.get(root_rank, at) if root_rank is not None else at)
            for rank, at in arrived_ns.items()
        }
    return {rank: max(arrived_ns.values()) if rank == root_rank else at for rank, at in arrived_ns.items()}
