"""Logs of nccl-tests, rccl-tests and mscclpp-test: times and bandwidths of collectives, and what NCCL prints beside.

A log may hold several tests, and text of other programs between their lines. Prefixes of mpirun and srun, colours and
the quotation marks of messages are removed first. The headings above a test's rows say which columns these have;
without headings the number of values in a row does.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from nadi import inputs
from nadi.errors import ConfigError
from nadi.insight.lines_beside_rows import HostEvidence, NcclInfo, with_host_line, with_nccl_line
from nadi.insight.node_times import bus_factor
from nadi.workload.collectives import UNEVEN

SEND_RECEIVE = "send-receive"
"""Kind of sendrecv_perf: every rank sends to the next one, and receives from the one before."""

KIND_OF_TEST = {
    "all_reduce": "all-reduce",
    "allreduce": "all-reduce",
    "all_gather": "all-gather",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "alltoallv": UNEVEN,
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": SEND_RECEIVE,
}
"""Kinds of collectives by name of the test: all_reduce_perf of nccl-tests, allreduce_test_perf of mscclpp-test."""


@dataclass(frozen=True)
class BenchmarkRow:
    """A row of a test: a size with its times; nan = not measured, or printed as N/A."""

    line: int  # number of the line in the file, from 1
    size_bytes: int  # size of the whole buffer in bytes
    data_type: str  # name of the data type as printed; "" = none is printed
    time_us: float  # out of place, in microseconds
    time_in_place_us: float  # in place, in microseconds
    bus_bandwidth_Bps: float  # noqa: N815 - bytes per second, out of place, as printed
    bus_bandwidth_in_place_Bps: float  # noqa: N815 - bytes per second, in place, as printed
    wrong: int | None  # number of wrong elements, out of place and in place together; None = not checked

    @property
    def best_time_us(self) -> float:
        """Return the time out of place in microseconds, or that in place if there is none."""
        return self.time_in_place_us if math.isnan(self.time_us) else self.time_us


@dataclass(frozen=True)
class BenchmarkLog:
    """The rows of one test in a log."""

    file: Path
    collective: str  # one of workload.KINDS, "all-to-all-v" or SEND_RECEIVE
    hosts: int | None  # number of hosts; None = not known
    gpus: int  # number of GPUs (ranks); 0 = not known
    gpu_name: str | None  # name of the GPU as CUDA prints it; None = not known
    rows: tuple[BenchmarkRow, ...]  # in the order of the file
    nccl: NcclInfo | None  # None = the log has no line of NCCL
    members: tuple[tuple[str, int], ...] = ()  # host and device of each rank, in order; () = not known
    evidence: HostEvidence = field(default_factory=HostEvidence)  # what the file says about hosts and network


def read_logs(paths: Iterable[Path]) -> tuple[BenchmarkLog, ...]:
    """Return the tests of logs, in the order of files and lines; at least one row each.

    Args:
        paths: Files with the output of nccl-tests, rccl-tests or mscclpp-test: text, or JSON of `-J` of nccl-tests.

    Raises:
        ConfigError: A file cannot be read, has no row, or a row that is wrong; one line with file and line.
    """
    return tuple(log for path in paths for log in _read_log(path))


def _read_log(path: Path) -> list[BenchmarkLog]:
    """Return the tests of one file."""
    with inputs.refusing(path, "the output of nccl-tests, rccl-tests or mscclpp-test", ConfigError, UnicodeDecodeError):
        text = inputs.read_bytes(path, _MAX_BYTES).decode("utf-8", errors="replace")
    if text.lstrip().startswith("{"):
        return [_of_json(path, text).log()]
    lines = text.splitlines()
    evidence = HostEvidence()
    for line in lines:
        evidence = with_host_line(evidence, line)
    logs = [replace(test.log(), evidence=evidence) for test in _tests(path, lines)]
    if not logs:
        expected = "rows of nccl-tests, rccl-tests or mscclpp-test, as size, count, time, algbw and busbw"
        raise ConfigError(f"{path}: no row of a benchmark; expected {expected}")
    return logs


_MAX_BYTES = 1 << 28  # largest log in bytes that is read: NCCL_DEBUG=INFO of a thousand ranks prints less
_COLOUR = re.compile(r"\x1b\[[0-9;]*+[A-Za-z]")
# what mpirun, srun, parallel shells, containers and messages put before a line
_PREFIX = re.compile(
    r"\s*+(?:>|\[[0-9]++,[0-9]++\]<std(?:out|err)>:?|[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]++Z?(?=\s)"
    r"|[\w.-]++:(?=\s|\#))"
)
_TAG = re.compile(r"\[[0-9]++\]")  # the rank that some launchers put before each piece that it writes
_MARKUP = str.maketrans("|`", "  ")
_TEST = re.compile(
    r"\b(all_?reduce|all_?gather|reduce_scatter|alltoallv?|broadcast|reduce|gather|scatter|sendrecv|hypercube)"
    r"(?:_test)?_perf\b"
)
_RANK = re.compile(
    r"Rank\s++([0-9]++)\s++(?:Group\s++[0-9]++\s++)?+(?:Pid\s++([0-9]++)\s++)?+on\s++(\S++)\s++device\s++([0-9]++)"
    r"\s++\[([^\]]*+)\]\s*+(.*)"
)
# names of data types in the tests: a word of letters, digits and underscores, among them fp8_e4m3 and bfloat16
_DATA_TYPE = re.compile(r"u?int(?:8|32|64)?|char|half|double|(?:b|fp|bf|bfloat|float|f)[0-9]\w*+|float")
_PARTS = frozenset({"out-of-place", "in-place", "(+", "per-iteration)"})  # words of the line above the headings
_RATE_BPS = 1e9  # the tests print GB/s of 10^9 bytes per second
_US_PER_MS = 1e3
_PER_ITERATION = 4  # columns that -P of nccl-tests adds to each part: minimum, maximum, 99th percentile, variation
_MAX_RANKS = 1 << 16  # ranks that the ratio of bandwidths may mean


@dataclass
class _Columns:
    """The columns of a test's rows, from the two lines above them."""

    has_type: bool = True
    has_root: bool | None = None  # None = the lines are missing: the number of values tells
    has_counts: bool = True  # whether the last value of a part is a number of wrong elements, not a largest error
    in_place_first: bool = False
    per_iteration: bool = False
    us_per_unit: float = 1.0  # microseconds in the unit of times
    ends: tuple[int, ...] = ()  # columns of text at which the times of each part end


