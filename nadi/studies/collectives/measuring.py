"""One collective of all NPUs on an idle fabric over several sizes, with closed forms, as nccl-tests measures it.

The wall time of a row is predicted from the pace of rows that have run on this machine.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import pdes, workload
from nadi.errors import ConfigError
from nadi.inputs.units import format_bytes
from nadi.insight.node_times import bandwidths_Bps, utilisation
from nadi.launching.progress import NoProgress, Progress, duration_text
from nadi.launching.workers import SERIAL, Workers
from nadi.simulation.assembly.partitioning import owner_by_traffic
from nadi.simulation.assembly.resource_checks import Estimate, estimate, of_all_ranks, work as work_of
from nadi.simulation.closed_forms import SWEEP_EFFORT, ClosedForm, CollectiveCosts, closed_form
from nadi.simulation.mixed_fidelity import coupled_collectives, coupled_schedules
from nadi.simulation.run import run_program
from nadi.studies.collectives.link_bound import link_bound_ps
from nadi.topologies import NVSWITCH, Graph
from nadi.workload import KINDS, CollectiveSettings, Program, WorkloadError
from nadi.workload.collectives import UNEVEN, choose as choose_algorithm, defaults_on, is_timed_alone, uneven_algorithms
from nadi.workload.collectives.nccl.generations import generations
from nadi.workload.program import switches_of
from nadi.workload.shape import shape_of

ALL = "all"
_NO_TIMES = (
    "has the times of GPU kernels, which the others have only on a fabric that names its accelerator; "
    "use --algorithm NAME"
)
_MIN_ESTIMATE_S = 5.0  # estimated wall times above this many seconds are shown in the progress line


class SweepRow(NamedTuple):
    """Measured and analytical times of a collective with one algorithm and size."""

    kind: str  # kind of the collective, one of workload.KINDS or "all-to-all-v"
    algorithm: str  # algorithm with its parameters, as the user writes it
    variant: str  # variant that a selecting algorithm chose for the size; "" for other algorithms
    model: (
        str  # what the time is of: the network's model, by flows with "steps" or "coupled"; "" = it is the closed form
    )
    # size of the whole buffer S in bytes; 0 for a barrier; mean bytes that a member sends in an all-to-all-v, as in
    # rccl-tests
    bytes: int
    time_ps: int  # time in ps from the start until the last NPU finishes; the closed form if nothing ran
    # algorithm bandwidth in bytes per second: bytes / time
    algbw_Bps: float  # noqa: N815 - bytes, not bits
    # bus bandwidth in bytes per second: algorithm bandwidth times the bus factor of nccl-tests
    busbw_Bps: float  # noqa: N815 - bytes, not bits
    closed_form_ps: float  # closed-form time of the algorithm on an idle network, in ps
    closed_form_played: bool  # whether packets played the schedule's steps; False = flows did, or it used a formula
    ratio: float  # time over closed form; NaN if the closed form is 0
    bound_ps: float  # lower bound in ps from the busiest link, see nadi.studies.collectives.link_bound
    busiest_link: float  # utilisation of the busiest link, 0 to 1
    mean_link: float  # mean utilisation of all links, 0 to 1
    packet_hops: int  # number of packet-hops of the run
    digest: str  # digest of the run; "" if nothing ran


class CollectiveCase(NamedTuple):
    """A collective without its algorithm and size."""

    kind: str  # one of workload.KINDS, or "all-to-all-v"
    # function from size in bytes and number of members to the bytes between members (row = sender) of an all-to-all-v
    matrix: Callable[[int, int], NDArray[np.int64]] | None = None
    # algorithms that override the defaults, and the number of splits of algorithms that name none
    settings: CollectiveSettings = CollectiveSettings()

    def algorithms(self) -> tuple[str, ...]:
        """Return all algorithms of the collective, the default first; raise WorkloadError if the kind is unknown."""
        return uneven_algorithms() if self.matrix else workload.algorithms_of(self.kind)

    def default(self, graph: Graph) -> str:
        """Return the algorithm that runs on this fabric if the user names none; unknown kinds raise WorkloadError.

        Args:
            graph: The fabric of the collective.
        """
        if self.matrix:
            algorithms = {**defaults_on(graph), **self.settings.algorithm}
            return replace(self.settings, algorithm=algorithms).algorithm_of(UNEVEN)
        named = self.settings.algorithm.get(self.kind)
        return named or defaults_on(graph).get(self.kind) or workload.default_algorithm(self.kind)

    def with_parameters(self, algorithm: str) -> str:
        """Return a known algorithm (else WorkloadError) with the settings' parameters unless it has its own."""
        kind = UNEVEN if self.matrix else self.kind
        return replace(self.settings, algorithm={kind: algorithm}).algorithm_of(kind)

    def program(self, graph: Graph, algorithm: str, size_bytes: int) -> Program:
        """Return the program of a collective of all NPUs; WorkloadError if the algorithm refuses.

        Args:
            graph: The fabric of the collective.
            algorithm: The text of an algorithm with its parameters.
            size_bytes: The size of a member's buffer in bytes.
        """
        if self.matrix:
            return workload.uneven_program(self.matrix(size_bytes, graph.npus), algorithm, graph)
        max_bytes = self.settings.most_bytes
        return workload.collective_program(self.kind, graph.npus, size_bytes, algorithm, graph, max_bytes)

    def closed_form(self, graph: Graph, program: Program, settings: pdes.Settings, algorithm: str) -> ClosedForm:
        """Return the time of the collective on an idle network.

        Args:
            graph: The fabric of the collective.
            program: The program of the collective, as of `program`.
            settings: The engine's settings.
            algorithm: The text of the program's algorithm with its parameters.
        """
        return closed_form(
            graph,
            program,
            settings,
            kind="all-to-all" if self.matrix else self.kind,
            algorithm=algorithm,
            schedule=int(program.node_schedule[0]),
            members=np.arange(graph.npus),
            size_bytes=int(program.node_bytes[0]),
        )

    def bytes(self, size_bytes: int, num_members: int) -> int:
        """Return the bytes that the table shows for a buffer of `size_bytes`: the mean sent, or the buffer's.

        Args:
            size_bytes: The size of a member's buffer in bytes.
            num_members: The number of members of the collective.
        """
        return int(self.matrix(size_bytes, num_members).sum()) // num_members if self.matrix else size_bytes


