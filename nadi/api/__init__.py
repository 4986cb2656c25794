"""The Python interface, `import nadi`: simulations, traces, plans, studies of many runs, explanations."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from nadi.api import running
from nadi.configuration import MAX_GPUS, MAX_SEED, MAX_WORKERS
from nadi.errors import ConfigError
from nadi.insight.runs import Run
from nadi.launching.progress import progress as shown

if TYPE_CHECKING:
    import networkx as nx

    from nadi.et import TraceTable
    from nadi.pdes.fidelity import Network
    from nadi.topologies import Graph
    from nadi.workload import Plans, TraceSet
    from nadi.workload.generators.models import Model
    from nadi.workload.generators.training import ParallelPlan


Framework = Literal["megatron", "deepspeed", "fsdp"]
_MAX_TOKENS = 10**18  # Maximum number of training tokens, as in `nadi plan --tokens`
_MAX_JOBS = 1024  # Maximum number of points of a sweep at once, as in `nadi sweep --jobs`
_MAX_SPEED_UP = 100  # Maximum speed-up factor of a what-if, as in `nadi explain --faster`


def simulate(
    run: str | Path | Mapping[str, Any] | None = None,
    *,
    topology: "Mapping[str, Any] | Graph | nx.Graph[Any] | str | None" = None,
    workload: "Mapping[str, Any] | TraceSet | TraceTable | Sequence[TraceTable | None] | None" = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    schedules: "Mapping[str, Plans] | None" = None,
    out: str | Path | None = None,
    force: bool = False,
    progress: bool = False,
    resume: str | Path | None = None,
    **sections: Mapping[str, Any],
) -> Run:
    """Run a simulation and return its results.

    Args:
        run: Path of a run file, or its sections as mappings: `{"workload": {...}, "topology": {...}}`; None = the other
            arguments are the whole configuration. They override the run file.
        topology: Keys of that section; or a fabric: a specification as text, a Graph, or a networkx graph for
            `topologies.from_networkx`.
        workload: Keys of that section; or traces: a TraceSet, a TraceTable per NPU (None = the NPU is idle), or one
            TraceTable that all NPUs run.
        groups: Members, in order, of the groups that the traces name; only with one or several TraceTables.
        schedules: Custom collective algorithms by kind ("all-reduce" and so on).
        out: Results folder; None = a temporary folder that is deleted with the Run.
        force: Whether to try runs that need more memory than is free, or more than a day.
        progress: Whether to show progress on standard error: one updated line in a terminal and in a notebook, else a
            line every few seconds.
        resume: Results folder of a run with [engine] checkpoint, which continues from its newest checkpoint. Without
            run and sections, its run file and `--set` values are used again.
        sections: Other sections of a run file, such as `network={"mtu": "1KiB"}`.

    Returns:
        The results. `Run.config`, `Run.graph` and `Run.work` of this Run hold fabric and traces that were passed as
        values; a Run of the same folder in another process only has their names, and raises an error where it needs the
        values.

    Raises:
        ConfigError, TraceError, WorkloadError, TopologyError: The input is wrong; the message is one line.
        pdes.RunError: The run failed.
    """
    from nadi.configuration.run_file import put_over

    settings_tree: Mapping[str, Any] = {} if run is None or isinstance(run, (str, Path)) else run
    settings_tree = put_over(settings_tree, sections)
    npus = None
    if topology is not None:
        settings_tree, npus = running.with_topology(settings_tree, topology)
    if workload is not None:
        settings_tree = running.with_workload(settings_tree, workload, groups, npus)
    elif groups is not None:
        raise ConfigError("groups: found without traces of each NPU in workload; expected both or neither")
    if schedules:
        settings_tree = running.with_schedules(settings_tree, schedules)
    file = Path(run) if isinstance(run, (str, Path)) else None
    given = None if resume and not settings_tree else settings_tree
    out, resume = (None if path is None else Path(path) for path in (out, resume))
    request = running.run_request(file, (), given, out=out, resume=resume)
    is_temporary = request.folder is None
    folder = request.folder or Path(tempfile.mkdtemp(prefix="nadi-"))
    try:
        running.run(request._replace(folder=folder), force=force, quiet=not progress)
    except BaseException:
        if is_temporary:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    result = Run(folder, config=request.config)
    if is_temporary:
        # the folder lives as long as the result, which reads tables from it
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result


def generate(
    model: "str | Path | Model", plan: "str | Mapping[str, Any] | ParallelPlan", framework: Framework = "megatron"
) -> "TraceSet":
    """Return the traces of a training step, as `model` and `plan` in [workload] of a run file define it.

    Args:
        model: Name of a model (`nadi workload models` lists them), path of a TOML file, or a Model.
        plan: Parallel plan such as "tp8,pp4,dp32", or the same as a mapping (docs/explanation/parallel.md).
        framework: "megatron", "deepspeed" or "fsdp".

    Returns:
        One trace per kind of NPU; the plan orders NPUs by tp, cp, dp, pp, the first varying fastest.

    Raises:
        WorkloadError: The model or the plan is unknown, or the framework does not support it.
    """
    from nadi.workload import WorkloadError
    from nadi.workload.generators.models import Model, find
    from nadi.workload.generators.training import ParallelPlan, parallel_plan, rules
    from nadi.workload.generators.training.generator import generate as made

    if framework not in get_args(Framework):
        raise WorkloadError(f"framework {framework!r}: expected megatron, deepspeed or fsdp")
    known_model = model if isinstance(model, Model) else find(str(model))
    keys = plan if isinstance(plan, (str, ParallelPlan)) else dict(plan)
    parsed_plan = keys if isinstance(keys, ParallelPlan) else parallel_plan(keys)
    rules.check(known_model, parsed_plan, framework)
    return made(known_model, rules.settle(known_model, parsed_plan, framework), framework)


def plan(
    model: str | Path,
    cluster: str | Path,
    gpus: int,
    constraints: str = "",
    *,
    framework: Framework = "megatron",
    gpu: str = "",
    reserve: str | None = None,
    top: int = 10,
    confirm: int = 3,
    tokens: float = 0.0,
    energy_table: str | Path | None = None,
    workers: int = 1,
    progress: bool = False,
) -> dict[str, Any]:
    """Rank the parallel plans that train a model on a cluster by step time, as `nadi plan` does.

    Args:
        model: Name of a model (`nadi workload models` lists them), or path of its TOML file or config.json.
        cluster: Name of a cluster; `nadi topology clusters` lists them.
        gpus: Number of GPUs of each plan.
        constraints: Values that all plans share, as in `--plan`: "gb1536,seq4096".
        framework: "megatron", "deepspeed" or "fsdp".
        gpu: Name of the GPU in place of the cluster's; "" = the cluster's.
        reserve: Memory of each GPU that plans must leave free, as "4GiB" or "5%"; None = the default of `nadi plan`.
        top: Number of best plans to find; plans that cannot be among them are skipped.
        confirm: Number of the best plans whose communication is also simulated at packet level.
        tokens: Number of tokens of a whole training, for its days, energy and cost; 0 = do not report a training.
        energy_table: Path of a TOML file with powers and prices that override the defaults.
        workers: Number of processes.
        progress: Whether to show the number of finished plans on standard error.

    Returns:
        The document of plan.json (docs/explanation/planner.md): `rows` has a mapping per plan, the fastest first, with
        `plan`, `step_s`, `mfu`, `memory_bytes`, `shares` and more.

    Raises:
        ConfigError: An argument is wrong, or no plan fits in memory.
        WorkloadError, TopologyError: The model, the cluster, the GPU or the constraints are wrong.
    """
    from dataclasses import replace

    from nadi.studies.planner import MemoryReserve, answer_document, plan_request, rank_plans

    _check_within("gpus", gpus, 1, MAX_GPUS, whole=True)
    _check_within("top", top, 1, MAX_GPUS, whole=True)
    _check_within("confirm", confirm, 0, MAX_GPUS, whole=True)
    _check_within("tokens", tokens, 0, _MAX_TOKENS)
    _check_within("workers", workers, 1, MAX_WORKERS, whole=True)
    request = replace(
        plan_request(str(model), str(cluster), gpus, constraints, framework, gpu),
        top=top,
        confirm=confirm,
        workers=workers,
        energy_table=None if energy_table is None else Path(energy_table),
        tokens=tokens,
    )
    if reserve is not None:
        request = replace(request, reserve=MemoryReserve.parse(reserve))
    with shown(quiet=not progress) as display:
        ranking = rank_plans(request, display)
    if ranking.stopped is not None:
        raise ranking.stopped  # a signal: no half of an answer
    return answer_document(ranking)


def calibrate(
    cluster: str | Path,
    logs: Sequence[str | Path] = (),
    out: str | Path | None = None,
    *,
    traces: Sequence[str | Path] = (),
    progress: bool = False,
) -> dict[str, Any]:
    """Fit the constants of a site to measured collectives and training steps, as `nadi calibrate` does.

    Args:
        cluster: Name or file of the cluster, or a machine, optionally with parameters.
        logs: Files with the output of nccl-tests on it.
        traces: Tables of training steps that were measured on it, in CSV.
        out: Cluster file to write; None = it is not written.
        progress: Whether to show progress on standard error.

    Returns:
        The document of `nadi calibrate --json` (docs/how-to/calibrate.md): `collectives` and `steps`, each with
        `constants` with values and uncertainties, `errors` of the fitted and of the held-out rows before and after, and
        `rows`.

    Raises:
        ConfigError, TopologyError, WorkloadError: An argument is wrong; the message is one line.
        studies.calibration.CalibrationRefusedError: `out` is given, and the rows do not bear a fit.
    """
    from nadi.studies import calibration

    with shown(quiet=not progress) as display:
        tables = [Path(table) for table in traces]
        found = calibration.calibrate_site(str(cluster), [Path(log) for log in logs], tables, display)
    if out is not None:
        calibration.write_cluster(found, Path(out))
    return calibration.calibration_document(found)


def diagnose(cluster: str | Path, logs: Sequence[str | Path], *, gpus: int = 0) -> dict[str, Any]:
    """Compare logs of nccl-tests with a healthy cluster and find causes of slow collectives, as `nadi diagnose` does.

    Args:
        cluster: Name or file of the cluster, or a machine, optionally with parameters.
        logs: Files with the output of nccl-tests, rccl-tests or mscclpp-test on it.
        gpus: Number of GPUs of logs that do not show it; 0 = they all do.

    Returns:
        The document of `nadi diagnose --json` (docs/how-to/diagnose.md): `verdict`, the name of the most probable
        hypothesis, `hypotheses` with probabilities, `unseen` causes, the `measurement` that separates the first two,
        and `rows` with measured, expected and longest healthy times.

    Raises:
        ConfigError, TopologyError, WorkloadError: An argument or a log is wrong; the message is one line.
    """
    from nadi.studies import diagnosis

    _check_within("gpus", gpus, 0, MAX_GPUS, whole=True)
    return diagnosis.diagnose(str(cluster), diagnosis.read([Path(log) for log in logs], gpus)).document()


def collective(
    kind: str,
    topology: str | Path,
    sizes: str = "1MiB",
    algorithms: str | Sequence[str] = (),
    *,
    fidelity: str = "",
    network: Mapping[str, Any] | None = None,
    system: Mapping[str, Any] | None = None,
    matrix: str | Path | None = None,
    skew: str = "",
    seed: int = 1,
    workers: int = 1,
    out: str | Path | None = None,
    force: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Time a collective of all NPUs of an idle fabric by size and algorithm, as `nadi collective` does.

    Args:
        kind: Kind of the collective: "all-reduce", "all-gather", "all-to-all-v" and so on.
        topology: Specification of the fabric, such as "dgx-h100:npus=8", or path of a file with one.
        sizes: Sizes of the whole buffer: "8:8GiB:x2", "1MiB:8MiB:+1MiB", or "1KiB,1MiB".
        algorithms: Names of algorithms, or "all"; none = the default of the kind.
        fidelity: Name of the network model; "" = packets. With "closed-form" nothing is simulated.
        network: Keys of [network] of a run file.
        system: Keys of [system] of a run file.
        matrix: File with the bytes from each NPU to each of an "all-to-all-v", in place of sizes.
        skew: Distribution of the bytes of an "all-to-all-v" over the receivers, such as "zipf:1.2".
        seed: Seed of all hashed choices.
        workers: Number of threads.
        out: Folder for a Parquet table and a page; None = they are not written.
        force: Whether to try sizes that need more memory than is free.
        progress: Whether to show progress on standard error.

    Returns:
        The document of `nadi collective --json` (docs/explanation/collectives.md): `rows` has a mapping per algorithm
        and size with `time_ps`, `closed_form_ps` and bandwidths, `winners` the fastest algorithm by size, `left_out`
        the algorithms that cannot perform the collective.

    Raises:
        ConfigError, TopologyError, WorkloadError: An argument is wrong; the message is one line.
        pdes.RunError: A simulation failed.
    """
    from nadi.launching.workers import Workers

    _check_within("seed", seed, 0, MAX_SEED, whole=True)
    _check_within("workers", workers, 1, MAX_WORKERS, whole=True)
    by_fidelity = {"fidelity": fidelity} if fidelity else {}
    sections = {"network": {**(network or {}), **by_fidelity}, "system": system or {}}
    request = running.CollectiveRequest(
        kind,
        str(topology),
        sizes,
        None if matrix is None else Path(matrix),
        skew,
        [algorithms] if isinstance(algorithms, str) else algorithms,
        sections=sections,
        seed=seed,
        out=None if out is None else Path(out),
    )
    own = Workers(workers=workers)
    return running.time_collective(request, own, lambda: shown(quiet=not progress), force=force).document()


