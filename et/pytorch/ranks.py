"""Files of a run, sorted by rank: for each rank its host trace, its Kineto trace, or both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from et.errors import TraceError
from et.pytorch.documents import HOST, Document, files_of, ranks_by_name, read_document
from et.pytorch.host_trace import HostTrace, host_trace
from et.pytorch.kineto import KinetoTrace, kineto_trace
from et.pytorch.merged import is_merged, separated


@dataclass
class RankFiles:
    """Traces of a rank."""

    rank: int
    host: HostTrace | None = None
    kineto: KinetoTrace | None = None

    @property
    def path(self) -> Path:
        """Path of the trace that has the times, otherwise of the other one."""
        trace = self.kineto or self.host
        if trace is None:
            raise ValueError("a rank without traces")
        return trace.path


def rank_files(paths: Sequence[Path]) -> list[RankFiles]:
    """Read all files or folders, and return the traces of each rank.

    A Kineto trace has its rank, a host trace is of the Kineto trace with its process id. Otherwise file names decide.
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