class SkippedAlgorithm(NamedTuple):
    """An algorithm that cannot perform the collective on this fabric, and the reason."""

    algorithm: str
    reason: str


class ChosenAlgorithms(NamedTuple):
    """The algorithms of a sweep."""

    algorithms: list[str]  # algorithms that perform the collective
    left_out: list[SkippedAlgorithm]  # algorithms of "all" that cannot perform it
    first_program: list[Program]  # program of the first row, built while checking; empty after that row has run


def choose_algorithms(
    graph: Graph,
    case: CollectiveCase,
    algorithm_option: str,
    sizes: Sequence[int],
    check_program: Callable[[Program], None],
) -> ChosenAlgorithms:
    """Return the algorithms of --algorithm (a list, "all", or "" for the default), and those of "all" that are skipped.

    "all" skips algorithms that refuse the members (all NPUs), the fabric or a size. It also skips algorithms that
    reduce in switches other than NVSwitches with NVLink SHARP, because no fabric declares that its switches can. Naming
    such an algorithm assumes that they can. On a fabric that does not name its accelerator "all" skips those that have
    the times of kernels even there. Each is tried with the first, the last and the largest of `sizes` in bytes, and
    `check_program` raises ConfigError if a program is too large to run. Otherwise ConfigError and WorkloadError
    refuse names that are empty or unknown.

    Args:
        graph: The fabric of the collective.
        case: The collective and the settings that all rows share.
        sizes: The sizes of buffers in bytes, one for each row of an algorithm.
        algorithm_option: The value of --algorithm.
        check_program: A function that refuses programs too large to run.
    """
    names = (
        case.algorithms()
        if algorithm_option == ALL
        else split_names(algorithm_option)
        if algorithm_option
        else (case.default(graph),)
    )
    usable: list[str] = []
    left_out: list[SkippedAlgorithm] = []
    first_program: list[Program] = []
    for candidate in names:
        name = candidate
        try:
            name = case.with_parameters(candidate)
            switches: set[int] = set()
            for size in reversed(dict.fromkeys((sizes[0], sizes[-1], max(sizes)))):  # the first size last: it is kept
                program = case.program(graph, name, size)
                check_program(program)
                if algorithm_option == ALL:
                    switches.update(switches_of(program))
        except (WorkloadError, ConfigError) as error:
            if algorithm_option != ALL:
                raise
            left_out.append(SkippedAlgorithm(name, str(error)))
            continue
        reason = _cannot_reduce(graph, switches)
        if reason:
            left_out.append(SkippedAlgorithm(name, f"{reason}; use --algorithm NAME to assume that it can"))
        elif algorithm_option == ALL and is_timed_alone(name, graph.accelerator):
            left_out.append(SkippedAlgorithm(name, _NO_TIMES))
        else:
            usable.append(name)
            first_program = first_program or [program]
        del program
    if not usable:
        first = left_out[0]
        raise ConfigError(f"--algorithm all: no algorithm performs {case.kind} here; {first.algorithm}: {first.reason}")
    return ChosenAlgorithms(usable, left_out, first_program)