def expect(
    cluster: str | Path,
    hosts: int = 0,
    kinds: str | Sequence[str] = (),
    sizes: str = "",
    *,
    command: str = "",
    every_size: bool = False,
    overrides: Sequence[str] = (),
    progress: bool = False,
) -> dict[str, Any]:
    """Return what nccl-tests should show on a healthy, idle cluster, as `nadi expect` does.

    Args:
        cluster: Name of a cluster, machine or topology with parameters, such as "dgx-h100-superpod:gpus=256", or file.
        hosts: Number of hosts of the largest group; 0 = all of the cluster, or one of a machine.
        kinds: Kinds of collectives: "all-reduce" and so on, "send-receive", "gather" and "scatter"; none = seven.
        sizes: Sizes of the whole buffer: "8:8GiB:x2", or "1KiB,1MiB"; "" = seven sizes from 1 KiB to 8 GiB.
        command: Command line of nccl-tests, in place of kinds and sizes, such as "all_reduce_perf -b 8M -e 16G -f 2".
        every_size: Whether to return every power of two of sizes up to 16 GiB, and of hosts.
        overrides: Values of [network] and [system], or topology.params, as "network.mtu=1KiB".
        progress: Whether to show progress on standard error.

    Returns:
        The document of `nadi expect --json` (docs/how-to/expect.md): `rows` has a mapping per collective, number of
        hosts and size, with time, bandwidths, band and threshold; `notes` says what is not modelled.

    Raises:
        ConfigError, TopologyError, WorkloadError: An argument is wrong; the message is one line.
    """
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    _check_within("hosts", hosts, 0, MAX_GPUS, whole=True)
    with shown(quiet=not progress) as display:
        found = running.expected(
            str(cluster), hosts, names, sizes, command, overrides, all_rows=every_size, tell=display.begin
        )
    return found.document()


