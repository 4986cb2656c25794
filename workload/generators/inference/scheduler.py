"""Continuous batching: assignment of sequences to iterations, fixed when the traces are generated.

As in vLLM, prompts have priority: an iteration runs waiting prompts unsplit if the batch and the cache have room for
them, else it decodes one token of every running sequence. With chunked prefill, an iteration has a maximum number of
tokens: one per running sequence, and the rest for pieces of prompts (Sarathi-Serve, arXiv 2403.02310, algorithm 3).
With several pipeline stages, the same number of batches is in flight, each with its own sequences, like vLLM's virtual
engines.

The scheduler admits a request when the cache has room for its prompt and all its tokens, so it never evicts one.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nadi.workload.generators.inference.requests import Request


class Prompts(NamedTuple):
    """Pieces of prompts with the same shape."""

    sequences: int  # Number of pieces, each of a different sequence
    tokens: int  # Number of tokens per piece in this iteration
    context: int  # Number of earlier tokens per sequence in the KV cache


class Batch(NamedTuple):
    """The batch of an iteration."""

    prompts: tuple[Prompts, ...] = ()  # Pieces of prompts by shape
    decodes: int = 0  # Number of sequences that decode one token
    keys: int = 0  # Mean number of keys per decoding sequence, including the new one, rounded up
    sampled: int = 0  # Number of sequences that get a token

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens."""
        return sum(piece.sequences * piece.tokens for piece in self.prompts)

    @property
    def tokens(self) -> int:
        """Number of tokens that pass through the matrices."""
        return self.prompt_tokens + self.decodes

    @property
    def name(self) -> str:
        """Name of the pass: prefill, decode or mixed."""
        if self.prompts:
            return "mixed" if self.decodes else "prefill"
        return "decode"


class Iteration(NamedTuple):
    """One pass of a replica through the model."""

    number: int  # Number of the iteration, from 0
    lane: int  # Number of its batch in flight; each batch in flight has its own sequences
    batch: Batch  # Shapes of the pass
    name: str  # Name of the pass; a replica without tokens uses the name of the other replicas' pass
    joined: tuple[Request, ...] = ()  # Requests that start in the iteration
    prompted: tuple[Request, ...] = ()  # Requests whose prompt ends in the iteration
    marks: tuple[tuple[int, int], ...] = ()  # Request number and number of tokens so far, for first and last tokens


Clock = Callable[[Batch], float]  # Function that returns the microseconds of an iteration


class BatchLimits(NamedTuple):
    """Limits of each batch in flight of a replica."""

    sequences: int  # Maximum number of running sequences
    cached_tokens: int  # Maximum number of tokens in the KV cache, 0 = unlimited
    prompt_tokens: int  # Maximum number of tokens of unsplit prompts per iteration; a longer prompt runs alone
    chunk: int  # Maximum number of tokens per iteration with chunked prefill, 0 = prompts run unsplit
    lanes: int  # Number of batches in flight
    stages: int  # Number of pipeline stages; an iteration occupies each for an equal share of its time


class Role(NamedTuple):
    """The phases of requests that a replica runs: `prefills` = prompts, `decodes` = tokens after the first one."""

    prefills: bool = True  # Whether it processes prompts
    decodes: bool = True  # Whether it generates the tokens after the first one


@dataclass
class _Running:
    """A sequence that runs, with the numbers of its tokens in the cache and of those generated so far."""

    request: Request  # Request that the sequence answers
    cached: int = 0  # Number of its tokens in the KV cache
    generated: int = 0  # Number of tokens generated so far