def _cannot_reduce(graph: Graph, switches: Iterable[int]) -> str:
    """Return why the first switch that cannot reduce cannot; "" if all of them can."""
    generation = generations().get(graph.accelerator)
    for switch in sorted(switches):
        if graph.node_kind[switch] != NVSWITCH:
            reason = "is not an NVSwitch, and the fabric does not declare that it reduces (SHARP)"
            return f"{graph.node_name(switch)} {reason}"
        if generation is not None and generation.nvls_efficiency == 0:
            return f"{graph.node_name(switch)} belongs to {generation.name.upper()} GPUs, which have no NVLink SHARP"
    return ""


def skipped_text(left_out: Sequence[SkippedAlgorithm]) -> str:
    """Return one line with the skipped algorithms, grouped by reason.

    Args:
        left_out: The algorithms that cannot run here, with their reasons.
    """
    names_by_reason: dict[str, list[str]] = {}
    for skipped in left_out:
        names_by_reason.setdefault(skipped.reason, []).append(skipped.algorithm)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in names_by_reason.items())


def split_names(algorithm_option: str) -> tuple[str, ...]:
    """Split "ring,direct" or "ring:channels=4,bidirectional=true,direct" into unique names; else raise ConfigError.

    Args:
        algorithm_option: The value of --algorithm.
    """
    names: list[str] = []
    for part in (part.strip() for part in algorithm_option.split(",")):
        is_parameter = "=" in part.split(":", maxsplit=1)[0]
        if not part or (is_parameter and not names):
            raise ConfigError(f"--algorithm {algorithm_option}: found {part!r}; expected all, or names as ring,direct")
        if is_parameter:
            names[-1] += f",{part}"
        else:
            names.append(part)
    return tuple(dict.fromkeys(names))


def measure_rows(
    graph: Graph,
    case: CollectiveCase,
    chosen_algorithms: ChosenAlgorithms,
    sizes_bytes: Sequence[int],
    settings: pdes.Settings,
    progress: Progress | NoProgress,
    workers: Workers = SERIAL,
    *,
    simulates: bool = True,
) -> Iterator[SweepRow]:
    """Yield a row for each algorithm and size; on several ranks all call it and get the same rows.

    All NPUs are members. The first program of the algorithms is consumed. Of several `workers`, METIS partitions the
    fabric by the traffic of each algorithm's first size. A row that is predicted to take more than a minute is
    announced before it begins. Without `simulates`, rows have closed forms only. A failed run is a RunError.

    Args:
        graph: The fabric of the collective.
        case: The collective and the settings that all rows share.
        chosen_algorithms: The algorithms in the order of the rows, and those that are skipped.
        sizes_bytes: The sizes of buffers in bytes, one for each row of an algorithm.
        settings: The settings of the engine.
        workers: Threads, processes or ranks that simulate.
        progress: The display that names the current row.
        simulates: Whether rows are simulated; False leaves closed forms and bounds only.
    """
    rows = len(chosen_algorithms.algorithms) * len(sizes_bytes)
    for number, algorithm in enumerate(chosen_algorithms.algorithms):
        bench = _Bench(graph, case, algorithm, settings, progress, workers)
        for place, size in enumerate(sizes_bytes):
            row = f"row {number * len(sizes_bytes) + place + 1} of {rows}: {algorithm}, {format_bytes(size)}"
            progress.begin(row)
            program = (
                chosen_algorithms.first_program.pop()
                if chosen_algorithms.first_program
                else case.program(graph, algorithm, size)
            )
            if simulates:
                yield bench.row(row, program, size)
            else:
                yield _row(graph, program, settings, case, algorithm, size, None, "")
            del program  # frees its memory before the next program is built


