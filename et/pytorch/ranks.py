"""Files of a run, sorted by rank (a host trace, a Kineto trace, or both), and the groups of the ranks.

PyTorch names groups by a counter that is the same on all ranks, or (in old traces) by a number that means something
to one process only. A group is identified by its members, and by its name where that is a counter. Several groups of
the same members without such a name are identified by the order of their use on a rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nadi.et.errors import TraceError
from nadi.et.pytorch.comm_calls import CommCall
from nadi.et.pytorch.documents import HOST, Document, files_of, ranks_by_name, read_document
from nadi.et.pytorch.host_trace import HostTrace, host_trace
from nadi.et.pytorch.kineto import KinetoTrace, kineto_trace
from nadi.et.pytorch.merged import is_merged, separated

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
