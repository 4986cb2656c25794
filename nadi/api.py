"""What `import nadi` offers: simulate, generate traces, rank parallel plans, and explain or compare the results."""

import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from nadi.configuration.bounds import MAX_GPUS, MAX_WORKERS
from nadi.errors import ConfigError
from nadi.insight.runs import Run
from nadi.launching.gather import ALONE

if TYPE_CHECKING:
    import networkx as nx

    from et import TraceTable
    from topologies import Graph
    from workload import Plans, TraceSet
    from workload.generators.models import Model
    from workload.generators.training import ParallelPlan


Framework = Literal["megatron", "deepspeed", "fsdp"]
_MOST_TOKENS = 10**18
"""Largest number of training tokens, as `nadi plan --tokens` takes it."""
_MOST_TIMES_FASTER = 100
"""Largest speed-up of a what-if, as `nadi explain --faster` takes it."""


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
    **sections: Mapping[str, Any],
) -> Run:
    """Simulate, and give what came out.

    Args:
        run: a run file, or its sections as mappings: `{"workload": {...}, "topology": {...}}`; None = all is said by
            what follows, which takes the place of what a run file says.
        topology: keys of that section; or a fabric: a spec as text, a Graph, or a networkx graph as
            `topologies.from_networkx` takes it.
        workload: keys of that section; or traces: a TraceSet, a TraceTable of each NPU (None = it has nothing to do),
            or one that all NPUs run.
        groups: beside traces of each NPU or of all: NPUs, in member order, of the groups that the traces name.
        schedules: algorithms of collectives by kind, "all-reduce" and so on.
        out: folder for the results; None = a folder that goes when the Run does.
        force: try what would take more memory than is free, or more than a day.
        progress: show how far it is: a line that is written anew in a terminal and in a notebook, else a line every
            few seconds, on standard error.
        sections: other sections of a run file: `network={"mtu": "1KiB"}`; keys are those of docs/reference/run-file.md.

    Returns:
        The results. Fabric and traces that were values are in `Run.config`, `Run.graph` and `Run.work` of this Run; a
        Run of the same folder in another process has their names only, and says so where it would need them.

    Raises:
        ConfigError, TraceError, WorkloadError, TopologyError: what is asked for is wrong; one line says what.
        pdes.RunError: the run failed.
    """
    from nadi.configuration.run_file import load_config, put_over
    from nadi.insight.analysis.findings import find
    from nadi.launching.progress import progress as shown
    from nadi.reports.pages.page import check_page, write_page
    from nadi.reports.pages.report import report
    from nadi.reports.result_files.run_folder import REPORT, RUN_FILES, SUMMARY_KEY, write_results
    from nadi.reports.result_files.staging import staged
    from nadi.simulation.run import simulate as finished

    tree: Mapping[str, Any] = {} if run is None or isinstance(run, (str, Path)) else run
    tree = put_over(tree, sections)
    npus = None
    if topology is not None:
        tree, npus = _with_topology(tree, topology)
    if workload is not None:
        tree = _with_workload(tree, workload, groups, npus)
    elif groups is not None:
        raise ConfigError("groups: found without traces of each NPU in workload; expected both or neither")
    if schedules:
        tree = _with_schedules(tree, schedules)
    config = load_config(Path(run) if isinstance(run, (str, Path)) else None, sections=tree)
    folder = Path(out) if out is not None else config.output.dir
    kept = folder or Path(tempfile.mkdtemp(prefix="nadi-"))
    try:
        if config.output.report:
            check_page(kept / REPORT)
        with staged(kept, RUN_FILES, ALONE, key=SUMMARY_KEY) as staging:
            with shown(quiet=not progress) as telling:
                simulation = finished(config, telling, force=force)
            write_results(simulation, find(simulation), staging)
    except BaseException:
        if folder is None:
            _remove(kept)
        raise
    opened = Run(kept, config=config)
    if config.output.report:
        write_page(kept / REPORT, report(opened))
    if folder is None:
        weakref.finalize(opened, _remove, kept)
    return opened