class _Bench:
    """The runs of one algorithm, whose pace predicts the wall time of further ones."""

    def __init__(
        self,
        graph: Graph,
        case: CollectiveCase,
        algorithm: str,
        settings: pdes.Settings,
        progress: Progress | NoProgress,
        workers: Workers,
    ) -> None:
        """Begin without a run; the arguments are those of `measure`."""
        self._graph, self._case, self._algorithm, self._settings = graph, case, algorithm, settings
        self._progress, self._workers = progress, workers
        self._pace = Pace()
        self._owner: NDArray[np.int32] | None = None

    def row(self, name: str, program: Program, size_bytes: int) -> SweepRow:
        """Run the program of a size, announced by its predicted time; name: number, algorithm and size of the row."""
        if self._owner is None:
            self._owner = owner_by_traffic(self._graph, program, self._workers)
        expected = self._estimate(program)
        work = work_of(expected, self._settings)
        if self._pace.needs_calibration(work):
            self._calibrate(size_bytes)
        wall_s = self._pace.seconds(work)
        if wall_s is not None and wall_s > LONG_S and self._workers.ranks.rank == 0:
            self._progress.warn(f"{name}: about {duration_text(wall_s)}")
        if wall_s is not None and wall_s > _MIN_ESTIMATE_S:
            self._progress.begin(f"{name}, about {duration_text(wall_s)}")
        begun_s = time.perf_counter()
        results = self._run(program, expected)
        self._progress.begin(f"{name}, on an idle network")
        work_and_model = self._graph, program, self._settings, self._case, self._algorithm, size_bytes, results
        finished = _row(*work_and_model, self._model(program, expected))
        self._pace.add(measured_row(work, results, time.perf_counter() - begun_s))
        return finished

    def _calibrate(self, size_bytes: int) -> None:
        """Run small parts of a size, for the pace of this machine."""

        def expected(size: int) -> tuple[Program, Estimate]:
            program = self._case.program(self._graph, self._algorithm, size)
            return program, self._estimate(program)

        for size in calibration_sizes(lambda size: work_of(expected(size)[1], self._settings), size_bytes):
            program, estimated = expected(size)
            begun_s = time.perf_counter()
            results = self._run(program, estimated)
            self._pace.add(measured_row(work_of(estimated, self._settings), results, time.perf_counter() - begun_s))

    def _estimate(self, program: Program) -> Estimate:
        """Return the work of a program, of all ranks together."""
        return of_all_ranks(estimate(self._graph, program, self._settings), self._workers.ranks)

    def _model(self, program: Program, expected: Estimate) -> str:
        """Return the model of a run, as of SweepRow; expected: its work."""
        fidelity = self._settings.fidelity
        if not hasattr(fidelity.own, "collectives"):
            return fidelity.model.name
        return f"{fidelity.model.name}, {'coupled' if self._couples(program, expected) else 'steps'}"

    def _couples(self, program: Program, expected: Estimate) -> bool:
        """Return whether the collective is a coupled flow, not message by message; expected: its work."""
        return self._settings.fidelity.own.couples(expected.messages) and bool(
            coupled_schedules(program)[program.node_schedule[0]]
        )

    def _run(self, program: Program, expected: Estimate) -> pdes.Results:
        """Run a program; expected: its work."""
        settings = self._settings
        if self._couples(program, expected):
            how = CollectiveSettings({self._case.kind: self._algorithm})
            costs = CollectiveCosts(self._graph, settings, SWEEP_EFFORT)
            settings = replace(settings, coupled=coupled_collectives(program, costs, how))
        return run_program(self._graph, program, settings, self._progress, self._workers, self._owner, expected)


def _row(
    graph: Graph,
    program: Program,
    settings: pdes.Settings,
    case: CollectiveCase,
    algorithm: str,
    size_bytes: int,
    results: pdes.Results | None,
    model: str,
) -> SweepRow:
    """Return the row of a finished run of `program`, with closed form, lower bound and utilisation.

    results: Results of the run; None = nothing ran, and the closed form is the row's time; model: as of SweepRow.
    """
    kind = "all-to-all" if case.matrix else case.kind
    shown_bytes = case.bytes(size_bytes, graph.npus)
    closed = case.closed_form(graph, program, settings, algorithm)
    time_ps = round(closed.time_ps) if results is None else results.finish_time_ps
    busy = np.zeros(0) if results is None else utilisation(graph, results.links["tx_bytes"], time_ps)
    return SweepRow(
        case.kind,
        algorithm,
        "" if case.matrix else _variant(graph, kind, algorithm, int(program.node_bytes[0])),
        model,
        shown_bytes,
        time_ps,
        *bandwidths_Bps(KINDS.index(kind), graph.npus, shown_bytes, time_ps),
        closed.time_ps,
        closed.is_simulated,
        time_ps / closed.time_ps if closed.time_ps > 0 else float("nan"),
        link_bound_ps(graph, program, settings),
        float(busy.max(initial=0.0)),
        float(busy.mean()) if len(busy) else 0.0,
        0 if results is None else results.counters["packet_hops"],
        "" if results is None else results.digest,
    )


