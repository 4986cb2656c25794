"""What is asked of a model: requests with prompts and answers of some lengths, which arrive at some times."""

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

import inputs
from inputs.units import US_PER_S
from workload.errors import WorkloadError

COLUMNS = ("arrival_s", "prompt", "generate")
"""Of a CSV file of requests."""
MOST_REQUESTS = 10**6
MOST_TOKENS = 10**7
_LONGEST_S = 10**6
_LEAST_RATE, _MOST_RATE = 1e-6, 1e6
_MOST_SIGMA = 5.0


class Request(NamedTuple):
    """One question.

    Attributes:
        number: from 0, in the order of arrival.
        arrival_us: when it comes, microseconds.
        prompt: tokens that come.
        generate: tokens that are made, the first by the prompt's pass.
    """

    number: int
    arrival_us: int
    prompt: int
    generate: int


class Lengths(NamedTuple):
    """How many tokens prompts or answers have.

    Attributes:
        kind: fixed, uniform or lognormal.
        first: fixed: tokens; uniform: the least; lognormal: the median.
        second: uniform: the most; lognormal: sigma of the logarithm.
    """

    kind: str
    first: int
    second: float = 0.0

    @classmethod
    def parse(cls, text: object, key: str) -> "Lengths":
        """Of "1024", "uniform:128-2048" or "lognormal:512,0.8"; key: for messages.

        Raises:
            WorkloadError: none of these, or no token.
        """
        said = str(text)
        fixed = re.fullmatch(r"([0-9]{1,9})", said)
        uniform = re.fullmatch(r"uniform:([0-9]{1,9})-([0-9]{1,9})", said)
        lognormal = re.fullmatch(r"lognormal:([0-9]{1,9}),([0-9.]{1,9})", said)
        if fixed is not None:
            made = cls("fixed", int(fixed[1]))
        elif uniform is not None:
            made = cls("uniform", int(uniform[1]), int(uniform[2]))
        elif lognormal is not None and lognormal[2].count(".") < 2 and lognormal[2] != ".":
            made = cls("lognormal", int(lognormal[1]), float(lognormal[2]))
        else:
            raise WorkloadError(f"{key}: {said!r}, expected tokens as 1024, uniform:128-2048 or lognormal:512,0.8")
        if not 1 <= made.first <= MOST_TOKENS:
            raise WorkloadError(f"{key}: {said!r} is of {made.first} tokens, expected 1 to {MOST_TOKENS:,}")
        if made.kind == "uniform" and not made.first <= made.second <= MOST_TOKENS:
            raise WorkloadError(f"{key}: {said!r} ends at {made.second:.0f}, expected {made.first} to {MOST_TOKENS:,}")
        if made.kind == "lognormal" and made.second > _MOST_SIGMA:
            raise WorkloadError(f"{key}: {said!r} has sigma {made.second:g}, expected {_MOST_SIGMA:g} at most")
        return made

    def draw(self, numbers: np.random.Generator, count: int) -> list[int]:
        """Lengths of so many requests."""
        if self.kind == "uniform":
            return [int(value) for value in numbers.integers(self.first, int(self.second) + 1, count)]
        if self.kind == "lognormal":
            drawn = numbers.lognormal(math.log(self.first), self.second, count)
            return [int(value) for value in np.clip(np.rint(drawn), 1, MOST_TOKENS)]
        return [self.first] * count


@dataclass(frozen=True)
class RequestStream:
    """Requests that are drawn.

    Attributes:
        count: how many.
        prompt: lengths of prompts.
        generate: lengths of answers.
        rate: mean arrivals in a second, exponentially apart (a Poisson process); 0 = all come at once.
        seed: of what is drawn.
    """

    count: int
    prompt: Lengths
    generate: Lengths
    rate: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_REQUESTS:
            raise WorkloadError(f"requests: {self.count}, expected 1 to {MOST_REQUESTS:,}")
        if self.rate and not _LEAST_RATE <= self.rate <= _MOST_RATE:
            raise WorkloadError(f"rate: {self.rate:g}, expected {_LEAST_RATE:g} to {_MOST_RATE:g} requests in a second")
        if self.seed < 0:
            raise WorkloadError(f"seed: {self.seed}, expected 0 or more")


def requests_of(source: RequestStream | Path | Iterable[Request]) -> tuple[Request, ...]:
    """Requests of a stream, of a CSV file with the columns COLUMNS, or as they are; in the order of arrival.

    Raises:
        WorkloadError: a file that cannot be read, or holds something else.
    """
    if isinstance(source, Path):
        return _numbered(_read(source))
    if not isinstance(source, RequestStream):
        return _numbered([(request.arrival_us, request.prompt, request.generate) for request in source])
    numbers = np.random.default_rng(source.seed)
    prompts, answers = (lengths.draw(numbers, source.count) for lengths in (source.prompt, source.generate))
    arrivals = [0] * source.count
    if source.rate:
        gaps = numbers.exponential(US_PER_S / source.rate, source.count)
        arrivals = [round(value) for value in np.cumsum(gaps).tolist()]
    return _numbered(list(zip(arrivals, prompts, answers, strict=True)))


def _numbered(rows: list[tuple[int, int, int]]) -> tuple[Request, ...]:
    if not rows:
        raise WorkloadError("requests: none, expected at least one")
    return tuple(Request(number, *row) for number, row in enumerate(sorted(rows, key=lambda row: row[0])))


def _read(path: Path) -> list[tuple[int, int, int]]:
    try:
        lines = [line for line in inputs.read_text(path).splitlines() if line.strip() and not line.startswith("#")]
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}; expected a CSV file of requests") from None
    except ValueError as error:
        raise WorkloadError(f"{path}: {error}; expected a CSV file of requests") from None
    rows = list(csv.reader(lines))
    if not rows or tuple(cell.strip() for cell in rows[0]) != COLUMNS:
        raise WorkloadError(f"{path}: expected the columns {','.join(COLUMNS)} in its first line")
    if len(rows) - 1 > MOST_REQUESTS:
        raise WorkloadError(f"{path}: {len(rows) - 1} requests, expected {MOST_REQUESTS:,} at most")
    return [_row(path, number, row) for number, row in enumerate(rows[1:], 1)]


def _row(path: Path, number: int, row: list[str]) -> tuple[int, int, int]:
    try:
        arrival, prompt, answer = row
        arrival_s, tokens = float(arrival), (int(prompt), int(answer))
    except ValueError:
        arrival_s, tokens = -1.0, (0, 0)
    if not 0 <= arrival_s <= _LONGEST_S or not all(1 <= each <= MOST_TOKENS for each in tokens):
        found = ",".join(row)[:60]
        raise WorkloadError(
            f"{path}: request {number} is {found!r}, expected seconds from 0 to {_LONGEST_S:,} and two numbers of "
            f"tokens from 1 to {MOST_TOKENS:,}"
        )
    return round(arrival_s * US_PER_S), *tokens