def generate(
    model: "str | Path | Model", plan: "str | Mapping[str, Any] | ParallelPlan", framework: Framework = "megatron"
) -> "TraceSet":
    """Traces of a training step, as `[workload] model` and `plan` of a run file have them made.

    Args:
        model: a name (`nadi workload models` lists them), the path of a TOML file, or a Model.
        plan: "tp8,pp4,dp32", or the same as a mapping (docs/explanation/parallel.md).
        framework: "megatron", "deepspeed" or "fsdp".

    Returns:
        A trace for each kind of NPU; NPUs of the plan in the order tp, cp, dp, pp, the first fastest.

    Raises:
        WorkloadError: the model or plan is not known, or cannot be done by the framework.
    """
    from workload.errors import WorkloadError
    from workload.generators.models import Model, find
    from workload.generators.training import ParallelPlan, parallel_plan, rules
    from workload.generators.training.generator import generate as made

    if framework not in get_args(Framework):
        raise WorkloadError(f"framework {framework!r}: expected megatron, deepspeed or fsdp")
    known = model if isinstance(model, Model) else find(str(model))
    asked = plan if isinstance(plan, ParallelPlan) else parallel_plan(plan if isinstance(plan, str) else dict(plan))
    rules.check(known, asked, framework)
    return made(known, rules.settle(known, asked, framework), framework)


def plan(
    model: str | Path,
    cluster: str | Path,
    gpus: int,
    constraints: str = "",
    *,
    framework: Framework = "megatron",
    gpu: str = "",
    reserve: str | None = None,
    confirm: int = 3,
    tokens: float = 0.0,
    energy_table: str | Path | None = None,
    workers: int = 1,
    progress: bool = False,
) -> dict[str, Any]:
    """Rank the parallel plans that train a model on a cluster by the time of a step, as `nadi plan` does.

    Args:
        model: Name of a model (`nadi workload models` lists them), or path of its TOML file or config.json.
        cluster: Name of a cluster; `nadi topology clusters` lists them.
        gpus: Number of GPUs of each plan.
        constraints: What all plans have in common, as `--plan`: "gb1536,seq4096".
        framework: "megatron", "deepspeed" or "fsdp".
        gpu: Name of the GPU in place of the cluster's own; "" = the cluster's.
        reserve: Memory of each GPU that plans leave free, as "4GiB" or "5%"; None = the default of `nadi plan`.
        confirm: Number of the best plans whose communication is also simulated by packets.
        tokens: Number of tokens of a whole training, for its days, joules and dollars; 0 = not asked for.
        energy_table: Path of a TOML file with powers and prices, over the default ones.
        workers: Number of processes.
        progress: Show on standard error how many plans are done.

    Returns:
        The content of plan.json (docs/explanation/planner.md): `rows` has a mapping for each plan, fastest first, with
        `plan`, `step_s`, `mfu`, `memory_bytes`, `shares` and more.

    Raises:
        ConfigError: An argument is wrong, or no plan fits in memory.
        WorkloadError, TopologyError: The model, the cluster, the GPU or the constraints are wrong.
    """
    from dataclasses import replace

    from nadi.launching.progress import progress as shown
    from nadi.studies.planner.planning import document, planned
    from nadi.studies.planner.reserve import MemoryReserve
    from nadi.studies.planner.wishes import wish_of

    _check_within("gpus", gpus, 1, MAX_GPUS, whole=True)
    _check_within("confirm", confirm, 0, MAX_GPUS, whole=True)
    _check_within("tokens", tokens, 0, _MOST_TOKENS)
    _check_within("workers", workers, 1, MAX_WORKERS, whole=True)
    request = replace(
        wish_of(str(model), str(cluster), gpus, constraints, framework, gpu),
        confirm=confirm,
        workers=workers,
        energy_table=None if energy_table is None else Path(energy_table),
        tokens=tokens,
    )
    if reserve is not None:
        request = replace(request, reserve=MemoryReserve.parse(reserve))
    with shown(quiet=not progress) as telling:
        return document(planned(request, telling))


def explain(run: Run | str | Path, faster: float = 1.1) -> dict[str, Any]:
    """Explain why a run took as long as it did, as `nadi explain` does.

    Args:
        run: A Run, or the folder of its results.
        faster: Factor from 1 to 100 by which each `what_if` speeds up GPUs, links or collectives.

    Returns:
        The output of `nadi explain --json` (docs/explanation/explain.md); times are in ps. `by_what` and `by_bound`
        divide the critical path, `longest` has its longest pieces, `what_if` the time of the run after each change.

    Raises:
        ConfigError: The run cannot be explained, or `faster` is out of its range.
        TraceError, WorkloadError, TopologyError: Its traces or its fabric no longer exist, or have changed.
    """
    from nadi.insight.explanation.document import explain as explained

    _check_within("faster", faster, 1, _MOST_TIMES_FASTER)
    return explained(_opened(run), faster)