def _variant(graph: Graph, kind: str, algorithm: str, size_bytes: int) -> str:
    """Return the variant that a selecting algorithm chooses for a size with all NPUs; "" for other algorithms."""
    chosen = choose_algorithm(kind, algorithm)
    if not (chosen.needs_shape or chosen.pays(graph.accelerator)) or graph.npus < 2:
        return ""
    return chosen.describe(kind, shape_of(graph, range(graph.npus), trees=chosen.trees), size_bytes)


# Minimum work of a row from which its pace is taken, in packet-hops or messages: about a tenth of a second, far more
# than the resolution of clocks, and far less than the minute from which a prediction is needed
MIN_MEASURED_WORK = 300_000.0
LONG_S = 60.0  # predicted wall times above this many seconds are printed, also without progress
_CALIBRATION_SHARE = 0.05  # maximum work of a calibration as a share of the row that it is for
# Number of times by which a calibration shrinks a size at most: halvings of the largest size that users can give
_MAX_HALVINGS = 63
_FACTORS = (32, 8, 2)  # factors from the smaller to the larger size of a calibration, the first that is possible


class MeasuredRow(NamedTuple):
    """Work and wall time of a row that has run; rows are ordered by work."""

    work: float  # packet-hops, or messages at message level
    simulation_s: float  # wall time of its simulation in seconds
    total_s: float  # wall time of the row in seconds, with set-up and closed form, without compilation


class Pace:
    """Pace of the rows so far of one algorithm, and the prediction of further ones."""

    def __init__(self) -> None:
        """Begin without any row."""
        self._rows: list[MeasuredRow] = []  # the two rows with the most work, the largest last

    def add(self, row: MeasuredRow) -> None:
        """Add a row that has run; rows of little work do not predict long ones."""
        if row.work >= MIN_MEASURED_WORK and all(row.work != other.work for other in self._rows):
            self._rows = sorted([*self._rows, row])[-2:]

    def seconds(self, work: float) -> float | None:
        """Return the predicted wall time of a row with this work; None if no row has shown the pace.

        The prediction is on the line through two rows, as long simulations have less overhead per packet than short
        ones, or proportional to one row.
        """
        if not self._rows:
            return None
        first, last = self._rows[0], self._rows[-1]
        per_work_s = last.simulation_s / last.work
        if last.work > first.work and last.simulation_s > first.simulation_s:
            # the slope between two rows leaves out what every row takes
            per_work_s = (last.simulation_s - first.simulation_s) / (last.work - first.work)
        return max(last.total_s + per_work_s * (work - last.work), 0.0)

    def needs_calibration(self, work: float) -> bool:
        """Return whether a row with this work should be preceded by a calibration."""
        return not self._rows and work * _CALIBRATION_SHARE >= MIN_MEASURED_WORK


def calibration_sizes(work_of_size: Callable[[int], float], size_bytes: int) -> list[int]:
    """Return sizes whose rows show the pace, size_bytes / 2^k: the smallest that does, and a larger one if possible.

    Together they take a small share of the work of `size_bytes`; the list is empty if even the smallest takes more.
    work_of_size: function from a size in bytes to the work of its row.
    """
    row_work, found = work_of_size(size_bytes), 0
    low, high = 0, _MAX_HALVINGS
    while low <= high:  # bisection: work does not grow when the size shrinks
        halvings = (low + high) // 2
        smaller = size_bytes >> halvings
        if smaller and work_of_size(smaller) >= MIN_MEASURED_WORK:
            found, low = smaller, halvings + 1
        else:
            high = halvings - 1
    larger = next(
        (found * factor for factor in _FACTORS if work_of_size(found * factor) <= share_of_calibration(row_work)), found
    )
    return sorted({found, larger}) if found and work_of_size(found) <= share_of_calibration(row_work) else []


def share_of_calibration(row_work: float) -> float:
    """Return the maximum work of a row's calibration."""
    return _CALIBRATION_SHARE * row_work


def measured_row(work: float, results: pdes.Results, total_s: float) -> MeasuredRow:
    """Return work and time of a finished row; total_s: wall time of the row in seconds."""
    # compilation happens once: further rows of the algorithm do not pay for it
    return MeasuredRow(work, results.wall_s, max(total_s - results.compile_s, results.wall_s))