@dataclass
class _Test:
    """A test that is being read."""

    file: Path
    program: str = ""  # name of the test's program without its ending, such as "all_reduce"; "" = not named
    columns: _Columns = field(default_factory=_Columns)
    ranks: dict[int, tuple[str, ...]] = field(default_factory=dict)  # process, host, device, GPU by number of the rank
    rows: list[BenchmarkRow] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)  # printed algorithm and bus bandwidths in GB/s
    redop: str = ""  # last reduction that a row named
    rooted: bool = False  # whether rows have a root
    nccl: NcclInfo = field(default_factory=NcclInfo)
    per_process: int = 1  # number of GPUs that each of `ranks` stands for

    def log(self) -> BenchmarkLog:
        """Return the finished test."""
        info = self.nccl
        gpus = len(self.ranks) * self.per_process or info.ranks or 0
        hosts = len({host for _, host, _, _ in self.ranks.values()}) or None
        places = [rank[1:3] for rank in self.ranks.values()]
        if len(set(places)) < len(places):  # hosts share a name: containers often do
            hosts = None
        members = tuple((host, int(device)) for _, (_, host, device, _) in sorted(self.ranks.items()))
        names = {rank[3] for rank in self.ranks.values()} - {""}
        kind = self._kind_of_program() or self._kind_by_name() or self._kind_by_rows(gpus)
        return BenchmarkLog(
            file=self.file,
            collective=kind,
            hosts=info.nodes or hosts,
            gpus=gpus or _ranks_by_rates(kind, self.rates),
            gpu_name=min(names) if names else None,
            rows=tuple(self.rows),
            nccl=None if info == NcclInfo() else info,
            members=members if len(set(members)) == gpus else (),
        )

    def _kind_of_program(self) -> str | None:
        """Return the kind of the program; ConfigError if Nadi has no such collective."""
        if self.program and self.program not in KIND_OF_TEST:
            expected = f"one of {', '.join(sorted(KIND_OF_TEST))}"
            raise ConfigError(f"{self.file}:{self.rows[0].line}: rows of {self.program}_perf; expected {expected}")
        return KIND_OF_TEST.get(self.program)

    def _kind_by_name(self) -> str | None:
        """Return the kind that the file's name has."""
        name = self.file.name.lower().replace("-", "_")
        return next((KIND_OF_TEST[test] for test in sorted(KIND_OF_TEST, key=len, reverse=True) if test in name), None)

    def _kind_by_rows(self, gpus: int) -> str:
        """Return the kind that reduction, root and bus bandwidth show; ConfigError if several may."""
        algorithm, bus = max(self.rates, default=(0.0, 0.0))
        ratio = bus / algorithm if algorithm else 0.0
        is_reduced = self.redop not in {"", "none"}
        if is_reduced and ratio > 1.01:  # the bus bandwidth is above the algorithm's
            return "all-reduce"
        if is_reduced and self.rooted:
            return "reduce"
        if is_reduced and gpus and math.isclose(ratio, bus_factor("reduce-scatter", gpus), rel_tol=0.01):
            return "reduce-scatter"
        expected = "the command line, such as all_gather_perf -b 8, in it or all_gather in the name of the file"
        raise ConfigError(f"{self.file}:{self.rows[0].line}: rows of an unnamed collective; expected {expected}")


