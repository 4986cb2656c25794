"""The one way to the answers of `nadi collective` and `nadi sweep`, and of the Python functions of these names."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nadi.launching.world import together
from nadi.terminal import say

if TYPE_CHECKING:
    import pyarrow as pa

    from nadi.launching.progress import Progress
    from nadi.launching.workers import Workers
    from nadi.studies.collectives import CollectiveSweep
    from nadi.studies.sweeps import PointOutcome, SweepDefinition


class CollectiveRequest(NamedTuple):
    """Rows that a user asks for: one collective of all NPUs of an idle fabric, by size and algorithm."""

    kind: str  # kind of the collective, one of workload.KINDS or "all-to-all-v"
    topology: str  # specification of the fabric, or path of its file
    sizes: str = "1MiB"  # sizes of the whole buffer: a list, or a range such as "8:8GiB:x2"
    matrix: Path | None = None  # file with the bytes from each NPU to each of an all-to-all-v, in place of sizes
    skew: str = ""  # distribution of an all-to-all-v's bytes over the receivers, "zipf:EXPONENT"
    algorithms: Sequence[str] = ()  # names, each or several with commas, or "all"; none = the kind's default
    overrides: Sequence[str] = ()  # values of [network] and [system], or topology.params, as "network.mtu=1KiB"
    sections: Mapping[str, Any] = {}  # sections [network] and [system] of a run file, under the overrides
    seed: int = 1  # seed of hashed path choices
    out: Path | None = None  # folder of the Parquet table and the page; None = they are not written


def time_collective(
    request: CollectiveRequest,
    own: "Workers",
    shown: "Callable[[], AbstractContextManager[Progress]]",
    *,
    force: bool = False,
) -> "CollectiveSweep":
    """Simulate, or compute at closed forms, all rows of a request; all ranks call this and get the same rows.

    Args:
        request: The rows that are asked for.
        own: The workers, with this rank.
        shown: Called once; returns a context manager of the display of progress.
        force: Whether to try sizes that need more memory than is free.

    Raises:
        ConfigError, TopologyError, WorkloadError: The request is wrong; the message is one line.
        pdes.RunError: A simulation failed.
    """
    from nadi.configuration.run_file import collective_config
    from nadi.reports.staging import staged
    from nadi.simulation.assembly.resource_checks import checker
    from nadi.simulation.resolving import Resolver
    from nadi.studies import collectives
    from nadi.validation import collective_question, error_bars

    ranks = own.ranks
    with together(ranks):
        config = collective_config(request.topology, request.overrides, request.sections)
        idle = Resolver(config, force=force).idle_fabric(request.seed)
        graph, settings, simulates = idle.graph, idle.settings, idle.simulates
        case, source = collectives.demand(
            request.kind, request.matrix, request.skew, graph.npus, request.seed, idle.collectives
        )
        # a matrix has sizes of its own
        steps_bytes = [0] if request.matrix else collectives.sizes_of(request.kind, request.sizes)
        check = checker(graph, settings, ranks.size * own.workers, force=force) if simulates else lambda _: None
        chosen = collectives.choose_algorithms(graph, case, ",".join(request.algorithms), steps_bytes, check)
    if ranks.rank == 0:
        left_out = [f"skipped: {collectives.skipped_text(chosen.left_out)}"] if chosen.left_out else []
        for sentence in [*left_out, *idle.warnings]:
            say(f"nadi: {sentence}", err=True)
    with staged(request.out, collectives.FILES, ranks) if request.out else nullcontext() as staging:
        with shown() as display:
            rows = list(
                collectives.measure_rows(graph, case, chosen, steps_bytes, settings, display, own, simulates=simulates)
            )
        of_case = case.kind, graph.name, graph.npus, idle.keys, request.seed, rows, chosen.left_out
        bars = error_bars(collective_question(graph, algorithm) for algorithm in chosen.algorithms)
        sweep = collectives.CollectiveSweep(*of_case, bars, source, simulates, idle.overload)
        with together(ranks):
            if staging:
                collectives.write_sweep(staging, sweep)
    return sweep


class SweepRequest(NamedTuple):
    """Points of a sweep that a user asks for."""

    file: Path  # sweep file with keys and their values
    out: Path  # folder of all results; points that are finished there do not run again
    jobs: int = 1  # number of points that run at once on this machine
    shard: str = ""  # "I/N": only every N-th point, from point I; "" = all points
    merge: bool = False  # whether to make the table of what shards have finished, and run nothing
    figures: Path | None = None  # folder for the charts of the page; None = they are not written


class SweepAnswer(NamedTuple):
    """A sweep whose points have run."""

    definition: "SweepDefinition"  # points of the sweep file
    outcomes: "list[PointOutcome]"  # outcomes of the points that this call was asked for
    table: "pa.Table | None"  # a row per point (studies.sweeps.running.results_table); None of a shard

    def failed(self) -> "list[PointOutcome]":
        """Return the outcomes of points that failed."""
        return [outcome for outcome in self.outcomes if outcome.error]


def run_sweep(
    request: SweepRequest,
    shown: "Callable[[], AbstractContextManager[Progress]]",
    *,
    force: bool = False,
) -> SweepAnswer:
    """Run the points of a sweep that are not finished yet, and write the table and the page of all points.

    Args:
        request: The points that are asked for.
        shown: Called once if points run; returns a context manager of the display of progress.
        force: Whether to try runs that need more memory than is free, or more than a day.

    Raises:
        ConfigError: The request or its file is wrong; the message is one line. A point that fails is no error.
        OutputError: Results cannot be written.
    """
    from nadi.configuration.effects import without_effect_in_all
    from nadi.errors import ConfigError
    from nadi.launching.slurm import shard_of
    from nadi.studies.sweeps import earlier_outcomes, finish, outcome_text, read_sweep, run_points

    if request.merge and request.shard:
        raise ConfigError("--merge makes the table of all shards; expected it without --shard")
    first, step = shard_of(request.shard) if request.shard else (0, 1)
    found, out = read_sweep(request.file), request.out
    if unused := without_effect_in_all([point.config for point in found.points]):
        say(f"nadi: {unused}", err=True)
    if request.merge:
        outcomes = earlier_outcomes(found, out)
    else:
        own, done = range(first, len(found.points), step), count(1)
        with shown() as display:

            def report(outcome: "PointOutcome") -> None:
                display.say(outcome_text(found, outcome))
                display.count(next(done), len(own), "points")

            outcomes = run_points(found, out, own, request.jobs, report, force=force)
    made = None if request.shard else finish(found, out, outcomes, request.figures)
    return SweepAnswer(found, outcomes, made)
