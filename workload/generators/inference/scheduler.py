"""Continuous batches: which sequences are in which iteration, decided when the traces are made.

As vLLM: an iteration takes prompts that wait, whole, if the batch and the cache have room for them, else it works out
one token of every running sequence (prompts first). With chunked prefill an iteration has so many tokens at most: one
of every running sequence, and the rest of pieces of prompts (Sarathi-Serve, arXiv 2403.02310, algorithm 3). With
several pipeline stages as many batches are in flight, each with sequences of its own, as vLLM's virtual engines.

A request is admitted when the cache has room for its prompt and all its tokens, so that none is ever thrown out.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from workload.generators.inference.batch import Batch, Iteration, Prompts
from workload.generators.inference.requests import Request

Clock = Callable[[Batch], float]
"""Microseconds that an iteration takes."""


class BatchLimits(NamedTuple):
    """Of what one replica's batches in flight may hold, each a share.

    Attributes:
        sequences: that run at a time.
        cached_tokens: of the KV cache, 0 = no limit.
        prompt_tokens: of whole prompts in an iteration; a longer one goes alone.
        chunk: tokens of an iteration with chunked prefill, 0 = prompts go whole.
        lanes: batches in flight.
        stages: of the pipeline; an iteration is on each for its share of the time.
    """

    sequences: int
    cached_tokens: int
    prompt_tokens: int
    chunk: int
    lanes: int
    stages: int


class Role(NamedTuple):
    """What a replica does of a request."""

    prefills: bool = True
    decodes: bool = True


@dataclass
class _Running:
    request: Request
    cached: int = 0
    made: int = 0


@dataclass
class _Lane:
    """One batch in flight of one replica."""

    limits: BatchLimits
    role: Role
    waiting: deque[Request]
    running: list[_Running] = field(default_factory=list)
    reserved: int = 0

    def begins_at(self) -> float | None:
        """When it has something to do; None = never again."""
        if self.running:
            return 0.0
        return float(self.waiting[0].arrival_us) if self.waiting else None

    def next(self, now: float) -> "_Work":
        """What it does in the next iteration, and note it as done."""
        work = _Work()
        if self.role.prefills and self.limits.chunk:
            self._chunked(now, work)
        elif self.role.prefills:
            self._admit(now, work)
            if not work.pieces:
                self._decode(work)
        else:
            self._join(now, work)
            self._decode(work)
        for done in [each for each in self.running if self._is_done(each)]:
            self.running.remove(done)
            self.reserved -= self._needs(done.request)
        return work

    def _needs(self, request: Request) -> int:
        """Tokens that the cache must have room for."""
        return request.prompt + (request.generate if self.role.decodes else 0)

    def _is_done(self, each: _Running) -> bool:
        last = each.request.generate if self.role.decodes else 1
        return each.made >= last

    def _may_admit(self, now: float) -> bool:
        limits = self.limits
        if not self.waiting or self.waiting[0].arrival_us > now or len(self.running) >= limits.sequences:
            return False
        return not limits.cached_tokens or self.reserved + self._needs(self.waiting[0]) <= limits.cached_tokens

    def _take(self, work: "_Work") -> _Running:
        taken = _Running(self.waiting.popleft())
        self.running.append(taken)
        self.reserved += self._needs(taken.request)
        work.joined.append(taken.request)
        return taken

    def _admit(self, now: float, work: "_Work") -> None:
        """Whole prompts."""
        left = self.limits.prompt_tokens
        while self._may_admit(now) and (self.waiting[0].prompt <= left or not work.pieces):
            taken = self._take(work)
            left -= taken.request.prompt
            work.prompt(taken, taken.request.prompt)

    def _chunked(self, now: float, work: "_Work") -> None:
        """A token of each running sequence, then pieces of prompts."""
        prompting = [each for each in self.running if not each.made]
        self._decode(work)
        left = self.limits.chunk - len(work.keys)
        while left > 0:
            if not prompting:
                if not self._may_admit(now):
                    return
                prompting.append(self._take(work))
            each = prompting.pop(0)
            tokens = min(left, each.request.prompt - each.cached)
            work.prompt(each, tokens)
            left -= tokens

    def _join(self, now: float, work: "_Work") -> None:
        """Requests whose prompts another replica has worked out."""
        while self._may_admit(now):
            taken = self._take(work)
            taken.cached, taken.made = taken.request.prompt, 1

    def _decode(self, work: "_Work") -> None:
        for each in self.running:
            if each.made:
                work.decode(each)


class _Work:
    """What one iteration of a lane does."""

    def __init__(self) -> None:
        self.pieces: Counter[tuple[int, int]] = Counter()
        self.keys: list[int] = []
        self.joined: list[Request] = []
        self.prompted: list[Request] = []
        self.marks: list[tuple[int, int]] = []
        self.sampled = 0

    def prompt(self, each: _Running, tokens: int) -> None:
        self.pieces[tokens, each.cached] += 1
        each.cached += tokens
        if each.cached == each.request.prompt:
            self.prompted.append(each.request)
            self._token(each)

    def decode(self, each: _Running) -> None:
        each.cached += 1
        self.keys.append(each.cached)
        self._token(each)

    def _token(self, each: _Running) -> None:
        each.made += 1
        self.sampled += 1
        if each.made in {1, each.request.generate}:
            self.marks.append((each.request.number, each.made))

    def batch(self) -> Batch:
        prompts = tuple(Prompts(count, *shape) for shape, count in self.pieces.items())
        decodes = len(self.keys)
        return Batch(prompts, decodes, -(-sum(self.keys) // decodes) if decodes else 0, self.sampled)


class ServingSchedule(NamedTuple):
    """Of replicas that keep step, or of a single one.

    Attributes:
        iterations: of each replica; all have as many.
        prompted_us: by the clock, when the prompt of each request is done.
    """

    iterations: tuple[tuple[Iteration, ...], ...]
    prompted_us: dict[int, float]


def say_nothing(_text: str) -> None:
    """Report no progress."""


def schedule(
    requests: Sequence[Sequence[Request]],
    limits: BatchLimits,
    role: Role,
    clock: Clock,
    report: Callable[[str], None] = say_nothing,
) -> ServingSchedule:
    """Iterations of replicas that keep step: each has the next one together, some maybe with nothing to do.

    Args:
        requests: of each replica, in the order of arrival.
        limits: of each replica.
        role: what they do.
        clock: how long an iteration takes; that of the slowest replica counts for all.
        report: Called after each iteration with a text that says how far the schedule is.
    """
    waiting = sum(map(len, requests))
    lanes = [
        [_Lane(limits, role, deque(own[number :: limits.lanes])) for own in requests] for number in range(limits.lanes)
    ]
    made: list[list[Iteration]] = [[] for _ in requests]
    prompted_us: dict[int, float] = {}
    free_us, lane_free_us = 0.0, [0.0] * limits.lanes
    number = 0
    while True:
        begins = [_begin(lane, free) for lane, free in zip(lanes, lane_free_us, strict=True)]
        open_lanes = [(begin, lane) for lane, begin in enumerate(begins) if begin is not None]
        if not open_lanes:
            return ServingSchedule(tuple(map(tuple, made)), prompted_us)
        begin, lane = min(open_lanes)
        now = max(begin, free_us)
        works = [each.next(now) for each in lanes[lane]]
        batches = [work.batch() for work in works]
        took = max(clock(batch) for batch in batches if batch.tokens)
        free_us, lane_free_us[lane] = now + took / limits.stages, now + took
        names = {batch.name for batch in batches if batch.tokens}
        common = names.pop() if len(names) == 1 else "mixed"
        for own, work, batch in zip(made, works, batches, strict=True):
            of_requests = tuple(work.joined), tuple(work.prompted), tuple(work.marks)
            own.append(Iteration(number, lane, batch, batch.name if batch.tokens else common, *of_requests))
            prompted_us |= {request.number: now + took for request in work.prompted}
        number += 1
        report(f"scheduled {number:,} iterations, {len(prompted_us):,} of {waiting:,} prompts done")


def _begin(lane: list[_Lane], free_us: float) -> float | None:
    """When a lane of all replicas can begin its next iteration."""
    begins = [begin for begin in (each.begins_at() for each in lane) if begin is not None]
    return max(free_us, min(begins)) if begins else None