def _tests(path: Path, lines: Sequence[str]) -> Iterator[_Test]:
    """Yield the tests of a log that have rows."""
    test, exported, before = _Test(path), NcclInfo(), ""
    for number, raw in enumerate(lines, 1):
        line = before + _plain(raw)
        before = line.rstrip().removesuffix("\\") if line.rstrip().endswith("\\") else ""
        if before or not line.strip():  # a command goes on in the next line
            continue
        if line.lstrip(" $").startswith("export NCCL_"):
            exported = with_nccl_line(exported, line)
        named = _TEST.search(line)
        begins = named or "minBytes" in line
        if begins and test.rows and "concluded" not in line:
            yield test
            test = _Test(path, nccl=exported)
        if named:
            test.program = named[1]
        _note(path, number, line, test)
    if test.rows:
        yield test


def _note(path: Path, number: int, line: str, test: _Test) -> None:
    """Add what a line has to a test."""
    words = line.replace("#", " ", 1).split() if line.lstrip().startswith("#") else line.split()
    if not words:
        return
    rank = _RANK.search(line)
    if rank:
        _add_rank(path, number, test.ranks, rank)
    elif "NCCL" in line and not words[0].isdecimal():
        test.nccl = with_nccl_line(test.nccl, line)
    elif "algbw" in words and words[0] in {"size", "bytes"}:
        test.columns = _columns(line, words, test.columns)
    elif _PARTS.issuperset(words):
        test.columns.in_place_first = words[0] == "in-place"
    elif "(ms)" in words:
        test.columns.us_per_unit = _US_PER_MS
    elif _is_row(words, test.columns):
        _add_row(path, number, line, test)


def _of_json(path: Path, text: str) -> _Test:
    """Return the test of a file that nccl-tests has written for -J; ConfigError if it is another one."""
    try:
        document = json.loads(text)
        config, test = document["config"], _Test(path, nccl=NcclInfo(version=_version(document["nccl_version"])))
        test.program = named[1] if (named := _TEST.search(str(document["args"][0]))) else ""
        for variable in document["env"]:
            if str(variable).startswith("NCCL_"):
                test.nccl = with_nccl_line(test.nccl, str(variable))
        for number, result in enumerate(document["results"], 1):
            _add_json_row(path, number, result, test)
        for each in config["devices"]:
            place = str(each["pid"]), str(each["hostname"]), str(int(each["device"])), str(each["device_info"])
            test.ranks[int(each["rank"])] = place
        # a process with several GPUs names its first one only
        test.per_process = int(config["nthreads"]) * int(config["ngpus"])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        found = f"no key {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path}: {found}; expected the JSON document that nccl-tests writes for -J") from None
    if not test.rows:
        raise ConfigError(f"{path}: no row of a benchmark; expected some in results")
    return test


