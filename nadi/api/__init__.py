"""The Python interface, `import nadi`: simulate, generate traces, rank parallel plans, explain and compare results."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from nadi.configuration.bounds import MAX_GPUS, MAX_WORKERS
from nadi.errors import ConfigError
from nadi.insight.runs import Run

if TYPE_CHECKING:
    import networkx as nx

    from nadi.et import TraceTable
    from nadi.pdes.fidelity.contract import Network
    from nadi.topologies import Graph
    from nadi.workload import Plans, TraceSet
    from nadi.workload.generators.models import Model
    from nadi.workload.generators.training import ParallelPlan


Framework = Literal["megatron", "deepspeed", "fsdp"]
_MAX_TOKENS = 10**18  # Maximum number of training tokens, as in `nadi plan --tokens`
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
    from nadi.api.running import run as finished
    from nadi.api.running import run_request
    from nadi.configuration.run_file import put_over

    settings_tree: Mapping[str, Any] = {} if run is None or isinstance(run, (str, Path)) else run
    settings_tree = put_over(settings_tree, sections)
    npus = None
    if topology is not None:
        settings_tree, npus = _with_topology(settings_tree, topology)
    if workload is not None:
        settings_tree = _with_workload(settings_tree, workload, groups, npus)
    elif groups is not None:
        raise ConfigError("groups: found without traces of each NPU in workload; expected both or neither")
    if schedules:
        settings_tree = _with_schedules(settings_tree, schedules)
    file = Path(run) if isinstance(run, (str, Path)) else None
    given = None if resume and not settings_tree else settings_tree
    out, resume = (None if path is None else Path(path) for path in (out, resume))
    request = run_request(file, (), given, out=out, resume=resume)
    is_temporary = request.folder is None
    folder = request.folder or Path(tempfile.mkdtemp(prefix="nadi-"))
    try:
        finished(request._replace(folder=folder), force=force, quiet=not progress)
    except BaseException:
        if is_temporary:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    result = Run(folder, config=request.config)
    if is_temporary:
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
    from nadi.workload.errors import WorkloadError
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

    from nadi.launching.progress import progress as shown
    from nadi.studies.planner.answer import document
    from nadi.studies.planner.planning import plan_request, rank_plans
    from nadi.studies.planner.reserve import MemoryReserve

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
        raise ranking.stopped
    return document(ranking)


def open_network(topology: "Mapping[str, Any] | Graph | nx.Graph[Any] | str", **network: Any) -> "Network":  # noqa: ANN401 - keys of any type
    """Return an idle network of any fidelity, to which the caller posts messages in place of NPUs with traces.

    Args:
        topology: Keys of that section, a specification as text, or a fabric, as for `simulate`.
        network: Keys of [network] of a run file, such as `fidelity="flow"`; without `fidelity`, packets.

    Returns:
        A network with the methods of `pdes.fidelity.contract.Network`: `post` sends a message at the time `now_ps`,
        `next_event_ps` is when something happens next, and `advance` returns what messages did up to a time. They raise
        ValueError for NPUs that do not exist, and pdes.RunError if the network fails.

    Raises:
        ConfigError: A key is unknown, its value wrong, or the fabric does not suit the model.
        TopologyError: The fabric is wrong.
    """
    from nadi.configuration.run_file import load_config
    from nadi.simulation.open_network import open_network as opened
    from nadi.simulation.resolving import settings_on
    from nadi.simulation.wiring.reading import built_fabric

    sections, _ = _with_topology({"workload": {"traces": "."}, "network": network}, topology)
    config = load_config(None, sections=sections)
    graph = built_fabric(config)
    return opened(graph, settings_on(graph, config))


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
    from nadi.insight.explanation.document import explain as explained

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
    from nadi.insight.comparison.document import document

    return document([(run if isinstance(run, Run) else Run(run)) for run in runs])


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
    from nadi.insight.analysis.network import document, read_run

    return document(read_run(run.folder if isinstance(run, Run) else Path(run)))


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
    from nadi.insight.analysis.slowdown import slowdown_by_size

    if not runs:
        raise ConfigError("slowdown: found no runs; expected at least one")
    return slowdown_by_size([run.folder if isinstance(run, Run) else Path(run) for run in runs], by, job)


def _check_within(name: str, value: float, minimum: int, maximum: int, *, whole: bool = False) -> None:
    """Raise ConfigError unless a value is a number, or a whole number, in the range of the command's option."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not minimum <= value <= maximum:
        kind = "whole number" if whole else "number"
        raise ConfigError(f"{name}: found {value!r}; expected a {kind} from {minimum:,} to {maximum:,}")


def _with_topology(sections: Mapping[str, Any], topology: Any) -> tuple[dict[str, Any], int | None]:  # noqa: ANN401
    """Return the sections of a run file with the fabric, and its number of NPUs if the fabric is a value."""
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


def _with_workload(
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
    from nadi.configuration.sections import TopologySection
    from nadi.topologies import build

    if "topology" not in sections:
        raise ConfigError("workload: one trace for all NPUs; expected the argument topology, not a run file")
    return build(TopologySection.model_validate(sections["topology"]).source()).npus


def _with_schedules(sections: Mapping[str, Any], schedules: "Mapping[str, Plans]") -> dict[str, Any]:
    """Return the sections of a run file with custom collective algorithms by kind."""
    from nadi.configuration.run_file import put_over
    from nadi.workload import Plans
    from nadi.workload.collectives.custom.python_plans import keep

    for kind, plans in schedules.items():
        if not isinstance(plans, Plans):
            raise ConfigError(f"schedules: {kind}: found a {type(plans).__name__}; expected Plans")
    kept = {kind: keep(plans, kind) for kind, plans in schedules.items()}
    return put_over(sections, {"system": {"collectives": kept}})
