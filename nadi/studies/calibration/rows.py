"""Measured times of collectives for a calibration: from logs of nccl-tests, with held-out rows and defects."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nadi import inputs
from nadi.errors import ConfigError
from nadi.insight.benchmark_logs import BenchmarkLog, read_logs
from nadi.insight.nccl_tests_command import nccl_parameters
from nadi.terminal import size_text

MIN_ROWS = 12  # rows below which nothing is fitted: eight to fit, and four to check
_HELD_OUT_OF = 3  # of so many sizes of a collective, one is held out
# ratio of the time of a row to that of a larger buffer of the same collective from which the row is a defect: more
# bytes never take less but where NCCL changes its protocol, and never so much less (scripts/nccl_tables.py)
_DEFECT = 1.2
_MIN_GPUS = 2
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all")


class SiteRow(NamedTuple):
    """A measured time of a collective of all GPUs of a group."""

    kind: str  # kind of the collective, one of KINDS
    gpus: int  # number of GPUs that take part
    size_bytes: int  # size of the whole buffer in bytes
    time_us: float  # measured time in microseconds
    # parameters of NCCL's algorithm by name that the log's variables NCCL_* set, ("algo", "ring")
    parameters: tuple[tuple[str, str], ...]
    file: str  # file of the log
    line: int  # number of its line, from 1

    @property
    def collective(self) -> tuple[object, ...]:
        """What was measured: kind, number of GPUs, size, and parameters of the algorithm."""
        return self.kind, self.gpus, self.size_bytes, self.parameters

    def document(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return self._asdict() | {"parameters": dict(self.parameters)}

    @property
    def place(self) -> str:
        """Where the row stands."""
        return f"{self.file}:{self.line}"


class Source(NamedTuple):
    """A file of measurements."""

    file: str  # path as the user wrote it
    sha256: str  # hash of its content
    rows: int  # number of its rows that are used


class RowSet(NamedTuple):
    """The rows of a calibration, in an order that does not depend on that of files or lines."""

    rows: tuple[SiteRow, ...]  # usable rows
    is_held_out: tuple[bool, ...]  # whether each row only checks the fit
    defects: tuple[tuple[str, str], ...]  # place and reason of each row that is left out
    sources: tuple[Source, ...]
    hosts: tuple[tuple[str, int, int], ...]  # file, number of GPUs and number of hosts of each test that names hosts
    repeats: float | None  # mean relative difference between times out of place and in place; None = not measured

    @property
    def held_out_rule(self) -> str:
        """Which rows are held out."""
        return "every third size of each collective and number of GPUs, from the second"

    @property
    def not_fitted(self) -> str:
        """What else may differ."""
        return "not fitted: quality of adaptive routing, as closed forms have no contention; `wire` contains its effect"

    @property
    def noun(self) -> str:
        """What its rows are."""
        return "collectives"

    @property
    def gpus(self) -> int:
        """Number of GPUs of the largest test."""
        return max(row.gpus for row in self.rows)

    @property
    def measured_us(self) -> list[float]:
        """The measured time of each row in microseconds."""
        return [row.time_us for row in self.rows]

    @property
    def together(self) -> list[int]:
        """A number of each row, its size in bytes: those of a size are left out together."""
        return [row.size_bytes for row in self.rows]

    def named(self, places: Sequence[int]) -> str:
        """Return rows in words: for each kind its sizes.

        Args:
            places: Their places among the rows.
        """
        by_kind: dict[str, list[int]] = {}
        for place in places:
            by_kind.setdefault(self.rows[place].kind, []).append(self.rows[place].size_bytes)
        return ", ".join(
            f"{kind} {size_text(min(sizes))}" + (f" to {size_text(max(sizes))}" if min(sizes) < max(sizes) else "")
            for kind, sizes in by_kind.items()
        )


def read_rows(paths: Sequence[Path]) -> RowSet:
    """Return the rows of logs of nccl-tests; ConfigError if there are too few.

    Args:
        paths: The files of the logs.
    """
    logs = read_logs(paths)
    found, defects = _usable(logs)
    found, slow = _without_slow(found)
    rows = sorted(found)
    if len(rows) < MIN_ROWS:
        files = ", ".join(str(path) for path in paths)
        raise ConfigError(f"{files}: found {len(rows)} usable rows; expected {MIN_ROWS} or more to fit constants")
    counts = Counter(row.file for row in rows)
    sources = tuple(
        Source(str(path), hashlib.sha256(inputs.read_bytes(path)).hexdigest(), counts[str(path)]) for path in paths
    )
    hosts = tuple((str(log.file), log.gpus, log.hosts) for log in logs if log.hosts)
    return RowSet(tuple(rows), _held_out(rows), tuple(sorted(defects + slow)), sources, hosts, _repeats(logs))


def _usable(logs: Sequence[BenchmarkLog]) -> tuple[list[SiteRow], list[tuple[str, str]]]:
    """Return the rows that have a time and right results, and the place and reason of the others."""
    rows, defects = [], []
    for log in logs:
        if log.collective not in KINDS:
            raise ConfigError(f"{log.file}: found {log.collective}; expected one of {', '.join(KINDS)}")
        if log.gpus < _MIN_GPUS:
            found = f"a test of {log.gpus} GPUs" if log.gpus else "no number of GPUs"
            raise ConfigError(f"{log.file}: found {found}; expected a log with the list of at least {_MIN_GPUS} ranks")
        settings = log.nccl.settings if log.nccl else {}
        parameters = tuple(nccl_parameters(settings, log.collective, str(log.file)).items())
        for row in log.rows:
            if row.wrong:
                defects.append((f"{log.file}:{row.line}", f"{row.wrong} wrong results"))
            elif row.size_bytes and not math.isnan(row.best_time_us):
                of_row = log.collective, log.gpus, row.size_bytes, row.best_time_us
                rows.append(SiteRow(*of_row, parameters, str(log.file), row.line))
    return rows, defects


def _without_slow(rows: Sequence[SiteRow]) -> tuple[list[SiteRow], list[tuple[str, str]]]:
    """Return the rows without those that take far longer than a larger buffer, and these with the reason.

    The rule knows no model, so that it prefers no setting, and holds for rows that are held out, too.
    """
    kept, slow = [], []
    for row in rows:
        larger = [
            other
            for other in rows
            if (other.kind, other.gpus, other.parameters) == (row.kind, row.gpus, row.parameters)
            and other.size_bytes > row.size_bytes
        ]
        fastest = min(larger, key=lambda other: other.time_us, default=None)
        if fastest is not None and row.time_us > _DEFECT * fastest.time_us:
            more = f"{row.time_us:g} us, more than the {fastest.time_us:g} us of the larger buffer at {fastest.place}"
            slow.append((row.place, more))
        else:
            kept.append(row)
    return kept, slow


def _held_out(rows: Sequence[SiteRow]) -> tuple[bool, ...]:
    """Return whether each row is held out: every third size of each collective and number of GPUs, from the second."""
    sizes: dict[tuple[str, int], set[int]] = defaultdict(set)
    for row in rows:
        sizes[row.kind, row.gpus].add(row.size_bytes)
    order = {key: sorted(own) for key, own in sizes.items()}
    held = {key: held_out_of(len(own)) for key, own in order.items()}
    return tuple(held[row.kind, row.gpus][order[row.kind, row.gpus].index(row.size_bytes)] for row in rows)


def held_out_of(count: int) -> tuple[bool, ...]:
    """Return whether each of some rows is held out: every third, from the second.

    Args:
        count: The number of rows.
    """
    return tuple(number % _HELD_OUT_OF == 1 for number in range(count))


def _repeats(logs: Sequence[BenchmarkLog]) -> float | None:
    """Return the mean relative difference of times out of place and in place, which NCCL does the same work for."""
    pairs = [
        (row.time_us, row.time_in_place_us)
        for log in logs
        for row in log.rows
        if not math.isnan(row.time_us + row.time_in_place_us)
    ]
    return sum(abs(a - b) / min(a, b) for a, b in pairs) / len(pairs) if pairs else None