@dataclass
class _Lane:
    """One batch in flight of one replica, with its waiting and running requests.

    `reserved` is the number of cached tokens that the running requests can reach.
    """

    limits: BatchLimits  # Limits of the batch
    role: Role  # Phases that the replica runs
    waiting: deque[Request]  # Requests that have not started, in order of arrival
    running: list[_Running] = field(default_factory=list)  # Sequences that run
    reserved: int = 0  # Number of cached tokens that the running requests can reach

    def begins_at(self) -> float | None:
        """Return the earliest microsecond of the next iteration; None = all requests are done."""
        if self.running:
            return 0.0
        return float(self.waiting[0].arrival_us) if self.waiting else None

    def next(self, now_us: float) -> "_Work":
        """Schedule the next iteration.

        Args:
            now_us: The time at which the iteration begins, in microseconds.
        """
        work = _Work()
        if self.role.prefills and self.limits.chunk:
            self._chunked(now_us, work)
        elif self.role.prefills:
            self._admit(now_us, work)
            if not work.pieces:
                self._decode(work)
        else:
            self._join(now_us, work)
            self._decode(work)
        decodes = self.role.decodes
        for done in [each for each in self.running if each.generated >= (each.request.generate if decodes else 1)]:
            self.running.remove(done)
            self.reserved -= self._needs(done.request)
        return work

    def _needs(self, request: Request) -> int:
        """Return the number of tokens of a request that the cache must be able to hold."""
        return request.prompt + (request.generate if self.role.decodes else 0)

    def _may_admit(self, now_us: float) -> bool:
        """Return whether the first waiting request may join the batch now."""
        limits = self.limits
        if not self.waiting or self.waiting[0].arrival_us > now_us or len(self.running) >= limits.sequences:
            return False
        return not limits.cached_tokens or self.reserved + self._needs(self.waiting[0]) <= limits.cached_tokens

    def _take(self, work: "_Work") -> _Running:
        """Add the first waiting request to the running ones and to an iteration's work, and return it."""
        sequence = _Running(self.waiting.popleft())
        self.running.append(sequence)
        self.reserved += self._needs(sequence.request)
        work.joined.append(sequence.request)
        return sequence

    def _admit(self, now_us: float, work: "_Work") -> None:
        """Admit prompts, each as a whole, to an iteration's work."""
        left = self.limits.prompt_tokens
        while self._may_admit(now_us) and (self.waiting[0].prompt <= left or not work.pieces):
            sequence = self._take(work)
            left -= sequence.request.prompt
            work.prompt(sequence, sequence.request.prompt)

    def _chunked(self, now_us: float, work: "_Work") -> None:
        """Add a token of each running sequence to an iteration's work, then pieces of prompts."""
        prompting = [each for each in self.running if not each.generated]
        self._decode(work)
        left = self.limits.chunk - len(work.keys)
        while left > 0:
            if not prompting:
                if not self._may_admit(now_us):
                    return
                prompting.append(self._take(work))
            each = prompting.pop(0)
            tokens = min(left, each.request.prompt - each.cached)
            work.prompt(each, tokens)
            left -= tokens

    def _join(self, now_us: float, work: "_Work") -> None:
        """Admit requests whose prompts another engine computed to an iteration's work."""
        while self._may_admit(now_us):
            sequence = self._take(work)
            sequence.cached, sequence.generated = sequence.request.prompt, 1

    def _decode(self, work: "_Work") -> None:
        """Add a token of each running sequence to an iteration's work."""
        for each in self.running:
            if each.generated:
                work.decode(each)


