"""Workers as MPI ranks, each with threads of its own.

The ranks of one node are a team: they share the memory of their outboxes and meet at the end of a window without MPI.
Between teams there is one message to each other team after every window (`BatchExchange`), for all ranks of a
node; the ranks divide the other teams among them. mpi4py is imported when a run on ranks begins.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from nadi.compiling import defect_text
from nadi.pdes.construction.layout import Layout, Outboxes, Part
from nadi.pdes.core import AgreedRunError, Int64, RunError
from nadi.pdes.core.jit import hook_address, jit_enabled
from nadi.pdes.core.packet import WORD_BYTES
from nadi.pdes.outcomes.outcome import LpResults, merge
from nadi.pdes.workers import AbortedError, Mailbox, ProcessPlace, Segment, Share, StoppedError, rounded, segment_words
from nadi.pdes.workers.batches import MOST_RECORDS, batch_words, batches_of, no_batches, record_words
from nadi.pdes.workers.other_teams import OTHER_TEAMS, BatchExchange
from nadi.pdes.workers.team import found_team, team_in, team_words

ABORT_TIMEOUT_S = 10.0  # time within which a failed rank must end all others


class Ranks(Mailbox):
    """MPI ranks. Results on each have counters, links and digest of the total run; flows are on rank 0 only.

    team_ranks: maximum number of a node's ranks that share memory, others use MPI; 0 = all share it.
    """

    failure: type[RunError] = AgreedRunError

    def __init__(self, communicator: Any, team_ranks: int = 0) -> None:
        self._communicator = communicator
        self._team_ranks = team_ranks if jit_enabled() else 1  # plain Python has no atomic addition

    def lps(self, layout: Layout) -> range:
        """Return the LPs of this rank.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
        """
        return layout.share(self._communicator.Get_size(), self._communicator.Get_rank())

    def sum(self, value: int) -> int:
        """Return the sum over all ranks.

        Args:
            value: Value of this rank.
        """
        return int(self._communicator.allreduce(value))

    def have_all(self, is_done: bool) -> bool:
        """As Mailbox.have_all.

        Args:
            is_done: Whether this rank has done its part.
        """
        return all(self._communicator.allgather(is_done))

    def everywhere(self, layout: Layout, threads: int, work: Share) -> tuple[LpResults, LpResults]:
        """Let every rank do its work; all ranks call this. As Mailbox.everywhere.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
            threads: Maximum number of workers of a rank.
            work: Function of a process's ProcessPlace that returns its LpResults.
        """
        size = self._communicator.Get_size()
        # the same number on each rank, as teams have one size
        # found by each rank for itself, from the layout alone
        threads = min([threads, *(len(layout.share(size, rank)) for rank in range(size))])
        team = _Team(layout, self._communicator, threads, self._team_ranks)
        try:
            own = work(team.place)
        except StoppedError:
            team.close()
            raise
        total, own = self.merged(own)
        team.close()
        return replace(total, settled=total.settled | {"teams": team.teams}), own

    def merged(self, own: LpResults) -> tuple[LpResults, LpResults]:
        """As Mailbox.merged.

        Args:
            own: LpResults of this rank.
        """
        # flows on rank 0 only, trace rows nowhere
        # start and finish times are the largest arrays of a run; each rank keeps those of its own NPUs
        light = replace(own, start_ps=own.start_ps[:0], finish_times_ps=own.finish_times_ps[:0], rows=own.rows * 0)
        outcomes = self._communicator.gather(light)
        total = merge(outcomes) if outcomes else own
        without_flows = self._communicator.bcast(replace(total, flows_out=[], flows_in=[]))
        return total if outcomes else without_flows, own

    @contextmanager
    def windows(self) -> Iterator[None]:
        """Let all ranks begin together; report a failure with the number of its rank."""
        self._communicator.Barrier()
        try:
            yield
        except StoppedError:
            raise
        except AbortedError:
            # the rank that failed ends all of them, with its reason
            time.sleep(ABORT_TIMEOUT_S)
            raise RunError("another rank failed and did not end this one") from None
        except Exception as error:
            text = str(error) if isinstance(error, RunError) else defect_text(error)
            raise RunError(f"rank {self._communicator.Get_rank()}: {text}") from error


def partners_of(ranks_of_team: Sequence[Sequence[int]], here: int, rank_in_team: int) -> dict[int, int]:
    """Return the other teams that a rank of a team exchanges batches with -> the rank there that does so.

    Args:
        ranks_of_team: Ranks of each team.
        here: Number of the rank's team.
        rank_in_team: Index of the rank in its team.
    """
    # Other teams are numbered without the rank's own; the ranks of a team take them in rotation.
    partners = {}
    for other in range(rank_in_team, len(ranks_of_team) - 1, len(ranks_of_team[here])):
        team = other + (other >= here)
        theirs = ranks_of_team[team]
        # Example: three teams of two ranks. Rank 0 of team 0 exchanges with the first other team (1), rank 1 with the
        # second (2); in team 2, team 0 is other team 0, so rank 0 of team 2 answers.
        partners[other] = theirs[(here - (here > team)) % len(theirs)]
    return partners


class _Team(Outboxes):
    """The LPs of a team's ranks: all ranks of a node, or at most max_ranks; outboxes, and batches for other teams."""

    def __init__(self, layout: Layout, communicator: Any, threads: int, max_ranks: int) -> None:
        """Share memory with the ranks of this node, max_ranks at most (0 = all); threads: workers of each rank."""
        from mpi4py import MPI  # noqa: PLC0415 - only runs on ranks need it

        super().__init__([])
        me, size = communicator.Get_rank(), communicator.Get_size()
        # ranks that can share memory, as MPI sees it: those of one node
        node = communicator.Split_type(MPI.COMM_TYPE_SHARED)
        self._team = node.Split(node.Get_rank() // (max_ranks or node.Get_size()))
        node.Free()
        rank_in_team = self._team.Get_rank()
        ranks = self._team.allgather(me)
        self._leaders = communicator.Split(0 if rank_in_team == 0 else MPI.UNDEFINED)
        # named by its first rank, then numbered from 0
        team_of_rank = np.unique(communicator.allgather(ranks[0]), return_inverse=True)[1]
        self.teams = int(team_of_rank.max()) + 1
        here = int(team_of_rank[me])
        self._team_of_lp = np.repeat(team_of_rank, [len(layout.share(size, rank)) for rank in range(size)])
        parts_of = [[layout.part(number) for number in layout.share(size, rank)] for rank in ranks]
        for parts in parts_of:
            for part in parts:
                part.join_teams(layout.graph, layout.owner, self._team_of_lp)
        rooms = self._rooms([part for parts in parts_of for part in parts])
        workers = threads * len(ranks)
        words, shared = self._memory(MPI, parts_of, team_words(workers), int(rooms.sum()))
        team = team_in(words)
        begins = np.cumsum(rooms) - rooms
        own = parts_of[rank_in_team]
        if rank_in_team == 0:
            words[:] = 0
            shared[begins] = 0
            found_team(team, layout.grid_ps, layout.lookahead_ps, pool_size=threads)
        for part in own:
            part.send_first(layout.graph, np.flatnonzero(self._team_of_lp != here).tolist())
            self.outbox[part.number][part.outbox_at()[:-1]] = 0
        self._own = {part.number: place for place, part in enumerate(own)}
        self._batches = batches = no_batches(own)
        self._exchange: BatchExchange | None = None
        first = threads * rank_in_team
        if self.teams > 1:
            others = self.teams - 1
            memory = (shared, begins[:others], begins[others:])
            ranks_of_team = [np.flatnonzero(team_of_rank == other).tolist() for other in range(self.teams)]
            partners = partners_of(ranks_of_team, here, rank_in_team)
            self._batches = batches = batches_of(own, layout, self._team_of_lp, here, *memory, partners)
            for name, function in OTHER_TEAMS.items():  # compiled or loaded
                batches.hooks[name] = hook_address(function)
            # a communicator of its own: messages of others cannot be taken for batches
            self._talk = communicator.Dup()
            self._exchange = BatchExchange(MPI, self._talk, self._leaders, team, first, batches, rooms)
        self.place = ProcessPlace(own, self, team, batches, first, threads, me, self._exchange, ranks)

    def _memory(
        self, mpi: Any, parts_of: Sequence[Sequence[Part]], team_length: int, batches_length: int
    ) -> tuple[Int64, Int64]:
        """Allocate memory that the ranks share; return that of the team and of its batches, on the first rank."""
        # mpi: mpi4py.MPI; parts_of: parts of each rank; team_length, batches_length: words.
        # There is room for everything that links can carry, so most of it is never written and must not be touched
        words = [sum(segment_words(int(part.outbox_at()[-1])) for part in parts) for parts in parts_of]
        words[0] += segment_words(team_length) + segment_words(batches_length)
        mine = words[self._team.Get_rank()]
        self._window = mpi.Win.Allocate_shared(WORD_BYTES * mine, WORD_BYTES, comm=self._team)
        segments = [
            Segment(np.frombuffer(self._window.Shared_query(rank)[0], np.int64)[:length])
            for rank, length in enumerate(words)
        ]
        team_and_batches = segments[0].take(team_length), segments[0].take(batches_length)
        for segment, parts in zip(segments, parts_of, strict=True):
            for part in parts:
                self._lists[part.number] = part.list_of_neighbour()
                self._at[part.number] = part.outbox_at()
                self.outbox[part.number] = segment.take(int(part.outbox_at()[-1]))
        return team_and_batches

    def _rooms(self, parts: Sequence[Part]) -> Int64:
        """Return int64[3 x other teams]: lengths of batches to each, then of the two from each, in whole lines."""
        here = self._team_of_lp[parts[0].number]
        packets = np.zeros((2, self.teams), np.int64)
        for part in parts:
            for direction, rooms in enumerate((part.rooms, part.rooms_in)):
                # add.at, since several neighbours are of one team: `+=` with repeated indices would count one of them
                np.add.at(packets[direction], self._team_of_lp[part.neighbours], rooms)
        # a packet may need two records
        records = MOST_RECORDS * np.delete(packets, here, axis=1)
        out, into = rounded(batch_words(records, record_words(parts[0])))
        return np.concatenate([out, np.repeat(into, 2)])

    def address(self, sender: int, receiver: int, half: int) -> int:
        """Return the address of the half of the sender's outbox for the receiver, or of its copy from a batch."""
        if self._team_of_lp[sender] == self._team_of_lp[receiver]:
            return super().address(sender, receiver, half)
        batches = self._batches
        here, team = self._team_of_lp[[receiver, sender]]
        place = self._own[receiver] * (self.teams - 1) + team - (team > here)
        return batches.halves.ctypes.data + WORD_BYTES * int(batches.half_at[place])

    def close(self) -> None:
        """Free the memory and communicators; all ranks call this after a successful run."""
        if self._exchange is not None:
            self._exchange.close()
            self._talk.Free()
        # nobody may still read the memory that is freed
        self._team.Barrier()
        self._window.Free()
        if self._leaders:
            self._leaders.Free()
        self._team.Free()
