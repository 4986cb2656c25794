"""Workers as MPI ranks, each with threads of its own: one exchange between neighbours and one reduction per window.

mpi4py is imported when a run on ranks begins. Buffers are NumPy arrays that stay where they are; nothing is pickled
while windows go on. What all ranks must know of the run (progress, that someone wants it) rides in the reduction.
"""

import time
from dataclasses import replace

import numpy as np

from pdes.boundary import CROSSING_WORDS, HEADER_WORDS
from pdes.build import build_lps
from pdes.crew import Crew, compile_kernels
from pdes.driver import settled
from pdes.harvest import check, harvest, merge, results
from pdes.memory import zeros
from pdes.post import Post
from pdes.team import TEAM_HOPS, TEAM_LEFT, found_team, team_words


class _Channel:
    """What one LP sends to another, on the side of the sender or of the receiver.

    halves: two int64[] buffers, that of even windows first.
    """

    def __init__(self, rank, tag, halves):
        self.rank = rank
        self.tag = tag
        self.halves = halves


class _Ranks(Post):
    """Outboxes of this rank's LPs, buffers for what comes from other ranks, and the exchange after each window."""

    def __init__(self, layout, parts, communicator):
        super().__init__(parts)
        from mpi4py import MPI  # noqa: PLC0415 - only runs on ranks need it

        self._mpi = MPI
        self._communicator = communicator
        self._number = 0
        size, me = communicator.Get_size(), communicator.Get_rank()
        self._rank_of = np.concatenate([np.full(len(layout.share(size, rank)), rank) for rank in range(size)])
        self._coming = {}
        pairs_out, pairs_in = [], []
        for part in parts:
            for j, other in enumerate(part.neighbours):
                if self._rank_of[other] != me:
                    pairs_out.append((part.number, other))
                    pairs_in.append((other, part.number))
                    self._coming[other, part.number] = [zeros(part.half_words(part.rooms_in[j])) for _ in range(2)]
        self._sends = [_Channel(self._rank_of[pair[1]], tag, self._out(pair)) for pair, tag in self._tags(pairs_out, 1)]
        self._receives = [
            _Channel(self._rank_of[pair[0]], tag, self._coming[pair]) for pair, tag in self._tags(pairs_in, 0)
        ]
        self._mine = np.zeros(2, np.int64)
        self._all = np.zeros(2, np.int64)
        self.sync_s = 0.0
        self.wants_progress = False
        self.on_progress = None

    def _tags(self, pairs, far_end):
        """Pairs of LPs with a tag each: their place among the pairs between the two ranks, the same on both sides."""
        count = {}
        for pair in sorted(pairs):
            rank = int(self._rank_of[pair[far_end]])
            count[rank] = count.get(rank, -1) + 1
            yield pair, count[rank]

    def _out(self, pair):
        """The halves of an outbox."""
        sender, receiver = pair
        at = self._at[sender]
        j = self._neighbours[sender].index(receiver)
        return [self.outbox[sender][at[2 * j + half] : at[2 * j + half + 1]] for half in range(2)]

    def address(self, sender, receiver, half):
        """Address of the half of the sender's outbox that is for the receiver, or of what has come of it."""
        if (sender, receiver) in self._coming:
            return self._coming[sender, receiver][half].ctypes.data
        return super().address(sender, receiver, half)

    def exchange(self, soonest_ps):
        """Send what the window wrote, take what others wrote; the earliest event of all ranks (ps)."""
        begun = time.perf_counter()
        half = self._number & 1
        self._number += 1
        communicator, word = self._communicator, self._mpi.INT64_T
        requests = [
            communicator.Irecv([channel.halves[half], word], channel.rank, channel.tag) for channel in self._receives
        ]
        for channel in self._sends:
            buffer = channel.halves[half]
            length = HEADER_WORDS + CROSSING_WORDS * int(buffer[0])
            requests.append(communicator.Isend([buffer, length, word], channel.rank, channel.tag))
        self._mine[0] = soonest_ps
        self._mine[1] = -int(self.wants_progress)
        communicator.Allreduce(self._mine, self._all, op=self._mpi.MIN)
        self._mpi.Request.Waitall(requests)
        self.sync_s += time.perf_counter() - begun
        if self._all[1] < 0:
            self.on_progress()
        return int(self._all[0])