def compare(*runs: Run | str | Path) -> dict[str, Any]:
    """Compare runs with the first of them, as `nadi compare` does.

    Args:
        runs: Two to twenty Runs, or folders of their results.

    Returns:
        The output of `nadi compare --json` (docs/reference/reports.md): settings, figures, times, collectives and more.
        Its lists have one value for each run, in the order of `runs`; None = the run has no such value.

    Raises:
        ConfigError: There are too few or too many runs, or a folder cannot be read.
    """
    from nadi.insight.comparison.document import document

    return document([_opened(run) for run in runs])


def net(run: Run | str | Path) -> dict[str, Any]:
    """Report what the network did in a run, as `nadi net` does.

    Args:
        run: A Run, or the folder of its results.

    Returns:
        What `nadi net --json` prints: `links` that were busiest, marked, paused or dropping, `messages` with their
        completion times, `trees` along which pauses spread, and the `victims` of pauses.

    Raises:
        ConfigError: The folder has no results, or they cannot be read.
    """
    from nadi.insight.analysis.network import read_run
    from nadi.insight.analysis.network_findings import document

    return document(read_run(run.folder if isinstance(run, Run) else Path(run)))


def _opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else Run(run)


def _check_within(name: str, value: float, minimum: int, maximum: int, *, whole: bool = False) -> None:
    """Refuse a number outside of the range that the command's option has.

    Raises:
        ConfigError: `value` is no number, or no whole number, from `minimum` to `maximum`.
    """
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not minimum <= value <= maximum:
        kind = "whole number" if whole else "number"
        raise ConfigError(f"{name}: found {value!r}; expected a {kind} from {minimum:,} to {maximum:,}")


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _with_topology(tree: Mapping[str, Any], topology: Any) -> tuple[dict[str, Any], int | None]:  # noqa: ANN401
    """The sections with a fabric, and of how many NPUs that is, if it is a value."""
    from nadi.configuration.run_file import put_over
    from topologies import Graph, from_networkx

    if isinstance(topology, Mapping):
        return put_over(tree, {"topology": topology}), None
    if isinstance(topology, str):
        return {**tree, "topology": {"spec": topology}}, None
    if hasattr(topology, "is_directed"):
        topology = from_networkx(topology)
    if not isinstance(topology, Graph):
        raise ConfigError(
            f"topology: found a {type(topology).__name__}; expected a Graph, a spec, or a mapping of keys"
        )
    return {**tree, "topology": {"graph": topology}}, topology.npus


def _with_workload(
    tree: Mapping[str, Any],
    workload: Any,  # noqa: ANN401 - any of what `simulate` takes
    groups: Mapping[str, Sequence[int]] | None,
    npus: int | None,
) -> dict[str, Any]:
    """The sections with traces. One trace for all needs to know how many NPUs there are: from the fabric."""
    from et import TraceTable
    from nadi.configuration.run_file import put_over
    from workload import TraceSet

    if isinstance(workload, (Mapping, TraceSet)) and groups is not None:
        raise ConfigError(
            "groups: found beside a mapping or a TraceSet; expected traces of each NPU, as a TraceTable each"
        )
    if isinstance(workload, Mapping):
        return put_over(tree, {"workload": workload})
    if isinstance(workload, TraceSet):
        traces = workload
    else:
        traces = TraceSet.of([workload] * _npus(tree, npus) if isinstance(workload, TraceTable) else workload, groups)
    return {**tree, "workload": {"trace_set": traces}}


def _npus(tree: Mapping[str, Any], npus: int | None) -> int:
    """Of the fabric: known, or built to count them."""
    if npus is not None:
        return npus
    from nadi.configuration.sections import TopologySection
    from topologies import build

    if "topology" not in tree:
        raise ConfigError("workload: one trace for all NPUs; expected topology beside it, not in a run file")
    return build(TopologySection.model_validate(tree["topology"]).source()).npus


def _with_schedules(tree: Mapping[str, Any], schedules: "Mapping[str, Plans]") -> dict[str, Any]:
    """The sections with algorithms of one's own."""
    from nadi.configuration.run_file import put_over
    from workload import Plans
    from workload.collectives.custom.given import keep

    for kind, plans in schedules.items():
        if not isinstance(plans, Plans):
            raise ConfigError(f"schedules: {kind}: found a {type(plans).__name__}; expected Plans")
    own = {kind: keep(plans, kind) for kind, plans in schedules.items()}
    return put_over(tree, {"system": {"collectives": own}})
