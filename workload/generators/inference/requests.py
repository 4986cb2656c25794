"""Requests of serving: arrival times, prompt lengths and answer lengths; drawn at random, or from a CSV file.

Rows of traces mark arrivals and tokens of requests by their names: `arrivals/request3` ends when request 3 arrives,
`iteration12/decode/request3/token128` when it has 128 tokens.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nadi import inputs
from nadi.et import ComposedNames, NameTable, TraceTable
from nadi.inputs.arrays import Int64
from nadi.inputs.units import US_PER_S
from nadi.workload.errors import WorkloadError

COLUMNS = ("arrival_s", "prompt", "generate")  # Columns of a CSV file of requests
MAX_REQUESTS = 10**6
MAX_TOKENS = 10**7
_MAX_ARRIVAL_S = 10**6
_MIN_RATE, _MAX_RATE = 1e-6, 1e6
_MAX_SIGMA = 5.0
_WORD = re.compile(rb"request[0-9]")
_ARRIVAL = re.compile(r"arrivals/request([0-9]{1,9})")
_TOKEN = re.compile(r"iteration[0-9]+/[a-z]+/request([0-9]{1,9})/token([0-9]{1,9})")


class Request(NamedTuple):
    """A request to the model."""

    number: int  # Number of the request, from 0, in the order of arrival
    arrival_us: int  # Arrival time in microseconds
    prompt: int  # Number of prompt tokens
    generate: int  # Number of generated tokens; the pass of the prompt generates the first one


class Lengths(NamedTuple):
    """Distribution of the number of tokens of prompts or answers."""

    kind: str  # Name of the distribution: fixed, uniform or lognormal
    first: int  # Number of tokens (fixed), minimum (uniform) or median (lognormal)
    second: float = 0.0  # Maximum (uniform) or standard deviation of the logarithm (lognormal)

    @classmethod
    def parse(cls, text: object, key: str) -> "Lengths":
        """Return the distribution of a user's text. Raises WorkloadError: another form, or a number out of range.

        Args:
            text: A text such as "1024", "uniform:128-2048" or "lognormal:512,0.8".
            key: The name of the value, with which errors begin.
        """
        given = str(text)
        fixed = re.fullmatch(r"([0-9]{1,9})", given)
        uniform = re.fullmatch(r"uniform:([0-9]{1,9})-([0-9]{1,9})", given)
        lognormal = re.fullmatch(r"lognormal:([0-9]{1,9}),([0-9.]{1,9})", given)
        if fixed is not None:
            lengths = cls("fixed", int(fixed[1]))
        elif uniform is not None:
            lengths = cls("uniform", int(uniform[1]), int(uniform[2]))
        elif lognormal is not None and lognormal[2].count(".") < 2 and lognormal[2] != ".":
            lengths = cls("lognormal", int(lognormal[1]), float(lognormal[2]))
        else:
            raise WorkloadError(f"{key}: {given!r}, expected tokens as 1024, uniform:128-2048 or lognormal:512,0.8")
        first, second = lengths.first, lengths.second
        if not 1 <= first <= MAX_TOKENS:
            raise WorkloadError(f"{key}: {given!r} is of {first} tokens, expected 1 to {MAX_TOKENS:,}")
        if lengths.kind == "uniform" and not first <= second <= MAX_TOKENS:
            raise WorkloadError(f"{key}: {given!r} ends at {second:.0f}, expected {first} to {MAX_TOKENS:,}")
        if lengths.kind == "lognormal" and second > _MAX_SIGMA:
            raise WorkloadError(f"{key}: {given!r} has sigma {second:g}, expected {_MAX_SIGMA:g} at most")
        return lengths

    def draw(self, generator: np.random.Generator, count: int) -> list[int]:
        """Return random lengths in tokens.

        Args:
            generator: The generator of random numbers.
            count: The number of lengths to draw.
        """
        if self.kind == "uniform":
            return [int(value) for value in generator.integers(self.first, int(self.second) + 1, count)]
        if self.kind == "lognormal":
            drawn = generator.lognormal(math.log(self.first), self.second, count)
            return [int(value) for value in np.clip(np.rint(drawn), 1, MAX_TOKENS)]
        return [self.first] * count


@dataclass(frozen=True)
class RequestStream:
    """Requests with random arrival times and lengths."""

    count: int  # Number of requests
    prompt: Lengths  # Distribution of prompt lengths
    generate: Lengths  # Distribution of answer lengths
    rate: float = 0.0  # Mean number of arrivals per second of a Poisson process; 0 = all arrive at time 0
    seed: int = 1  # Seed of the random numbers

    def __post_init__(self) -> None:
        """Raise WorkloadError where a number of the stream is out of its range."""
        if not 1 <= self.count <= MAX_REQUESTS:
            raise WorkloadError(f"requests: {self.count}, expected 1 to {MAX_REQUESTS:,}")
        if self.rate and not _MIN_RATE <= self.rate <= _MAX_RATE:
            raise WorkloadError(f"rate: {self.rate:g}, expected {_MIN_RATE:g} to {_MAX_RATE:g} requests in a second")
        if self.seed < 0:
            raise WorkloadError(f"seed: {self.seed}, expected 0 or more")


def requests_of(source: RequestStream | Path | Iterable[Request]) -> tuple[Request, ...]:
    """Return requests in the order of arrival.

    Args:
        source: A stream from which requests are drawn, the path of a CSV file with COLUMNS, or requests.
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