def _version(code: int) -> str:
    """Return NCCL's version of its number, 22105 or 2809."""
    major, minor = (code // 10000, code // 100 % 100) if code >= 10000 else (code // 1000, code // 100 % 10)
    return f"{major}.{minor}.{code % 100}"


def _add_json_row(path: Path, number: int, result: Mapping[str, Any], test: _Test) -> None:
    """Read a row of a JSON document."""
    none = _Part(math.nan, math.nan, math.nan, None)
    parts = []
    for name in ("out_of_place", "in_place"):
        values = result.get(name)
        words = [str(values.get(key, values.get("cpu_time"))) for key in ("time", "alg_bw", "bus_bw")] if values else []
        wrong = values.get("nwrong") if values else None
        words += ["N/A" if wrong is None else str(wrong)] if values else []
        parts.append(_part(path, number, words, _Columns()) if words else none)
    test.redop, test.rooted = str(result["redop"]), str(result["root"]).strip() != "-1"
    _add_parts(number, int(result["size"]), str(result["type"]), parts, test)


def _plain(line: str) -> str:
    """Return a line without colours, and without what launchers and messages put before it."""
    line = _COLOUR.sub("", line).translate(_MARKUP)
    # devices of NCCL have numbers in brackets, too
    if (tag := _TAG.match(line)) is not None and "NCCL" not in line:
        line = line.replace(tag[0], " ")
    while (prefix := _PREFIX.match(line)) is not None:
        line = line[prefix.end() :]
    return line


def _add_rank(path: Path, number: int, ranks: dict[int, tuple[str, ...]], match: re.Match[str]) -> None:
    """Add a rank of the list of devices; ConfigError if another process has its number."""
    rank, process, host, device, _, name = match.groups()
    found = (process or "", host, device, name.strip())
    if ranks.setdefault(int(rank), found) != found:
        expected = "one communicator of all processes: nccl-tests built with MPI=1"
        raise ConfigError(f"{path}:{number}: rank {rank} twice, as each process ran alone; expected {expected}")


def _columns(line: str, words: Sequence[str], before: _Columns) -> _Columns:
    """Return the columns that a line of headings names."""
    ends = tuple(match.end() for match in re.finditer(r"(?:cpu)?time", line))
    return _Columns(
        has_type="type" in words,
        has_root="root" in words,
        has_counts="#wrong" in words,
        in_place_first=before.in_place_first,
        per_iteration="i_min" in words,
        # the first version of the tests, whose headings begin with "bytes", printed milliseconds
        us_per_unit=_US_PER_MS if "bytes" in words else 1.0,
        ends=ends,
    )


def _is_row(words: Sequence[str], columns: _Columns) -> bool:
    """Return whether a line looks like a row: two whole numbers and a data type, or numbers below such headings."""
    if len(words) < 3 or not (words[0].isdecimal() and words[1].isdecimal()):
        return False
    return _DATA_TYPE.fullmatch(words[2]) is not None or (not columns.has_type and bool(columns.ends))


def _add_row(path: Path, number: int, line: str, test: _Test) -> None:
    """Read a row: size, count, type, reduction and root, then time, bandwidths and errors of one or two parts."""
    columns = test.columns
    words = [word for word in line.split() if not _is_timestamp(word)]
    names = [word for word in words[2:4] if word[0].isalpha() and word != "N/A"]
    values = words[2 + len(names) :]
    width = 4 + _PER_ITERATION * columns.per_iteration
    has_root = len(values) % width == 1
    if columns.has_root is not None:
        has_root = columns.has_root
    values, place = values[has_root:], 2 + len(names) + has_root
    if not columns.has_type and len(values) in {3, 6}:  # mscclpp-test without a check of results
        width = 3
    if not values or len(values) % width or len(values) > 2 * width:
        expected = "time, algbw, busbw and number of wrong elements, once or twice"
        raise ConfigError(f"{path}:{number}: {' '.join(words)!r}; expected a row with {expected}")
    parts = [_part(path, number, values[at : at + width], columns) for at in range(0, len(values), width)]
    size_bytes = int(words[0])
    if len(words[0]) > _MAX_DIGITS:
        raise ConfigError(f"{path}:{number}: size {words[0]}; expected at most {_MAX_DIGITS} digits")
    first_in_place = columns.in_place_first
    if len(parts) == 1 and len(columns.ends) > 1:
        first_in_place ^= _is_second(line, place, columns.ends)
    none = _Part(math.nan, math.nan, math.nan, None)
    out, within = (none, parts[0]) if first_in_place else (parts[0], none)
    if len(parts) > 1:
        out, within = parts[::-1] if first_in_place else parts
    test.redop, test.rooted = (names[1] if len(names) > 1 else ""), has_root and words[place - 1] != "-1"
    _add_parts(number, size_bytes, names[0] if names else "", (out, within), test)


def _add_parts(number: int, size_bytes: int, data_type: str, parts: Sequence["_Part"], test: _Test) -> None:
    """Add a row with its parts out of place and in place."""
    out, within = parts
    test.rates += [(part.algorithm_GBps, part.bus_GBps) for part in parts if part.algorithm_GBps > 0]
    counts = [part.wrong for part in parts if part.wrong is not None]
    test.rows.append(
        BenchmarkRow(
            line=number,
            size_bytes=size_bytes,
            data_type=data_type,
            time_us=out.time_us,
            time_in_place_us=within.time_us,
            bus_bandwidth_Bps=out.bus_GBps * _RATE_BPS,
            bus_bandwidth_in_place_Bps=within.bus_GBps * _RATE_BPS,
            wrong=sum(counts) if counts else None,
        )
    )


_MAX_DIGITS = 15  # digits of a size in bytes: a petabyte has fewer


def _is_timestamp(word: str) -> bool:
    """Return whether a word is a part of the time of day that -S adds to rows."""
    return re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{2}:[0-9]{2}:[0-9]{2}", word) is not None


def _is_second(line: str, place: int, ends: Sequence[int]) -> bool:
    """Return whether the value at a place of a row is below the second time of the headings."""
    matches = list(re.finditer(r"\S++", line))
    end = matches[place].end()
    return abs(end - ends[1]) < abs(end - ends[0])


class _Part(NamedTuple):
    """The values of a row out of place, or in place."""

    time_us: float
    algorithm_GBps: float  # noqa: N815 - bytes
    bus_GBps: float  # noqa: N815 - bytes
    wrong: int | None


def _part(path: Path, number: int, values: Sequence[str], columns: _Columns) -> _Part:
    """Return the values of a part; ConfigError if one is no number, or negative."""
    time, algorithm, bus = (_number(path, number, word) for word in values[:3])
    wrong = _number(path, number, values[3]) if len(values) > 3 else math.nan
    has_count = columns.has_counts and not math.isnan(wrong) and wrong == int(wrong)
    is_timed = time > 0
    return _Part(
        time * columns.us_per_unit if is_timed else math.nan,
        algorithm if is_timed else math.nan,
        bus if is_timed else math.nan,
        int(wrong) if has_count else None,
    )


def _number(path: Path, number: int, word: str) -> float:
    """Return a value of a row; nan for N/A."""
    try:
        value = math.nan if word == "N/A" else float(word.rstrip("*"))
    except ValueError:
        value = -1.0
    if value < 0 or math.isinf(value):
        raise ConfigError(f"{path}:{number}: {word!r} in a row; expected a number of 0 or more, or N/A")
    return value


def _ranks_by_rates(kind: str, rates: Sequence[tuple[float, float]]) -> int:
    """Return the number of ranks that the ratio of bus to algorithm bandwidth means; 0 if several may."""
    low, high = 0.0, math.inf
    for algorithm, bus in rates:
        half_units = [0.005 if rate < 1e3 else 0.5 for rate in (algorithm, bus)]
        if algorithm > half_units[0]:
            low = max(low, (bus - half_units[1]) / (algorithm + half_units[0]))
            high = min(high, (bus + half_units[1]) / (algorithm - half_units[0]))
    fitting = [ranks for ranks in range(2, _MAX_RANKS) if low <= bus_factor(kind, ranks) <= high]
    return fitting[0] if len(fitting) == 1 else 0
