"""Workers in several processes: forked on this machine, or MPI ranks, each with threads of its own.

Processes of this machine are forked after the kernels are compiled, and have outboxes and team in shared memory. Each
does its share from building the worlds of its own LPs on. Its outcome returns through a pipe at the end. When a
process dies, a thread of the first notices it and stops the others; when the first dies, the kernel's parent-death
signal ends them.
"""

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
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
from nadi.pdes.workers.team import Team, found_team, team_in, team_words

PR_SET_PDEATHSIG = 1  # option of prctl(2), linux/prctl.h
REPORT_TIMEOUT_S = 2.0  # time within which a failed process must report its error
END_TIMEOUT_S = 2.0  # time within which a stopped process must end
POLL_INTERVAL_S = 1e-4  # time between two checks whether all have built their worlds
ANSWER_INTERVAL_S = 0.1  # time between two checks whether the first process still lives
BUILT, DONE = 1, 2  # progress of a process


class _Workers:
    """The other processes of the run."""

    def __init__(self, team: Team, status: Int64) -> None:
        """Begin without processes; status: int64[workers], shared: BUILT once its worlds are built, DONE at its end."""
        self._team = team
        self._status = status
        self.started: list[tuple[BaseProcess, connection.Connection]] = []

    def start(self, target: Callable[[connection.Connection, int], None], worker: int) -> None:
        """Fork a process that calls target(pipe, worker), where worker is its number."""
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, worker), daemon=True, name=f"worker {worker}")
        # no Ctrl-C between the fork and its registration
        usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
            self.started.append((process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        theirs.close()

    def watch(self) -> None:
        """Stop the team as soon as a process ends before it is done; return when all have ended."""
        waiting: dict[Any, int] = {process.sentinel: i for i, (process, _) in enumerate(self.started, start=1)}
        while waiting:
            for sentinel in connection.wait(list(waiting)):
                if self._status[waiting.pop(sentinel)] != DONE:
                    # the others leave their kernels at the next wait; without this they would wait for ever for one
                    # that is gone
                    self._team.state.abort = 1

    def failure(self) -> RunError:
        """Return the error of the first process that reports one, after the team was stopped."""
        waiting: dict[Any, Any] = {pipe: (process, pipe) for process, pipe in self.started}
        # an error is sent before the process ends, so a short time is enough; a killed process sends none
        until = time.monotonic() + REPORT_TIMEOUT_S
        while waiting and (ready := connection.wait(list(waiting), max(0.0, until - time.monotonic()))):
            for pipe in ready:
                try:
                    _received(*waiting.pop(pipe))
                # it stopped because of another one, which knows the reason
                except AbortedError:
                    continue
                except RunError as error:
                    return error
        return RunError("a worker stopped the run without an error message")

    def stop(self) -> None:
        """End all processes that still run."""
        self._team.state.abort = 1
        until = time.monotonic() + END_TIMEOUT_S
        for process, _ in self.started:
            # all processes together have this long
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


class Processes(Mailbox):
    """This process and others that it forks, one worker each, at most as many as LPs."""

    def __init__(self, workers: int) -> None:
        self.size = workers
        self._pipe: connection.Connection | None = None  # to the first process; None = this is the first

    def everywhere(
        self,
        layout: Layout,
        threads: int,  # noqa: ARG002 - a process is one worker
        work: Share,
    ) -> tuple[LpResults, LpResults]:
        """Fork the others (layout, threads), do this process's share of `work`, and return all results and its own."""
        workers = self.size
        parts = [layout.part(number) for number in range(layout.lps)]
        words = sum(map(segment_words, (team_words(workers), workers)))
        words += sum(segment_words(int(part.outbox_at()[-1])) for part in parts)
        memory = Segment(np.frombuffer(mmap.mmap(-1, WORD_BYTES * words), np.int64))
        self._team = team = team_in(memory.take(team_words(workers)))
        self._status = status = memory.take(workers)
        found_team(team, layout.grid_ps, layout.lookahead_ps, pool_size=1)
        post = Outboxes(parts, memory.take)
        parent = os.getpid()

        def place(worker: int) -> ProcessPlace:
            """Return the place of a worker of the team by its number: one process, with its share of the LPs."""
            own = [parts[number] for number in layout.share(workers, worker)]
            self.number = worker
            return ProcessPlace(own, post, team, no_batches(own), worker)

        def child(pipe: connection.Connection, worker: int) -> None:
            """Do the share of worker number `worker` in a forked process; send its results or error through `pipe`."""
            # the kernel kills this process when its parent dies (Linux)
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal signals all, the parent ends its children
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._pipe = pipe
            try:
                own = work(place(worker))
                status[worker] = DONE
                pipe.send(own)
            except BaseException as error:  # noqa: BLE001 - the parent raises it
                pipe.send(_transferable(error, worker))
                team.state.abort = 1
            pipe.close()
            os._exit(0)

        self._others = others = _Workers(team, status)
        try:
            for worker in range(1, workers):
                others.start(child, worker)
            threading.Thread(target=others.watch, daemon=True).start()
            try:
                own = work(place(0))
            except AbortedError:
                raise others.failure() from None
            total = self._merged_here(own)
            total = replace(total, forked_rss_bytes=total.peak_rss_bytes - own.peak_rss_bytes)
            return total, total
        finally:
            others.stop()

    def _merged_here(self, own: LpResults) -> LpResults:
        """Return the outcome of all processes from that of the first, `own`, and those that the others send to it."""
        return merge([own, *(_received(process, pipe) for process, pipe in self._others.started)])

    def merged(self, own: LpResults) -> tuple[LpResults, LpResults] | None:
        """As Mailbox.merged.

        Args:
            own: LpResults of this process.
        """
        if self._pipe is not None:
            self._pipe.send(own)
            return None
        total = self._merged_here(own)
        return total, total

    def exchange(self, values: Sequence[Any]) -> list[Any]:
        """As Mailbox.exchange: through the first process.

        Args:
            values: What this process has for each.
        """
        if self._pipe is not None:
            self._pipe.send(list(values))
            while not self._pipe.poll(ANSWER_INTERVAL_S):
                if self._team.state.abort == 1:
                    raise AbortedError
            return list(self._pipe.recv())
        rows = [list(values), *(_received(process, pipe) for process, pipe in self._others.started)]
        columns = list(zip(*rows, strict=True))
        for (_, pipe), column in zip(self._others.started, columns[1:], strict=True):
            pipe.send(column)
        return list(columns[0])

    @contextlib.contextmanager
    def windows(self) -> Iterator[None]:
        """Let all begin when the last has built its worlds."""
        # a worker that began early would wait in its kernel with a busy core, beside others that still build
        self._status[self.number] = BUILT
        while (self._status < BUILT).any():
            if self._team.state.abort == 1:
                raise AbortedError
            time.sleep(POLL_INTERVAL_S)
        yield


def _received(process: BaseProcess, pipe: connection.Connection) -> Any:
    """Return what a process sends through its pipe, or raise the error that it raised."""
    try:
        outcome = pipe.recv()
    except (EOFError, OSError):
        # its exit code says how it ended
        process.join(END_TIMEOUT_S)
        code = process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        raise RunError(f"{process.name} (process {process.pid}) ended before the run did: {how}") from None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _transferable(error: BaseException, worker: int) -> BaseException:
    """Return the failure of worker number `worker` in a form that another process can raise, without traceback."""
    if isinstance(error, RunError | AbortedError):
        return error
    # the traceback stays in the other process: its last line is all that crosses
    frame = traceback.extract_tb(error.__traceback__)[-1]
    location = f"{Path(frame.filename).name}:{frame.lineno}"
    return RunError(f"worker {worker}: {defect_text(error)} ({location}); this is a defect")


# Workers as MPI ranks, each with threads of its own.
#
# The ranks of one node are a team: they share the memory of their outboxes and meet at the end of a window without MPI.
# Between teams there is one message to each other team after every window (`BatchExchange`), for all ranks of a
# node; the ranks divide the other teams among them. mpi4py is imported when a run on ranks begins.

ABORT_TIMEOUT_S = 10.0  # time within which a failed rank must end all others


class Ranks(Mailbox):
    """MPI ranks. Results on each have counters, links and digest of the total run; flows are on rank 0 only.

    team_ranks: maximum number of a node's ranks that share memory, others use MPI; 0 = all share it.
    """

    failure: type[RunError] = AgreedRunError

    def __init__(self, communicator: Any, team_ranks: int = 0) -> None:
        self._communicator = communicator
        self.size, self.number = communicator.Get_size(), communicator.Get_rank()
        self._team_ranks = team_ranks if jit_enabled() else 1  # plain Python has no atomic addition

    def lps(self, layout: Layout) -> range:
        """Return the LPs of this rank.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
        """
        return layout.share(self.size, self.number)

    def sum(self, value: int) -> int:
        """Return the sum over all ranks.

        Args:
            value: Value of this rank.
        """
        return int(self._communicator.allreduce(value))

    def exchange(self, values: Sequence[Any]) -> list[Any]:
        """As Mailbox.exchange.

        Args:
            values: What this rank has for each.
        """
        return list(self._communicator.alltoall(values))

    def of_all(self, value: Any) -> list[Any]:
        """As Mailbox.of_all.

        Args:
            value: Value of this rank.
        """
        return list(self._communicator.allgather(value))

    def everywhere(self, layout: Layout, threads: int, work: Share) -> tuple[LpResults, LpResults]:
        """Let every rank do its work; all ranks call this. As Mailbox.everywhere.

        Args:
            layout: Division of the fabric among LPs (`Layout`).
            threads: Maximum number of workers of a rank.
            work: Function of a process's ProcessPlace that returns its LpResults.
        """
        # the same number on each rank, as teams have one size
        # found by each rank for itself, from the layout alone
        threads = min([threads, *(len(layout.share(self.size, rank)) for rank in range(self.size))])
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
            raise RunError(f"rank {self.number}: {text}") from error


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
