"""The one way from a request to its answer, for commands and Python functions: of a run, a collective, or a sweep.

A run file is read, resolved and executed, and results are written. Fabrics, traces and algorithms that a Python program
passes as values become sections of a run file.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nadi.errors import ConfigError
from nadi.launching.ranks import ALONE, RankGather, together
from nadi.terminal import say

if TYPE_CHECKING:
    import pyarrow as pa

    from nadi.configuration.run_config import RunConfig
    from nadi.insight.run_analysis import ClosedFormKey, RunAnalysis
    from nadi.launching.checkpoints import CheckpointFolder
    from nadi.launching.progress import Progress
    from nadi.launching.workers import Workers
    from nadi.simulation.closed_forms import ClosedForm
    from nadi.simulation.run import FinishedRun
    from nadi.studies.collectives import CollectiveSweep
    from nadi.studies.expectation import Expectation
    from nadi.studies.sweeps import PointOutcome, SweepDefinition
    from nadi.workload import Plans


class RunRequest(NamedTuple):
    """A run that a user asks for."""

    config: "RunConfig"
    folder: Path | None = None  # folder of the results; None = results are not kept
    has_page: bool = False  # whether the folder gets report.html, too
    resumed_from: Path | None = None  # checkpoint from which the run continues
    arguments: Mapping[str, Any] = {}  # JSON from which a later run that continues this one finds the configuration


class Outcome(NamedTuple):
    """A finished run on the first rank, whose results are written."""

    simulation: "FinishedRun"
    findings: "RunAnalysis"
    peak_rss_bytes: list[int]  # peak memory of each rank in bytes
    page: Path | None  # page that was written


def run_request(
    file: Path | None,
    overrides: Sequence[str] = (),
    sections: Mapping[str, Any] | None = None,
    *,
    options: Sequence[str] = (),
    out: Path | None = None,
    report: bool = False,
    resume: Path | None = None,
) -> RunRequest:
    """Return the request of a run; without a file and sections, one that continues has those of its checkpoint.

    file, overrides, sections: as for `load_config`; options: further overrides, which alone are no run without a model;
    out: folder of the results, None = that of the file, or `resume`; report: whether to write report.html, too;
    resume: folder of the results of the run to continue, None = a new run.
    """
    from nadi.configuration.run_file import load_config
    from nadi.launching.checkpoints import newest, read_run

    resumed_from = None if resume is None else newest(resume)
    names_work = file is not None or sections is not None or any(text.startswith("workload.model=") for text in options)
    if resumed_from is not None and not names_work:
        given = read_run(resumed_from).values["arguments"]
        file = Path(given["file"]) if given.get("file") else None  # other commands give none
        overrides = [*given.get("overrides", ()), *overrides]
    if not names_work and file is None and not overrides:
        raise ConfigError(
            "found neither a run file nor --model; expected RUN.toml, or --model NAME --plan PLAN --cluster NAME"
        )
    overrides = [*overrides, *options]
    config = load_config(file, overrides, sections)
    named = config.outputs()
    arguments = {"file": file and str(file.absolute()), "overrides": overrides}
    return RunRequest(config, out or resume or named.folder, report or named.has_page, resumed_from, arguments)


def run(request: RunRequest, ranks: RankGather = ALONE, *, force: bool = False, quiet: bool = False) -> Outcome | None:
    """Run a request to its end and write its results; all ranks call this, and only the first gets an outcome.

    force: whether to try runs that need more memory than is free, or more than a day; quiet: show no progress.
    """
    from nadi.insight.run_analysis import analyse_rank, merge_ranks
    from nadi.insight.runs import Run
    from nadi.launching.progress import progress, run_status
    from nadi.reports.pages import check_page, write_page
    from nadi.reports.run_folder import REPORT, RUN_FILES, SUMMARY_KEY, write_results
    from nadi.reports.staging import staged

    folder, is_first = request.folder, ranks.rank == 0
    page = folder / REPORT if request.has_page and folder else None
    with together(ranks):
        # before the work, so that a page that cannot be written costs nothing
        if page:
            check_page(page)
    with (
        staged(folder, RUN_FILES, ranks, key=SUMMARY_KEY) if folder else nullcontext() as staging,
        run_status(staging, ranks.size) as status,
    ):
        with progress(quiet=quiet or not is_first) as shown:
            shown.status = status
            simulation, checkpoints, known = _executed(request, ranks, shown, force=force)
        status.enter("writing results")
        with together(ranks):
            parts = ranks.gather(analyse_rank(simulation, ranks.exchange, known))
            findings = merge_ranks(simulation, parts) if parts is not None else None
            if folder:
                write_results(simulation, findings, staging, ranks)
            peaks = ranks.gather(simulation.peak_rss_bytes())
    if checkpoints is not None and is_first:
        checkpoints.remove()
    if findings is None or peaks is None:
        return None
    if page and folder:
        from nadi.reports.pages.report import report

        write_page(page, report(Run(folder)))
    return Outcome(simulation, findings, peaks, page)


def _executed(
    request: RunRequest, ranks: RankGather, shown: "Progress", *, force: bool
) -> "tuple[FinishedRun, CheckpointFolder | None, dict[ClosedFormKey, ClosedForm]]":
    """Resolve and execute a request; return the run, its checkpoints, and closed forms that partial results know."""
    from nadi.reports.run_folder import PartialResults
    from nadi.simulation.resolving import Resolver
    from nadi.simulation.run import execute

    config, resumes = request.config, request.resumed_from is not None
    resolver = Resolver(config, ranks, force=force)
    plan = resolver.plan(shown, has_folder=request.folder is not None, resumes=resumes)
    for warning in plan.model_warnings if ranks.rank == 0 else ():
        shown.warn(warning)
    if not plan.identity or request.folder is None:
        return execute(plan, shown), None, {}
    from nadi.launching.checkpoints import CheckpointFolder

    with together(ranks):
        kept = request.folder, plan.checkpoint_s, request.resumed_from, request.arguments, shown.say
        checkpoints = CheckpointFolder(*kept)
        checkpoints.identify(plan.identity)
        if ranks.rank == 0:
            checkpoints.clear()
            checkpoints.check_parts()
    partial = PartialResults(checkpoints, shown.say)
    return execute(plan, shown, checkpoints, partial.write), checkpoints, partial.closed_forms


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
        # a wrong file is refused before minutes are spent on a large fabric
        case, source = collectives.demand(request.kind, request.matrix, request.skew, request.seed)
        idle = Resolver(config, force=force).idle_fabric(request.seed)
        graph, settings, simulates = idle.graph, idle.settings, idle.simulates
        case = case._replace(settings=idle.collectives)
        if request.matrix and case.matrix:
            case.matrix(0, graph.npus)  # refuses a file for another number of members
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


def expected(
    cluster: str,
    hosts: int = 0,
    kinds: Sequence[str] = (),
    sizes: str = "",
    command: str = "",
    overrides: Sequence[str] = (),
    *,
    all_rows: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> "Expectation":
    """Return what nccl-tests should show on a cluster.

    Args:
        cluster: Name or file of a cluster, machine or topology, with parameters.
        hosts: Number of hosts of the largest group; 0 = all.
        kinds: Kinds of collectives, each or several with commas; none = all that nccl-tests has as collectives.
        sizes: Sizes of the whole buffer; "" = a few.
        command: Command line of nccl-tests in place of kinds and sizes; "" = none.
        overrides: Values of [network] and [system], or topology.params, as "network.mtu=1KiB".
        all_rows: Whether to return every power of two of sizes and hosts.
        tell: Function that takes what is being computed.

    Raises:
        ConfigError, TopologyError, WorkloadError: The request is wrong; the message is one line.
    """
    from nadi.insight.nccl_tests_command import parse_command
    from nadi.studies.collectives import sizes_of
    from nadi.studies.expectation import KINDS, ClusterQuestion, expect

    if command and (kinds or sizes or all_rows):
        other = "kind" if kinds else "sizes" if sizes else "all"
        raise ConfigError(f"--{other}: found with --command, which has sizes and a collective; expected one of both")
    names = [name.strip() for each in kinds for name in each.split(",")]
    parsed = sizes_of(KINDS[0], sizes) if sizes else ()
    line = parse_command(command) if command else None
    return expect(ClusterQuestion(cluster, hosts, names or KINDS, parsed, all_rows, line, overrides), tell)


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
    table: "pa.Table | None"  # a row per point (studies.sweeps.results_table); None of a shard

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


def with_topology(sections: Mapping[str, Any], topology: Any) -> tuple[dict[str, Any], int | None]:  # noqa: ANN401
    """Return the sections of a run file with the fabric, and its number of NPUs if the fabric is a value.

    Args:
        sections: Sections of a run file with their keys.
        topology: The fabric: a Graph, a networkx graph, a specification, or a mapping of keys.
    """
    from nadi.configuration.run_file import put_over
    from nadi.topologies import Graph, from_networkx

    if isinstance(topology, Mapping):
        return put_over(sections, {"topology": topology}), None
    if isinstance(topology, str):
        return {**sections, "topology": {"spec": topology}}, None
    if hasattr(topology, "is_directed"):
        topology = from_networkx(topology)
    if not isinstance(topology, Graph):
        found = type(topology).__name__
        raise ConfigError(f"topology: found a {found}; expected a Graph, a spec, or a mapping of keys")
    return {**sections, "topology": {"graph": topology}}, topology.npus


def with_workload(
    sections: Mapping[str, Any],
    workload: Any,  # noqa: ANN401 - any of what `simulate` takes
    groups: Mapping[str, Sequence[int]] | None,
    npus: int | None,
) -> dict[str, Any]:
    """Return the sections with the traces; npus: number of NPUs of the fabric, None = build it if needed.

    `workload` and `groups` are those of `simulate`.
    """
    from nadi.configuration.run_file import put_over
    from nadi.et import TraceTable
    from nadi.workload import TraceSet

    if isinstance(workload, (Mapping, TraceSet)) and groups is not None:
        raise ConfigError("groups: found beside a mapping or a TraceSet; expected a TraceTable for each NPU")
    if isinstance(workload, Mapping):
        return put_over(sections, {"workload": workload})
    if isinstance(workload, TraceTable):
        workload = [workload] * _npus(sections, npus)
    traces = workload if isinstance(workload, TraceSet) else TraceSet.of(workload, groups)
    return {**sections, "workload": {"trace_set": traces}}


def _npus(sections: Mapping[str, Any], npus: int | None) -> int:
    """Return the number of NPUs of the fabric, which is built if the number is unknown."""
    if npus is not None:
        return npus
    from nadi.configuration.machine import TopologySection
    from nadi.topologies import build

    if "topology" not in sections:
        raise ConfigError("workload: one trace for all NPUs; expected the argument topology, not a run file")
    return build(TopologySection.model_validate(sections["topology"]).source()).npus


def with_schedules(sections: Mapping[str, Any], schedules: "Mapping[str, Plans]") -> dict[str, Any]:
    """Return the sections of a run file with custom collective algorithms by kind.

    Args:
        sections: Sections of a run file with their keys.
        schedules: Plans of the algorithms by kind of collective.
    """
    from nadi.configuration.run_file import put_over
    from nadi.workload import Plans
    from nadi.workload.collectives.custom import keep

    for kind, plans in schedules.items():
        if not isinstance(plans, Plans):
            raise ConfigError(f"schedules: {kind}: found a {type(plans).__name__}; expected Plans")
    kept = {kind: keep(plans, kind) for kind, plans in schedules.items()}
    return put_over(sections, {"system": {"collectives": kept}})
