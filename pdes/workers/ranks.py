"""Workers as MPI ranks, each with threads of its own.

The ranks of one node are a team: they share the memory of their outboxes and meet at the end of a window without MPI.
Between nodes the first rank of each does one exchange with its neighbours and one reduction per window, for all of its
node. Buffers are NumPy arrays that stay where they are; nothing is pickled while windows go on. What all nodes must
know of the run (that someone wants to show progress) rides in the reduction. mpi4py is imported when a run on ranks
begins.
"""

import time
from dataclasses import replace

import numpy as np

from pdes.build.post import Post
from pdes.build.worlds import build_lps
from pdes.core.errors import AgreedRunError, RunError
from pdes.harvest.gathering import check, harvest, merge, results
from pdes.network.boundary import HEADER_WORDS, WORD_BYTES
from pdes.nic.driven import has_shares, with_driven
from pdes.workers.crew import AbortedError, Crew, compile_kernels
from pdes.workers.team import TEAM_HOPS, TEAM_LEFT, found_team, team_words
from pdes.workers.threads import settled

LINE_WORDS = 16
FAILED_RANK_ENDS_US_S = 10.0


class _Channel:
    """What one LP sends to another on another node, on the side of the sender or of the receiver.

    halves: two int64[] buffers, that of even windows first.
    """

    def __init__(self, node, tag, halves):
        self.node = node
        self.tag = tag
        self.halves = halves


class _Segments:
    """Memory that the ranks of a node share: each takes pieces of its own segment, and all see all segments.

    Outboxes have room for the most that links can carry, so most of it is never written and must not be touched.
    """

    def __init__(self, mpi, node, words_of_rank):
        me = node.Get_rank()
        self._window = mpi.Win.Allocate_shared(WORD_BYTES * words_of_rank[me], WORD_BYTES, comm=node)
        self._words = [
            np.frombuffer(self._window.Shared_query(rank)[0], np.int64)[:words]
            for rank, words in enumerate(words_of_rank)
        ]
        self._used = [0] * len(words_of_rank)

    def take(self, rank, words):
        """int64[words] of a rank's segment; all ranks must take the same pieces in the same order."""
        begin = self._used[rank]
        self._used[rank] += rounded(words)
        return self._words[rank][begin : begin + words]


