"""Pipeline schedules against a naive simulator of passes that wait for each other."""

import itertools
from fractions import Fraction
from typing import NamedTuple

import pytest

from nadi.workload.generators.training.pipeline import PipelineSchedule, Work, schedule_of
from tests.nonempty import nonempty
from tests.samples import pairwise

PLAIN = list(itertools.product(("gpipe", "1f1b"), (1, 2, 4, 7), (1, 3, 8, 20), (1,)))
INTERLEAVED = [("interleaved", p, p * k, v) for p in (2, 3, 4, 8) for k in (1, 2, 5) for v in (2, 3, 5)]
ZERO_BUBBLE = list(itertools.product(("zero-bubble",), (1, 2, 4, 7), (1, 3, 8, 20), (1,)))
DUAL = [("dualpipe", p, m, 2) for p in (2, 4, 8, 16) for m in (2 * p, 2 * p + 2, 5 * p)]
ALL = pairwise(PLAIN + INTERLEAVED + ZERO_BUBBLE + DUAL)
"""Schedule, stages, micro-batches and chunks per stage."""


class Times(NamedTuple):
    """How long passes of one slice take; a backward that is not split takes both of the last two."""

    forward: int = 1
    inputs: int = 1
    weights: int = 1

    def of(self, work: Work) -> int:
        """Of one pass."""
        if work.kind == "backward" and not work.is_split:
            return self.inputs + self.weights
        return {"forward": self.forward, "backward": self.inputs, "weights": self.weights}[work.kind]


def line_of(schedule: str, p: int, m: int, v: int) -> PipelineSchedule:
    """A schedule of a pipeline with v chunks per stage."""
    kind = schedule_of(schedule)
    line = kind(p, m, v if kind.TAKES_VPP else 1)
    assert line.chunks == v
    return line


def lists(schedule: str, p: int, m: int, v: int) -> list[list[Work]]:
    """What all stages do."""
    line = line_of(schedule, p, m, v)
    return [line.order(stage) for stage in range(p)]


def finish(schedule: str, p: int, m: int, v: int, times: Times) -> list[int]:
    """When each stage has done its list in order, each unit as soon as its inputs are there; messages take no time."""
    todo = [units(works) for works in lists(schedule, p, m, v)]
    line = line_of(schedule, p, m, v)
    ready: dict[tuple[str, int, int], int] = {}
    clock, at = [0] * p, [0] * p
    while any(at[s] < len(todo[s]) for s in range(p)):
        moved = False
        for stage in range(p):
            while at[stage] < len(todo[stage]):
                unit = todo[stage][at[stage]]
                begin = [ready.get(need) for work in unit for need in needs(line, stage, work)]
                if None in begin:
                    break
                clock[stage] = max([clock[stage], *begin]) + sum(times.of(work) for work in unit)
                for work in unit:
                    slice_ = line.position(stage, work.chunk)
                    ready[work.kind, work.micro_batch, slice_] = clock[stage]
                at[stage] += 1
                moved = True
        assert moved, f"nobody can go on: {[todo[s][at[s]] for s in range(p) if at[s] < len(todo[s])]}"
    return clock


def units(works: list[Work]) -> list[list[Work]]:
    """Passes that begin and end together: pairs, and all others alone."""
    made: list[list[Work]] = []
    for i, work in enumerate(works):
        if i and works[i - 1].is_paired:
            made[-1].append(work)
        else:
            made.append([work])
    return made


def needs(line: PipelineSchedule, stage: int, work: Work) -> list[tuple[str, int, int]]:
    """Passes that must be done before one, by the numbers of slices alone."""
    slice_, last = line.position(stage, work.chunk), line.slices - 1
    if work.kind == "forward":
        return [("forward", work.micro_batch, slice_ - 1)] if slice_ else []
    if work.kind == "weights":
        return [("backward", work.micro_batch, slice_)]
    own = ("forward", work.micro_batch, slice_)
    return [own, ("backward", work.micro_batch, slice_ + 1)] if slice_ < last else [own]


@pytest.mark.parametrize(("schedule", "p", "m", "v"), ALL)
def test_all_work_is_done_once(schedule: str, p: int, m: int, v: int) -> None:
    done = [
        (work.kind, work.micro_batch, line_of(schedule, p, m, v).position(stage, work.chunk))
        for stage, works in enumerate(lists(schedule, p, m, v))
        for work in works
    ]
    passes = {
        (kind, i, s)
        for kind in ("forward", "backward")
        for i in range(m)
        for s in range(line_of(schedule, p, m, v).slices)
    }
    split = {
        ("weights", work.micro_batch, line_of(schedule, p, m, v).position(stage, work.chunk))
        for stage, works in enumerate(lists(schedule, p, m, v))
        for work in works
        if work.is_split
    }
    assert len(done) == len(set(done))
    assert set(done) == passes | split