def _numbered(requests: list[tuple[int, int, int]]) -> tuple[Request, ...]:
    """Return requests in the order of arrival, from (arrival in us, prompt tokens, generated tokens)."""
    if not requests:
        raise WorkloadError("requests: none, expected at least one")
    return tuple(Request(number, *row) for number, row in enumerate(sorted(requests, key=lambda row: row[0])))


def _read(path: Path) -> list[tuple[int, int, int]]:
    """Return (arrival in us, prompt tokens, generated tokens) of each request in a CSV file."""
    with inputs.refusing(path, "a CSV file of requests", WorkloadError, ValueError):
        lines = [line for line in inputs.read_text(path).splitlines() if line.strip() and not line.startswith("#")]
    rows = list(csv.reader(lines))
    if not rows or tuple(cell.strip() for cell in rows[0]) != COLUMNS:
        raise WorkloadError(f"{path}: expected the columns {','.join(COLUMNS)} in its first line")
    if len(rows) - 1 > MAX_REQUESTS:
        raise WorkloadError(f"{path}: {len(rows) - 1} requests, expected {MAX_REQUESTS:,} at most")
    return [_row(path, number, row) for number, row in enumerate(rows[1:], 1)]


def _row(path: Path, line_number: int, row: list[str]) -> tuple[int, int, int]:
    """Return (arrival in us, prompt tokens, generated tokens) of a line of a CSV file."""
    try:
        arrival, prompt, answer = row
        arrival_s, tokens = float(arrival), (int(prompt), int(answer))
    except ValueError:
        arrival_s, tokens = -1.0, (0, 0)
    if not 0 <= arrival_s <= _MAX_ARRIVAL_S or not all(1 <= each <= MAX_TOKENS for each in tokens):
        found = ",".join(row)[:60]
        raise WorkloadError(
            f"{path}: request {line_number} is {found!r}, expected seconds from 0 to {_MAX_ARRIVAL_S:,} and two "
            f"numbers of tokens from 1 to {MAX_TOKENS:,}"
        )
    return round(arrival_s * US_PER_S), *tokens


def requests_in(trace: TraceTable) -> Iterator[tuple[int, int, int]]:
    """Yield row, request number, and the request's number of tokens at the end of the row; 0 tokens = arrival.

    Args:
        trace: The trace of an NPU that serves.
    """
    for row in _rows_with_requests(trace.names).tolist():
        name = trace.names[row]
        arrival, token = _ARRIVAL.fullmatch(name), _TOKEN.fullmatch(name)
        if arrival is not None:
            yield row, int(arrival[1]), 0
        elif token is not None:
            yield row, int(token[1]), int(token[2])


def names_requests(trace: TraceTable) -> bool:
    """Return whether a trace has rows that mark requests.

    Args:
        trace: The trace of an NPU that serves.
    """
    return next(requests_in(trace), None) is not None


def _rows_with_requests(names: NameTable | ComposedNames) -> Int64:
    """Return int64[]: rows whose names contain `request` and a digit, found without composing every name."""
    if isinstance(names, ComposedNames):
        heads, tails = (np.isin(rows, _rows_with_requests(table)) for rows, table in (
            (names.head, names.heads), (names.tail, names.tails)
        ))  # fmt: skip
        return np.flatnonzero(heads | tails)
    places = np.array([at.start() for at in _WORD.finditer(names.blob.data)], np.int64)
    rows = np.searchsorted(names.offsets, places, "right") - 1  # in order; a name may contain several of the words
    return rows[(np.diff(rows, prepend=-1) > 0) & (rows < len(names))]