def run_ranks(layout, program, settings, communicator, threads=1, progress=None, nodes_total=0):
    """Build the worlds of this rank's LPs and run them, with those of all other ranks.

    Args:
        layout: the fabric divided among LPs, the same on all ranks; a rank has `layout.share(ranks, rank)`.
        program: what the NPUs of this rank's LPs do, at least.
        settings: of the packet network.
        communicator: of mpi4py.
        threads: workers of this rank.
        progress: called now and then with a Snapshot, on rank 0.
        nodes_total: trace rows of all ranks, for the progress.

    Returns:
        Results: counters, links, digest and times of the whole run on every rank; times of trace rows of this rank's
        NPUs; flows on rank 0 only. And seconds that this rank has spent in exchanges.

    Raises:
        RunError: as pdes.run.
    """
    begun = time.perf_counter()
    compile_s = compile_kernels()
    size, me = communicator.Get_size(), communicator.Get_rank()
    parts = [layout.part(number) for number in layout.share(size, me)]
    ranks = _Ranks(layout, parts, communicator)
    sim = build_lps(layout, program, settings, parts, ranks)
    threads = min(threads, len(parts))
    team = np.zeros(team_words(threads), np.int64)
    found_team(team, threads, layout.fabric.cell_ps, crews=1, exchanges=True)
    reporter = _Reporter(team, ranks, communicator, progress, nodes_total)
    ranks.on_progress = reporter.collect
    crew = Crew(sim, team, threads, progress=reporter, nodes_total=nodes_total, exchange=ranks.exchange)
    setup_s = time.perf_counter() - begun - compile_s
    communicator.Barrier()
    started = time.perf_counter()
    crew.run()
    wall_s = time.perf_counter() - started
    own = harvest(sim)
    whole = _gathered(own, communicator)
    check(whole)
    return results(
        whole,
        own,
        layout.graph,
        wall_s=wall_s,
        setup_s=setup_s,
        compile_s=compile_s,
        first_event_s=crew.first_event_s,
        settled=settled(sim) | {"sync_s": ranks.sync_s},
    )


class _Reporter:
    """Progress of all ranks on rank 0: once in a while it says that it wants the sums, and gets them."""

    def __init__(self, team, ranks, communicator, progress, nodes_total):
        self._team = team
        self._ranks = ranks
        self._communicator = communicator
        self._progress = progress
        self._nodes_total = nodes_total
        self._last = None

    def __call__(self, snapshot):
        """A pause of this rank's crew."""
        self._last = snapshot
        self._ranks.wants_progress = self._progress is not None

    def collect(self):
        """All ranks sum up."""
        mine = np.array([self._team[TEAM_HOPS], self._team[TEAM_LEFT]], np.int64)
        sums = np.zeros_like(mine)
        self._communicator.Reduce(mine, sums, root=0)
        self._ranks.wants_progress = False
        if self._progress is not None and self._last is not None:
            self._progress(replace(self._last, packet_hops=int(sums[0]), nodes_done=-int(sums[1])))


def _gathered(own, communicator):
    """What all ranks have brought; flows on rank 0 only, trace rows nowhere."""
    light = replace(own, start_ps=own.start_ps[:0], finish_times_ps=own.finish_times_ps[:0], rows=own.rows * 0)
    harvests = communicator.gather(light)
    whole = None
    if harvests is not None:
        whole = merge(harvests)
        without_flows = replace(whole, flows_out=whole.flows_out[:0], flows_in=whole.flows_in[:0])
        communicator.bcast(without_flows)
        return whole
    return communicator.bcast(None)
