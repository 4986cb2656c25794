"""One collective of all NPUs on an idle fabric, size after size, with the closed form beside: what nccl-tests does."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import pdes
import workload
from nadi.configuration.sections import NetworkSection
from nadi.errors import ConfigError
from nadi.insight.analysis.node_times import bandwidths_Bps, utilisation
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.workers import SERIAL, Workers
from nadi.simulation.closed_forms.collective import closed_form
from nadi.simulation.closed_forms.link_bound import link_bound_ps
from nadi.simulation.run import run_program
from nadi.simulation.wiring.partitioning import divide, traffic_load
from partition import DEFAULT_METHOD
from topologies import NVSWITCH, Graph
from topologies.bounds import MAX_BYTES
from topologies.units import format_bytes, parse_bytes_within
from workload import KINDS, CollectiveSettings, Program, WorkloadError
from workload.collectives import choose as choose_algorithm
from workload.collectives import defaults_on, uneven_algorithms
from workload.collectives.nccl.generations import generations
from workload.collectives.uneven.all_to_all_v import NAME as UNEVEN
from workload.program.aggregation import switches_of
from workload.shape import shape_of

ALL = "all"
MOST_SIZES = 1000
_WITHOUT_BYTES = "barrier"
_LONG_S = 5.0
_LONGEST_FACTOR = 15


class SweepRow(NamedTuple):
    """A collective and how long it took.

    Attributes:
        kind: see workload.KINDS.
        algorithm: as the user writes it, parameters too.
        way: what an algorithm that chooses among several took for the size; "" of others.
        bytes: the whole buffer S; 0 for a barrier; of an all-to-all-v the mean of what members send, as rccl-tests
            counts.
        time_ps: from the start to when the last NPU was done.
        algbw_Bps: bytes / time.
        busbw_Bps: that times the bus factor of nccl-tests.
        closed_form_ps: what the algorithm takes on an idle network.
        closed_form_played: its steps were played; else that is what its formula says.
        ratio: time / closed form; NaN where the closed form is 0.
        bound_ps: what the busiest link takes at least, see nadi.simulation.closed_forms.link_bound.
        busiest_link: share of the time in which the busiest link was sending.
        mean_link: the same, mean of all links.
        packet_hops: of the run.
        digest: of the run.
    """

    kind: str
    algorithm: str
    way: str
    bytes: int
    time_ps: int
    algbw_Bps: float  # noqa: N815 - bytes, not bits
    busbw_Bps: float  # noqa: N815 - bytes, not bits
    closed_form_ps: float
    closed_form_played: bool
    ratio: float
    bound_ps: float
    busiest_link: float
    mean_link: float
    packet_hops: int
    digest: str


class CollectiveCase(NamedTuple):
    """What is done, apart from the algorithm.

    Attributes:
        kind: see workload.KINDS, or "all-to-all-v".
        matrix: of an all-to-all-v, the bytes from member (row) to member (column) by size and number of members.
        settings: algorithms in place of defaults, and what those get that say no splits.
    """

    kind: str
    matrix: Callable[[int, int], NDArray[np.int64]] | None = None
    settings: CollectiveSettings = CollectiveSettings()

    def algorithms(self) -> tuple[str, ...]:
        """All that do it, the default first.

        Raises:
            workload.WorkloadError: unknown kind.
        """
        return uneven_algorithms() if self.matrix else workload.algorithms_of(self.kind)

    def default(self, graph: Graph) -> str:
        """The algorithm for who names none on this fabric.

        Raises:
            workload.WorkloadError: unknown kind.
        """
        if self.matrix:
            algorithms = {**defaults_on(graph), **self.settings.algorithm}
            return replace(self.settings, algorithm=algorithms).algorithm_of(UNEVEN)
        named = self.settings.algorithm.get(self.kind)
        return named or defaults_on(graph).get(self.kind) or workload.default_algorithm(self.kind)

    def with_parameters(self, algorithm: str) -> str:
        """An algorithm with the parameters that the settings give to those which name none.

        Raises:
            workload.WorkloadError: it is unknown.
        """
        kind = UNEVEN if self.matrix else self.kind
        return replace(self.settings, algorithm={kind: algorithm}).algorithm_of(kind)

    def program(self, graph: Graph, algorithm: str, size_bytes: int) -> Program:
        """Of all NPUs.

        Raises:
            workload.WorkloadError: the algorithm is unknown, or refuses the fabric or the size.
        """
        if self.matrix:
            return workload.uneven_program(self.matrix(size_bytes, graph.npus), algorithm, graph)
        most_bytes = self.settings.most_bytes
        return workload.collective_program(self.kind, graph.npus, size_bytes, algorithm, graph, most_bytes)

    def bytes(self, size_bytes: int, members: int) -> int:
        """What the table shows of a size."""
        return int(self.matrix(size_bytes, members).sum()) // members if self.matrix else size_bytes


class SkippedAlgorithm(NamedTuple):
    """An algorithm that does not do this collective on this fabric, and why."""

    algorithm: str
    reason: str


class ChosenAlgorithms(NamedTuple):
    """The algorithms that are asked for and do it, those of "all" that are left out, and what was made to find out.

    Attributes:
        made: the program of the first row, until that is run.
    """

    algorithms: list[str]
    left_out: list[SkippedAlgorithm]
    made: list[Program]


def choose(
    graph: Graph,
    done: CollectiveCase,
    text: str,
    sizes: Sequence[int],
    check: Callable[[Program], None] = lambda _: None,
    *,
    sharp_everywhere: bool = False,
) -> ChosenAlgorithms:
    """The algorithms that --algorithm names, and those of "all" that are left out.

    Left out is what refuses the members, the fabric or a size, and what has switches reduce other than NVSwitches with
    NVLink SHARP: no fabric says that they can. Who names such an algorithm takes it that they do.

    Args:
        graph: the fabric; all its NPUs take part.
        done: the collective.
        text: "all", names apart by commas, or "" for the kind's default.
        sizes: bytes; algorithms are asked for the first, the last and the largest.
        check: raises ConfigError where a program is too much.
        sharp_everywhere: "all" takes it, too, that every switch can reduce.

    Raises:
        ConfigError: an empty name, "all" where none is left, or as `check`.
        workload.WorkloadError: unknown kind, or a named algorithm is unknown or refuses.
    """
    names = done.algorithms() if text == ALL else split_names(text) if text else (done.default(graph),)
    fit: list[str] = []
    left_out: list[SkippedAlgorithm] = []
    made: list[Program] = []
    asks_switches = text == ALL and not sharp_everywhere
    for given in names:
        name = given
        try:
            name = done.with_parameters(given)
            switches: set[int] = set()
            for size in dict.fromkeys((max(sizes), sizes[-1], sizes[0])):
                program = done.program(graph, name, size)
                check(program)
                if asks_switches:
                    switches.update(switches_of(program))
        except (WorkloadError, ConfigError) as error:
            if text != ALL:
                raise
            left_out.append(SkippedAlgorithm(name, str(error)))
            continue
        why_not = _cannot_reduce(graph, switches)
        if why_not:
            left_out.append(SkippedAlgorithm(name, f"{why_not}; with --algorithm NAME it does"))
        else:
            fit.append(name)
            made = made or [program]
        del program
    if not fit:
        raise ConfigError(f"--algorithm all: none does {done.kind} here; {left_out[0].algorithm}: {left_out[0].reason}")
    return ChosenAlgorithms(fit, left_out, made)


def _cannot_reduce(graph: Graph, switches: Iterable[int]) -> str:
    """Why a switch that these have reduce does not; "" = all of them can."""
    made = generations().get(graph.accelerator)
    for switch in sorted(switches):
        if graph.node_kind[switch] != NVSWITCH:
            return f"{graph.node_name(switch)} is no NVSwitch, and the fabric does not say that it reduces (SHARP)"
        if made is not None and made.nvls_efficiency == 0:
            return f"{graph.node_name(switch)} is of {made.name.upper()}s, which have no NVLink SHARP"
    return ""


def listed(left_out: Sequence[SkippedAlgorithm]) -> str:
    """One line: what is left out, and why; what has one reason stands together."""
    of_reason: dict[str, list[str]] = {}
    for each in left_out:
        of_reason.setdefault(each.reason, []).append(each.algorithm)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in of_reason.items())


def split_names(text: str) -> tuple[str, ...]:
    """Names of "ring,direct" or "ring:channels=4,bidirectional=true,direct", each once.

    What follows a comma belongs to the name before it where it is KEY=VALUE.

    Raises:
        ConfigError: an empty name, or a parameter before any name.
    """
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        is_parameter = "=" in part.split(":", maxsplit=1)[0]
        if not part or (is_parameter and not names):
            raise ConfigError(f"--algorithm {text}: found {part!r}; expected all, or names as ring,direct")
        if is_parameter:
            names[-1] += f",{part}"
        else:
            names.append(part)
    return tuple(dict.fromkeys(names))


def measure(
    graph: Graph,
    done: CollectiveCase,
    chosen: ChosenAlgorithms,
    sizes: Sequence[int],
    settings: pdes.Settings,
    progress: Progress | NoProgress,
    workers: Workers = SERIAL,
) -> Iterator[SweepRow]:
    """Run a collective with each algorithm and size; on several ranks all call it and get the same rows.

    Args:
        graph: the fabric; all its NPUs take part.
        done: the collective.
        chosen: names, or names and parameters; `made` is used up.
        sizes: bytes of the whole buffer S.
        settings: packets and switching.
        progress: told which row of how many this is.
        workers: who runs it; METIS divides the fabric by the traffic of each algorithm's first size.

    Raises:
        workload.WorkloadError: an algorithm that does not do this kind.
        partition.PartitionError: the fabric cannot be divided among so many.
        pdes.RunError: a run failed.
    """
    rows = len(chosen.algorithms) * len(sizes)
    for number, algorithm in enumerate(chosen.algorithms):
        owner = None
        walls: list[tuple[int, float]] = []
        for place, size in enumerate(sizes):
            row = f"row {number * len(sizes) + place + 1} of {rows}: {algorithm}, {format_bytes(size)}"
            progress.begin(row + _expected(walls, size))
            begun = time.perf_counter()
            program = chosen.made.pop() if chosen.made else done.program(graph, algorithm, size)
            if owner is None:
                owner = _owner(graph, program, workers)
            results = run_program(graph, program, settings, progress, workers, owner)
            progress.begin(f"{row}, on an idle network")
            yield _row(graph, program, settings, done, algorithm, size, results)
            walls.append((size, time.perf_counter() - begun))
            del program  # before the next is made


def sizes_of(kind: str, text: str) -> list[int]:
    """Bytes of --sizes for a kind; a barrier has none, so it is one row whatever the sizes.

    Raises:
        ConfigError, TopologyError: as `parse_sizes`.
    """
    sizes = parse_sizes(text)
    return [0] if kind == _WITHOUT_BYTES else sizes


def parse_sizes(text: str) -> list[int]:
    """Bytes of "64KiB", "1MiB,4MiB", "8:8GiB:x2" (each twice the one before) or "1MiB:8MiB:+1MiB", each once.

    Raises:
        ConfigError: anything else, a step that does not grow, or more than MOST_SIZES.
        TopologyError: a part is no size.
    """
    sizes = [size for part in text.split(",") for size in _range(part.strip())]
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"--sizes {text}: found a size of 0; expected sizes like 1MiB:1GiB:x2")
    return list(dict.fromkeys(sizes))


def _range(text: str) -> list[int]:
    parts = text.split(":")
    if len(parts) == 1:
        return [parse_bytes_within(text, MAX_BYTES)]
    if len(parts) != 3 or parts[2][:1] not in {"x", "+"}:
        raise ConfigError(f"--sizes {text}: expected a form like 1MiB:1GiB:x2, 1MiB:8MiB:+1MiB or 64KiB")
    first, last = (parse_bytes_within(part, MAX_BYTES) for part in parts[:2])
    step = parts[2]
    factor, summand = (_factor(text, step), 0) if step[0] == "x" else (1, parse_bytes_within(step[1:], MAX_BYTES))
    if first < 1 or (factor < 2 and summand < 1):
        raise ConfigError(f"--sizes {text}: does not grow; expected a first size above 0 and a step like x2 or +1MiB")
    sizes = []
    while first <= last:
        sizes.append(first)
        first = first * factor + summand
        if len(sizes) > MOST_SIZES:
            raise ConfigError(f"--sizes {text}: more than {MOST_SIZES} sizes; expected fewer")
    if not sizes:
        raise ConfigError(f"--sizes {text}: the first size is above the last; expected first:last:step")
    return sizes


def _factor(text: str, step: str) -> int:
    if not step[1:].isdecimal() or len(step) > _LONGEST_FACTOR:
        raise ConfigError(f"--sizes {text}: found factor {step!r}; expected a whole number, as x2")
    return int(step[1:])


def _owner(graph: Graph, program: Program, workers: Workers) -> NDArray[np.int32] | None:
    """int32[nodes], the LP of each node; None = one LP."""
    if workers.lps == 1:
        return None
    load = traffic_load(graph, program, NetworkSection())
    owner = divide(graph, workers.lps, DEFAULT_METHOD, load, NetworkSection())[0].owner
    return workers.ranks.exchange(owner)[0]


def _row(
    graph: Graph,
    program: Program,
    settings: pdes.Settings,
    done: CollectiveCase,
    algorithm: str,
    size_bytes: int,
    results: pdes.Results,
) -> SweepRow:
    kind = "all-to-all" if done.matrix else done.kind
    time_ps, shown_bytes = results.finish_time_ps, done.bytes(size_bytes, graph.npus)
    closed = closed_form(
        graph,
        program,
        settings,
        kind=kind,
        algorithm=algorithm,
        schedule=int(program.node_schedule[0]),
        members=np.arange(graph.npus),
        size_bytes=int(program.node_bytes[0]),
    )
    busy = utilisation(graph, results.links["tx_bytes"], time_ps)
    return SweepRow(
        done.kind,
        algorithm,
        "" if done.matrix else _way(graph, kind, algorithm, int(program.node_bytes[0])),
        shown_bytes,
        time_ps,
        *bandwidths_Bps(KINDS.index(kind), graph.npus, shown_bytes, time_ps),
        closed.time_ps,
        closed.is_played,
        time_ps / closed.time_ps if closed.time_ps > 0 else float("nan"),
        link_bound_ps(graph, program, settings),
        float(busy.max(initial=0.0)),
        float(busy.mean()) if len(busy) else 0.0,
        results.counters["packet_hops"],
        results.digest,
    )


def _way(graph: Graph, kind: str, algorithm: str, size_bytes: int) -> str:
    """What an algorithm that chooses takes for a size with all NPUs."""
    chosen = choose_algorithm(kind, algorithm)
    if not chosen.needs_shape or graph.npus < 2:
        return ""
    return chosen.describe(kind, shape_of(graph, range(graph.npus), trees=chosen.trees), size_bytes)


def _expected(walls: Sequence[tuple[int, float]], size_bytes: int) -> str:
    """How long a row will take, as the last two (bytes, seconds) went on, where that is worth a word."""
    if len(walls) < 2:
        return ""
    (before, before_s), (last, last_s) = walls[-2:]
    per_byte_s = max(last_s - before_s, 0.0) / max(last - before, 1)
    wall_s = last_s + per_byte_s * max(size_bytes - last, 0)
    return f", about {wall_s:,.0f} s" if wall_s > _LONG_S else ""