def rounded(words):
    """Whole pairs of cache lines."""
    return -(-words // LINE_WORDS) * LINE_WORDS


class _Node(Post):
    """The LPs of a node's ranks: their outboxes, buffers for what comes from other nodes, and the exchange.

    Args:
        layout: the fabric divided among LPs.
        communicator: all ranks.
        share_memory: whether ranks of one node share memory; else each is a node of its own.
        threads: workers of each rank.
    """

    def __init__(self, layout, communicator, threads, *, share_memory):
        from mpi4py import MPI  # noqa: PLC0415 - only runs on ranks need it

        self._mpi = MPI
        me, size = communicator.Get_rank(), communicator.Get_size()
        self.node = communicator.Split_type(MPI.COMM_TYPE_SHARED) if share_memory else communicator.Split(me)
        self.rank_in_node = self.node.Get_rank()
        ranks = self.node.allgather(me)
        self._leaders = communicator.Split(0 if self.rank_in_node == 0 else MPI.UNDEFINED)
        node_numbers = communicator.allgather(ranks[0])
        number_of = {leader: number for number, leader in enumerate(sorted(set(node_numbers)))}
        self.nodes = len(number_of)
        self._node_of_lp = np.concatenate(
            [np.full(len(layout.share(size, rank)), number_of[node_numbers[rank]]) for rank in range(size)]
        )
        here = number_of[ranks[0]]
        parts_of = [[layout.part(number) for number in layout.share(size, rank)] for rank in ranks]
        self.parts = parts_of[self.rank_in_node]
        workers = threads * len(ranks)
        words = [sum(self._words(part, here) for part in parts) for parts in parts_of]
        words[0] += rounded(team_words(workers))
        memory = _Segments(MPI, self.node, words)
        self._memory = memory
        self.team = memory.take(0, team_words(workers))
        if self.rank_in_node == 0:
            self.team[:] = 0
        super().__init__([])
        self._coming = {}
        for rank, parts in enumerate(parts_of):
            for part in parts:
                self._settle(part, here, memory, rank)
        pairs_out = [(lp, other) for lp, others in self._neighbours.items() for other in others]
        pairs_out = [pair for pair in pairs_out if self._node_of_lp[pair[1]] != here]
        self._sends = [_Channel(rank, tag, self._out(pair)) for pair, rank, tag in self._tags(pairs_out, 1)]
        self._receives = [
            _Channel(rank, tag, self._coming[pair]) for pair, rank, tag in self._tags(list(self._coming), 0)
        ]
        self._number = 0
        self._mine = np.zeros(2, np.int64)
        self._all = np.zeros(2, np.int64)
        self.exchange_s = 0.0
        self.wants_progress = False
        self.progress = None
        self._last = None

    def _words(self, part, here):
        """Length of an LP's outbox and of the buffers for what comes to it from other nodes."""
        rooms = [
            room for other, room in zip(part.neighbours, part.rooms_in, strict=True) if self._node_of_lp[other] != here
        ]
        return rounded(int(part.outbox_at()[-1])) + sum(2 * rounded(part.half_words(room)) for room in rooms)

    def _settle(self, part, here, memory, rank):
        """Take the memory of an LP."""
        self._neighbours[part.number] = part.neighbours
        self._at[part.number] = part.outbox_at()
        self.outbox[part.number] = memory.take(rank, int(part.outbox_at()[-1]))
        if rank == self.rank_in_node:
            self.outbox[part.number][part.outbox_at()[:-1]] = 0
        for other, room in zip(part.neighbours, part.rooms_in, strict=True):
            if self._node_of_lp[other] != here:
                halves = [memory.take(rank, part.half_words(room)) for _ in range(2)]
                self._coming[other, part.number] = halves
                if rank == self.rank_in_node:
                    halves[0][0] = halves[1][0] = 0

    def _tags(self, pairs, far_end):
        """Pairs of LPs with the other node and a tag each: their place among the pairs between the two nodes."""
        count = {}
        for pair in sorted(pairs):
            node = int(self._node_of_lp[pair[far_end]])
            count[node] = count.get(node, -1) + 1
            yield pair, node, count[node]

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
        """Send what the window wrote, take what others wrote; the earliest event of all ranks (ps). By first ranks."""
        begun = time.perf_counter()
        half = self._number & 1
        self._number += 1
        leaders, word = self._leaders, self._mpi.INT64_T
        requests = [
            leaders.Irecv([channel.halves[half], word], channel.node, channel.tag) for channel in self._receives
        ]
        for channel in self._sends:
            buffer = channel.halves[half]
            length = HEADER_WORDS + self.parts[0].crossing_words * int(buffer[0])
            requests.append(leaders.Isend([buffer, length, word], channel.node, channel.tag))
        self._mine[0] = soonest_ps
        self._mine[1] = -int(self.wants_progress)
        leaders.Allreduce(self._mine, self._all, op=self._mpi.MIN)
        self._mpi.Request.Waitall(requests)
        self.exchange_s += time.perf_counter() - begun
        if self._all[1] < 0:
            self._show()
        return int(self._all[0])

    def paused(self, snapshot):
        """A pause of the first worker: show progress, or ask the other nodes for theirs in the next exchange."""
        if self.progress is None:
            return
        self._last = snapshot
        if self.nodes > 1:
            self.wants_progress = True
        else:
            self.progress(snapshot)

    def _show(self):
        """All nodes sum up, and rank 0 shows."""
        mine = np.array([self.team[TEAM_HOPS], self.team[TEAM_LEFT]], np.int64)
        sums = np.zeros_like(mine)
        self._leaders.Reduce(mine, sums, root=0)
        self.wants_progress = False
        if self.progress is not None and self._last is not None:
            self.progress(replace(self._last, packet_hops=int(sums[0]), nodes_done=-int(sums[1])))


def run_ranks(layout, program, settings, communicator, threads=1, progress=None, *, share_memory=True):
    """Build the worlds of this rank's LPs and run them, with those of all other ranks.

    Args:
        layout: the fabric divided among LPs, the same on all ranks; a rank has `layout.share(ranks, rank)`.
        program: what the NPUs of this rank's LPs do, at least.
        settings: of the packet network.
        communicator: of mpi4py.
        threads: workers of each rank.
        progress: called now and then with a Snapshot; on rank 0 only, None on others.
        share_memory: ranks of one node meet in shared memory; else all meet through MPI.

    Returns:
        Results: counters, links, digest and times of the whole run on every rank; times of trace rows of this rank's
        NPUs; flows on rank 0 only.

    Raises:
        RunError: as pdes.run.
    """
    begun = time.perf_counter()
    settings = with_driven(settings, driven=communicator.allreduce(int(has_shares(program))) > 0)
    compile_s = compile_kernels(layout.graph, settings)
    size = communicator.Get_size()
    threads = min([threads, *(len(layout.share(size, rank)) for rank in range(size))])
    node = _Node(layout, communicator, threads, share_memory=share_memory)
    node.progress = progress
    sim = build_lps(layout, program, settings, node.parts, node)
    if node.rank_in_node == 0:
        workers = threads * node.node.Get_size()
        found_team(node.team, workers, layout.fabric.cell_ps, crew_size=threads, exchanges=node.nodes > 1)
    nodes_total = communicator.reduce(sum(int(lp.world.net.ctl.rows_left) for lp in sim.lps)) or 0
    crew = Crew(
        sim,
        node.team,
        threads,
        first=threads * node.rank_in_node,
        progress=node.paused,
        nodes_total=nodes_total,
        exchange=node.exchange,
    )
    setup_s = time.perf_counter() - begun - compile_s
    communicator.Barrier()
    started = time.perf_counter()
    try:
        crew.run()
    except AbortedError:
        time.sleep(FAILED_RANK_ENDS_US_S)
        raise RunError("another rank failed and did not end this one") from None
    except Exception as error:
        text = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        raise RunError(f"rank {communicator.Get_rank()}: {text}") from error
    wall_s = time.perf_counter() - started
    own = harvest(sim)
    whole = _gathered(own, communicator)
    try:
        check(whole)
    except RunError as error:
        raise AgreedRunError(str(error)) from None
    return results(
        whole,
        own,
        layout.graph,
        wall_s=wall_s,
        setup_s=setup_s,
        compile_s=compile_s,
        first_event_s=crew.first_event_s,
        settled=settled(sim) | {"teams": node.nodes},
    )


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
