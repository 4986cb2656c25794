"""Who runs a simulation: threads or processes of this machine, or MPI ranks with threads of their own."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

import pdes
from nadi.launching.gather import ALONE, RankGather
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.world import together
from pdes import setting
from topologies import Graph
from workload import Program

if TYPE_CHECKING:
    from collections.abc import Callable

Backend = Literal["threads", "processes"]


@dataclass(frozen=True)
class Workers:
    """Workers of a run, this process being one of `ranks`.

    Where it is `alone`, rank 0 does all with one worker, and the other ranks wait for its results.
    """

    ranks: RankGather = setting(ALONE, "this rank and the others", is_given=False)
    backend: Backend = setting("threads", "what the workers are; those of MPI ranks are threads")
    workers: int = setting(1, "threads or processes of this machine; under mpiexec, threads of each rank")
    lps_per_worker: int = setting(1, "parts of the fabric for each worker; an idle thread takes what is left")
    share_memory: bool = setting(True, "MPI ranks of one node meet in shared memory")
    alone: bool = setting(False, "rank 0 does all", is_given=False)

    @property
    def total(self) -> int:
        """Workers of all ranks."""
        return 1 if self.alone else self.ranks.size * self.workers

    @property
    def lps(self) -> int:
        """Logical processes of the run."""
        return self.total * self.lps_per_worker

    @property
    def threads(self) -> int:
        """Threads of each rank or process."""
        return self.workers if self.backend == "threads" else 1

    @property
    def processes(self) -> int:
        """Processes of each rank."""
        return self.workers if self.backend == "processes" else 1

    def own_npus(self, owner: NDArray[np.int32], npus: int) -> NDArray[np.bool_]:
        """bool[npus]: those of this rank's LPs."""
        if self.alone:
            return np.full(npus, self.ranks.rank == 0)
        return pdes.shares(owner, self.ranks.size)[:npus] == self.ranks.rank

    def run(
        self,
        graph: Graph,
        program: Program,
        owner: NDArray[np.int32] | None,
        settings: pdes.Settings,
        progress: Progress | NoProgress,
    ) -> pdes.Results:
        """Build worlds and run them; `owner` has `lps` owners. At message level there is one LP.

        Raises:
            pdes.RunError: the run failed.
        """
        if settings.fidelity.act:
            return self.by_rank_0(graph.npus, lambda: pdes.run(pdes.build_world(graph, program, settings), progress))
        if self.ranks.communicator is not None:
            show: Callable[[Any], None] | None = progress if self.ranks.rank == 0 else None
            mailbox: pdes.Ranks | pdes.Processes = pdes.Ranks(self.ranks.communicator, 0 if self.share_memory else 1)
            return pdes.run_divided(pdes.Layout(graph, settings, owner), program, settings, mailbox, self.workers, show)
        if self.backend == "processes" and self.workers > 1:
            mailbox = pdes.Processes(self.workers)
            return pdes.run_divided(pdes.Layout(graph, settings, owner), program, settings, mailbox, 1, progress)
        return pdes.run(pdes.build_world(graph, program, settings, owner), progress, self.threads)

    def by_rank_0(self, npus: int, run: "Callable[[], pdes.Results]") -> pdes.Results:
        """Rank 0 runs all; the others get its results, without flows and times of trace rows."""
        with together(self.ranks):
            results = run() if self.ranks.rank == 0 else None
            light = results and replace(
                results,
                npu_node_ptr=np.zeros(npus + 1, np.int64),
                node_start_ps=results.node_start_ps[:0],
                node_finish_ps=results.node_finish_ps[:0],
                flows={name: column[:0] for name, column in results.flows.items()},
                folded=None,
            )
            told: pdes.Results = self.ranks.exchange(light)[0]
        return results or told


SERIAL = Workers()