@pytest.mark.parametrize(("schedule", "p", "m", "v"), ALL)
def test_each_chunk_does_its_micro_batches_and_they_meet_their_neighbours(
    schedule: str, p: int, m: int, v: int
) -> None:
    line = line_of(schedule, p, m, v)
    for stage, works in nonempty(enumerate(lists(schedule, p, m, v))):
        for chunk in range(v):
            mine = [work.micro_batch for work in works if (work.kind, work.chunk) == ("forward", chunk)]
            half = m // 2 if line.IS_MIRRORED else m
            assert sorted(mine) == list(range(chunk * half, (chunk + 1) * half) if line.IS_MIRRORED else range(m))
            for step in (-1, 1):
                other, position = line.beside(stage, chunk, step), line.position(stage, chunk) + step
                if other is None:
                    assert position in (-1, line.slices)
                    continue
                chunks = [chunk] if line.IS_MIRRORED else range(v)
                (there,) = [each for each in chunks if line.position(other, each) == position]
                assert line.beside(other, there, -step) == stage


@pytest.mark.parametrize(("schedule", "p", "m", "v"), ALL)
def test_in_flight_is_what_the_list_holds_at_a_worst_moment(schedule: str, p: int, m: int, v: int) -> None:
    for stage, works in nonempty(enumerate(lists(schedule, p, m, v))):
        held, seen = [0] * v, []
        for work in works:
            ends = work.kind == "weights" or (work.kind == "backward" and not work.is_split)
            held[work.chunk] += (work.kind == "forward") - ends
            seen.append(tuple(held))
        most = max(map(sum, seen))
        assert held == [0] * v
        told = line_of(schedule, p, m, v).in_flight(stage)
        assert told in {state for state in seen if sum(state) == most}


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v", "times"),
    pairwise(
        (*case, times) for case in PLAIN + INTERLEAVED for times in (Times(1, 1, 1), Times(10, 10, 10), Times(5, 7, 4))
    ),
)
def test_bubble_is_a_vth_of_p_minus_1_passes(schedule: str, p: int, m: int, v: int, times: Times) -> None:
    ideal = m * v * sum(times)
    bubble = Fraction(max(finish(schedule, p, m, v, times)) - ideal, ideal)
    assert bubble == Fraction(p - 1, v * m)


@pytest.mark.parametrize(
    ("p", "m", "times"),
    pairwise(
        (p, m, times)
        for p in (2, 4, 8)
        for m in (2 * p, 3 * p, 40)
        for times in (Times(1, 1, 1), Times(5, 6, 4), Times(8, 8, 5), Times(10, 11, 9))
    ),
)
def test_zero_bubble_is_that_of_its_paper(p: int, m: int, times: Times) -> None:
    took = max(finish("zero-bubble", p, m, 1, times))
    assert took - m * sum(times) == (p - 1) * (times.forward + times.inputs - times.weights)


@pytest.mark.parametrize(
    ("p", "m", "times"),
    pairwise(
        (p, m, times)
        for p in (2, 4, 8, 16)
        for m in (2 * p, 2 * p + 2, 4 * p)
        for times in (Times(1, 1, 1), Times(5, 5, 4), Times(8, 8, 5), Times(5, 6, 4), Times(10, 11, 9))
    ),
)
def test_dualpipe_is_that_of_its_paper(p: int, m: int, times: Times) -> None:
    bubble = max(finish("dualpipe", p, m, 2, times)) - m * sum(times)
    pair, whole = sum(times), times.inputs + times.weights
    published = (p // 2 - 1) * (pair + whole - 3 * times.weights)
    less = (p // 2 - 1) * (times.inputs - times.forward)  # The paper's formula takes these two as equal.
    assert published - less <= bubble <= published


def test_dualpipe_of_four_stages_is_the_order_of_its_repository() -> None:
    works = line_of("dualpipe", 4, 8, 2).order(0)
    letters = {"forward": "F", "backward": "B", "weights": "W"}
    text = " ".join(f"{letters[w.kind]}{w.chunk}{'z' * w.is_split}{'+' * w.is_paired}" for w in works)
    assert text == ("F0 F0 F0 F1 B1z W1 F1 F0+ B1 F1+ B0 B1 F1+ B0 B1 B0z W0 B0z W0")


def test_interleaved_is_the_order_of_megatron() -> None:
    works = line_of("interleaved", 2, 4, 2).order(1)
    text = " ".join(f"{w.kind[0]}{w.micro_batch}.{w.chunk}" for w in works)
    assert text == "f0.0 f1.0 f0.1 b0.1 f1.1 b1.1 f2.0 b0.0 f3.0 b1.0 f2.1 b2.1 f3.1 b3.1 b2.0 b3.0"