def sweep(
    file: str | Path,
    out: str | Path,
    *,
    jobs: int = 1,
    shard: str = "",
    merge: bool = False,
    force: bool = False,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Simulate a grid, a list or a Latin hypercube of settings, as `nadi sweep` does; resume an earlier sweep.

    Args:
        file: Path of the sweep file (docs/how-to/sweep.md).
        out: Folder for all results. Points that are finished there do not run again.
        jobs: Number of points that run at once, each in a process of its own.
        shard: "I/N" to run only every N-th point, starting at point I; "" = all points.
        merge: Whether to make only the table of what shards have finished.
        force: Whether to try runs that need more memory than is free, or more than a day.
        progress: Whether to show the number of finished points on standard error.

    Returns:
        A mapping per point, in the order of the file: its values by key, `run`, the folder of its results below
        `out`, `error`, None unless the point failed, and its figures. Of a shard, an empty list.

    Raises:
        ConfigError: An argument or the sweep file is wrong. A point that fails is a row with an `error`.
        OutputError: Results cannot be written.
    """
    _check_within("jobs", jobs, 1, _MAX_JOBS, whole=True)
    request = running.SweepRequest(Path(file), Path(out), jobs, shard, merge)
    table = running.run_sweep(request, lambda: shown(quiet=not progress), force=force).table
    return [] if table is None else table.to_pylist()


def open_network(topology: "Mapping[str, Any] | Graph | nx.Graph[Any] | str", **network: Any) -> "Network":  # noqa: ANN401 - keys of any type
    """Return an idle network of any fidelity, to which the caller posts messages in place of NPUs with traces.

    Args:
        topology: Keys of that section, a specification as text, or a fabric, as for `simulate`.
        network: Keys of [network] of a run file, such as `fidelity="flow"`; without `fidelity`, packets.

    Returns:
        A network with the methods of `pdes.fidelity.Network`: `post` sends a message at the time `now_ps`,
        `next_event_ps` is when something happens next, and `advance` returns what messages did up to a time. They raise
        ValueError for NPUs that do not exist, and pdes.RunError if the network fails.

    Raises:
        ConfigError: A key is unknown, its value wrong, or the fabric does not suit the model.
        TopologyError: The fabric is wrong.
    """
    from nadi.configuration.run_file import load_config
    from nadi.simulation.assembly.reading import WorkReader
    from nadi.simulation.open_network import open_network as opened

    sections, _ = running.with_topology({"workload": {"traces": "."}, "network": network}, topology)
    reader = WorkReader.of(load_config(None, sections=sections), force=True)
    return opened(reader.graph, reader.fitted_settings())


def explain(run: Run | str | Path, faster: float = 1.1) -> dict[str, Any]:
    """Explain the time of a run, as `nadi explain` does.

    Args:
        run: A Run, or the folder of its results.
        faster: Factor from 1 to 100 by which each `what_if` speeds up GPUs, links or collectives.

    Returns:
        The document of `nadi explain --json` (docs/explanation/explain.md); times are in picoseconds. `by_what` and
        `by_bound` divide the critical path, `longest` has its longest pieces, `what_if` the time of the run after each
        change.

    Raises:
        ConfigError: The run cannot be explained, or `faster` is out of its range.
        TraceError, WorkloadError, TopologyError: Its traces or its fabric no longer exist, or have changed.
    """
    from nadi.insight.explanation import explain as explained

    _check_within("faster", faster, 1, _MAX_SPEED_UP)
    return explained(run if isinstance(run, Run) else Run(run), faster)


def compare(*runs: Run | str | Path) -> dict[str, Any]:
    """Compare runs with the first one, as `nadi compare` does.

    Args:
        runs: Two to twenty Runs, or folders of their results.

    Returns:
        The document of `nadi compare --json` (docs/reference/reports.md): settings, figures, times, collectives, tiers
        and links. Its lists have one value per run, in the order of `runs`; None = the run has no such value.

    Raises:
        ConfigError: There are too few or too many runs, or a folder cannot be read.
    """
    from nadi.insight.comparison import compare

    return compare([(run if isinstance(run, Run) else Run(run)) for run in runs])


def net(run: Run | str | Path) -> dict[str, Any]:
    """Report the network's behaviour in a run, as `nadi net` does.

    Args:
        run: A Run, or the folder of its results.

    Returns:
        The document of `nadi net --json`: `links` that were busiest, marked, paused or dropping, `messages` with their
        completion times, `trees` along which pauses spread, and the `victims` of pauses.

    Raises:
        ConfigError: The folder has no results, or they cannot be read.
    """
    from nadi.insight.network import network_document, read_net_run

    return network_document(read_net_run(run.folder if isinstance(run, Run) else Path(run)))


def slowdown(*runs: Run | str | Path, by: str = "", job: str = "") -> list[dict[str, Any]]:
    """Return the slow-down of messages by size over several runs, as `nadi net slowdown` does.

    Args:
        runs: Runs, or folders of their results. Those of one group should differ only in seeds.
        by: Section and key of the run file whose values distinguish groups, "network.congestion_control"; "" = one
            group.
        job: Name of the job of [[jobs]] whose messages count; "" = all.

    Returns:
        The document of `nadi net slowdown --json` (docs/how-to/flows.md), a row per group and size: `from_bytes`, None
        for all sizes, number of `runs` and `messages`, `slowdown`, the mean of each percentile, and `interval`, both
        ends of its 95 % confidence interval.

    Raises:
        ConfigError: There are no runs, a folder has no messages, or `by` or `job` is unknown.
    """
    from nadi.insight.metrics import slowdown_by_size

    if not runs:
        raise ConfigError("slowdown: found no runs; expected at least one")
    return slowdown_by_size([run.folder if isinstance(run, Run) else Path(run) for run in runs], by, job)


def _check_within(name: str, value: float, minimum: int, maximum: int, *, whole: bool = False) -> None:
    """Raise ConfigError unless a value is a number, or a whole number, in the range of the command's option."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not minimum <= value <= maximum:
        kind = "whole number" if whole else "number"
        raise ConfigError(f"{name}: found {value!r}; expected a {kind} from {minimum:,} to {maximum:,}")