class _Work:
    """The growing batch of one iteration of a lane."""

    def __init__(self) -> None:
        """Begin without work."""
        self.pieces: Counter[tuple[int, int]] = Counter()
        self.keys: list[int] = []
        self.joined: list[Request] = []
        self.prompted: list[Request] = []
        self.marks: list[tuple[int, int]] = []
        self.sampled = 0

    def prompt(self, sequence: _Running, tokens: int) -> None:
        """Add a piece of a sequence's prompt.

        Args:
            sequence: The running sequence.
            tokens: The number of tokens of the piece.
        """
        self.pieces[tokens, sequence.cached] += 1
        sequence.cached += tokens
        if sequence.cached == sequence.request.prompt:
            self.prompted.append(sequence.request)
            self._token(sequence)

    def decode(self, sequence: _Running) -> None:
        """Add the next token of a sequence.

        Args:
            sequence: The running sequence.
        """
        sequence.cached += 1
        self.keys.append(sequence.cached)
        self._token(sequence)

    def _token(self, sequence: _Running) -> None:
        """Count a token that is sampled for a sequence, and mark its first and last one."""
        sequence.generated += 1
        self.sampled += 1
        if sequence.generated in {1, sequence.request.generate}:
            self.marks.append((sequence.request.number, sequence.generated))

    def batch(self) -> Batch:
        """Return the batch of the work so far."""
        prompts = tuple(Prompts(count, *shape) for shape, count in self.pieces.items())
        decodes = len(self.keys)
        return Batch(prompts, decodes, -(-sum(self.keys) // decodes) if decodes else 0, self.sampled)


class ServingSchedule(NamedTuple):
    """Iterations of one replica, or of several replicas in lockstep."""

    iterations: tuple[tuple[Iteration, ...], ...]  # Iterations of each replica; all replicas have the same number
    prompted_us: dict[int, float]  # Microsecond of the clock when a request's prompt ends, by request number


def say_nothing(_text: str) -> None:
    """Report no progress.

    Args:
        _text: A text about the progress, which is not used.
    """


def schedule(
    requests: Sequence[Sequence[Request]],
    limits: BatchLimits,
    role: Role,
    clock: Clock,
    report: Callable[[str], None] = say_nothing,
) -> ServingSchedule:
    """Return the iterations of replicas in lockstep.

    The slowest replica determines the time of an iteration; a replica without work takes part with an empty batch.

    Args:
        requests: The requests of each replica in the order of arrival.
        limits: The limits of each batch in flight.
        role: The phases that the replicas run.
        clock: A function that returns the microseconds of an iteration by its batch.
        report: A function that is called after each iteration with a text about the progress.
    """
    waiting = sum(map(len, requests))
    lanes = [[_Lane(limits, role, deque(own[n :: limits.lanes])) for own in requests] for n in range(limits.lanes)]
    iterations: list[list[Iteration]] = [[] for _ in requests]
    prompted_us: dict[int, float] = {}
    free_us, lane_free_us = 0.0, [0.0] * limits.lanes
    number = 0
    while True:
        begins = [_begin(lane, free) for lane, free in zip(lanes, lane_free_us, strict=True)]
        open_lanes = [(begin, lane) for lane, begin in enumerate(begins) if begin is not None]
        if not open_lanes:
            return ServingSchedule(tuple(map(tuple, iterations)), prompted_us)
        begin, lane = min(open_lanes)
        now = max(begin, free_us)
        works = [each.next(now) for each in lanes[lane]]
        batches = [work.batch() for work in works]
        took = max(clock(batch) for batch in batches if batch.tokens)
        # The first stage is free for another lane after its share of the time, this lane's sequences after all stages
        free_us, lane_free_us[lane] = now + took / limits.stages, now + took
        names = {batch.name for batch in batches if batch.tokens}
        # A replica without tokens takes part in the experts' collectives, which must have the same name everywhere
        common = names.pop() if len(names) == 1 else "mixed"
        for own, work, batch in zip(iterations, works, batches, strict=True):
            of_requests = tuple(work.joined), tuple(work.prompted), tuple(work.marks)
            own.append(Iteration(number, lane, batch, batch.name if batch.tokens else common, *of_requests))
            prompted_us |= {request.number: now + took for request in work.prompted}
        number += 1
        report(f"scheduled {number:,} iterations, {len(prompted_us):,} of {waiting:,} prompts done")


def _begin(lane_of_replicas: list[_Lane], free_us: float) -> float | None:
    """Return the microsecond when a lane of all replicas can begin its next iteration; None = all requests are done.

    Args:
        lane_of_replicas: The lane of each replica.
        free_us: The time at which the lane's last iteration ends, in microseconds.
    """
    begins = [begin for begin in (each.begins_at() for each in lane_of_replicas) if begin is not None]
    return max(free_us, min(begins)) if begins else None
