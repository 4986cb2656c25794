"""Workers of a simulation: threads or processes of this machine, or MPI ranks with threads of their own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.launching.progress import Progress
from nadi.launching.ranks import ALONE, RankGather, together
from nadi.pdes import parallel, setting
from nadi.topologies import Graph
from nadi.workload import Program

Backend = Literal["threads", "processes"]


@dataclass(frozen=True)
class Workers:
    """Workers of a run; this process is one of `ranks`. If `alone`, rank 0 runs everything with one worker."""

    ranks: RankGather = setting(ALONE, "this rank and the others", is_given=False)
    backend: Backend = setting("threads", "kind of the workers; MPI ranks always use threads")
    workers: int = setting(1, "threads or processes of this machine; under mpiexec, threads of each rank")
    lps_per_worker: int = setting(1, "parts of the fabric per worker; idle threads take remaining parts")
    share_memory: bool = setting(True, "MPI ranks of one node communicate through shared memory")
    alone: bool = setting(False, "rank 0 does all", is_given=False)

    @property
    def total(self) -> int:
        """Return the number of workers of all ranks."""
        return 1 if self.alone else self.ranks.size * self.workers

    @property
    def lps(self) -> int:
        """Return the number of logical processes of the run."""
        return self.total * self.lps_per_worker

    @property
    def threads(self) -> int:
        """Return the number of threads of each rank or process."""
        return self.workers if self.backend == "threads" else 1

    @property
    def processes(self) -> int:
        """Return the number of processes of each rank."""
        return self.workers if self.backend == "processes" else 1

    def own_npus(self, owner: NDArray[np.int32], npus: int) -> NDArray[np.bool_]:
        """Return bool[npus], True for the NPUs of this rank's LPs.

        Args:
            owner: int[nodes], the logical process of each node.
            npus: The number of NPUs of the fabric.
        """
        if self.alone:
            return np.full(npus, self.ranks.rank == 0)
        return parallel.shares(owner, self.ranks.size)[:npus] == self.ranks.rank

    def run(
        self,
        graph: Graph,
        program: Program,
        owner: NDArray[np.int32] | None,
        settings: pdes.Settings,
        progress: Progress,
        checkpoints: parallel.Checkpoints | None = None,
    ) -> pdes.Results:
        """Build the state of the run and run it; `owner` has `lps` owners, and at message level there is one LP.

        Args:
            graph: The fabric.
            program: The work of this rank's NPUs.
            settings: The settings of the engine.
            owner: int[nodes], the logical process of each node.
            progress: The display that gets counters while the run lasts.
            checkpoints: The folder for the saved states of the run; None for no checkpoints.
        """
        if not settings.several_workers:
            return self.by_rank_0(
                graph.npus,
                lambda: pdes.run(pdes.build_world(graph, program, settings), progress, checkpoints=checkpoints),
            )
        if self.ranks.communicator is not None:
            show: Callable[[Any], None] | None = progress if self.ranks.rank == 0 else None
            mailbox: parallel.Ranks | parallel.Processes = parallel.Ranks(
                self.ranks.communicator, 0 if self.share_memory else 1
            )
            layout = parallel.Layout(graph, settings, owner)
            return parallel.run_divided(layout, program, settings, mailbox, self.workers, show, checkpoints)
        if self.backend == "processes" and self.workers > 1:
            mailbox = parallel.Processes(self.workers)
            layout = parallel.Layout(graph, settings, owner)
            return parallel.run_divided(layout, program, settings, mailbox, 1, progress, checkpoints)
        return pdes.run(pdes.build_world(graph, program, settings, owner), progress, self.threads, checkpoints)

    def by_rank_0(self, npus: int, run: Callable[[], pdes.Results]) -> pdes.Results:
        """Run on rank 0; the other ranks get its results without flows and times of trace rows.

        Args:
            npus: The number of NPUs of the fabric.
            run: The function that simulates, which only rank 0 calls.
        """
        with together(self.ranks):
            results = run() if self.ranks.rank == 0 else None
            light = results and replace(
                results,
                npu_node_ptr=np.zeros(npus + 1, np.int64),
                node_start_ps=results.node_start_ps[:0],
                node_finish_ps=results.node_finish_ps[:0],
                flows={name: column[:0] for name, column in results.flows.items()},
                kept_rows=None,
            )
            received: pdes.Results = self.ranks.exchange(light)[0]
        return results or received


SERIAL = Workers()
