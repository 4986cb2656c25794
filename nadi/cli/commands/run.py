"""`nadi run` simulates, `nadi slurm` writes a batch script for a run, and `nadi watch` shows how far a run is."""

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nadi.cli.options import AsJson, Force, Overrides, Quiet, Sbatch, cluster_names, model_names, named_path
from nadi.cli.output import print_json, print_table, run_and_report
from nadi.configuration import MAX_WORKERS
from nadi.errors import ConfigError, OutputError
from nadi.inputs import plug_ins
from nadi.terminal import Terminal, facts, say, time_text

if TYPE_CHECKING:
    from nadi.launching.progress import Status
    from nadi.reports.staging import Sight

_FILE = "Run file; docs/reference/run-file.md lists its keys."
_MODEL = "Model to train, by name or file: `nadi workload models`."
_PLAN = "Parallel plan, such as tp8,pp4,dp32."
_FRAMEWORK = "Framework: megatron (default), deepspeed or fsdp for training, or inference for serving."
_CLUSTER = "Name in `nadi topology clusters` or TOML file, optionally with parameters: selene:rate=100Gbps."
_GPUS = "Number of GPUs of the cluster. Default: those of the plan."
_FIDELITY = "Network model: `nadi net fidelities` lists them."
_OUT = "Folder for summary.json and the tables."
_RESUME = "Continue the run whose results would be in this folder from its newest checkpoint."
_WORKERS = "Number of threads or processes on this machine; under mpiexec, threads per rank."
_WEIGHTS = "Source of the weights for dividing the fabric: traces, fabric, or an earlier run's folder."


def register(app: typer.Typer) -> None:
    """Add the commands.

    Args:
        app: The application of typer.
    """
    app.command()(run)
    app.command()(slurm)
    app.command()(watch)


def run(
    file: Path | None = typer.Argument(None, metavar="[RUN.toml]", show_default=False, help=_FILE),
    model: str | None = typer.Option(None, metavar="NAME", show_default=False, help=_MODEL, autocompletion=model_names),
    plan: str | None = typer.Option(None, metavar="PLAN", show_default=False, help=_PLAN),
    framework: str | None = typer.Option(None, metavar="NAME", show_default=False, help=_FRAMEWORK),
    cluster: str | None = typer.Option(
        None, metavar="NAME", show_default=False, help=_CLUSTER, autocompletion=cluster_names
    ),
    gpus: int | None = typer.Option(None, min=1, metavar="N", show_default=False, help=_GPUS),
    fidelity: str | None = typer.Option(None, metavar="NAME", show_default=False, help=_FIDELITY),
    out: Path | None = typer.Option(None, metavar="DIR", parser=named_path, help=_OUT),
    overrides: Overrides = [],
    workers: int = typer.Option(0, min=0, max=MAX_WORKERS, metavar="N", show_default=False, help=_WORKERS),
    backend: str = typer.Option("", metavar="NAME", show_default=False, help="Kind of workers: threads or processes."),
    weights: str = typer.Option("", metavar="WHAT", show_default=False, help=_WEIGHTS),
    exact: bool = typer.Option(False, "--exact", help='Simulate each packet; nothing is replayed (reuse = "off").'),
    resume: Path | None = typer.Option(None, metavar="DIR", parser=named_path, show_default=False, help=_RESUME),
    force: Force = False,
    report: bool = typer.Option(False, "--report", help="Also write DIR/report.html, as `nadi report DIR` does."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON instead of the report."),
    quiet: Quiet = False,
) -> None:
    """Simulate a run file, or a step of a model on a cluster, and report where the time went."""
    from nadi.launching.ranks import connected_ranks

    begin_s = time.monotonic()
    ranks = connected_ranks(os.environ)
    from nadi.api.running import run_request
    from nadi.configuration.sections import WEIGHT_SOURCES
    from nadi.launching.ranks import together

    def from_here(kind: str, name: str | None) -> str | None:
        return name and plug_ins.with_path(kind, name, lambda path: str(Path(path).absolute()))

    named = {
        "workload.model": model,
        "workload.plan": plan,
        "workload.framework": framework,
        "topology.cluster": from_here("cluster", cluster),
        "topology.gpus": gpus,
        "network.fidelity": from_here("network model", fidelity),
    }
    # JSON quotes texts, so that they stay texts
    from_options = [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None]
    from_options += [f"engine.workers={workers}"] * bool(workers) + [f"engine.backend={backend}"] * bool(backend)
    from_options += ['engine.reuse="off"'] * exact
    if weights:
        from_options.append(f"engine.weights={weights if weights in WEIGHT_SOURCES else Path(weights).absolute()}")
    with together(ranks):
        request = run_request(file, overrides, options=from_options, out=out, report=report, resume=resume)
        if request.has_page and request.folder is None:
            source = "--report" if report else "report in [output]"
            raise ConfigError(f"{source}: found no folder of results; expected --out DIR, or dir in [output]")
    run_and_report(request, ranks, begin_s, force=force, as_json=as_json, quiet=quiet)


_MEMORY = "Memory per node, such as 64G; 0 for all memory. Default: twice the estimate."
_BATCH_OUT = "Folder for the results; a sweep has a subfolder per task."
_SCRIPT = "Script to write. Default: JOB-NAME.sbatch."
_CHECKPOINT = (
    "Wall time between checkpoints, such as 2h, or off. Default: [engine] checkpoint, else 30min. A job at its time "
    "limit is queued again and continues."
)
_DEFAULT_CHECKPOINT = "30min"
_MODULE = "Environment module that the script loads, such as openmpi/4.1.5. Repeatable."
_SWEEP = (
    "Job array with one task per value, or per combination if repeated. Values that contain commas are "
    "separated by semicolons."
)


def slurm(
    file: Path = typer.Argument(metavar="RUN.toml", help="Run file."),
    nodes: int = typer.Option(..., min=1, help="Number of cluster nodes."),
    ranks_per_node: int = typer.Option(1, min=1, help="MPI processes per node."),
    threads: int = typer.Option(1, min=1, help="Threads per process."),
    time: str = typer.Option("", metavar="HH:MM:SS", help="Time limit of a run. Default: twice the estimate."),
    mem: str = typer.Option("", metavar="SIZE", help=_MEMORY),
    partition: str = typer.Option("", help="Partition. Default: the cluster's."),
    account: str = typer.Option("", help="Account. Default: yours."),
    job_name: str = typer.Option("", help="Job name. Default: the name of the run file."),
    overrides: Overrides = [],
    sweeps: list[str] = typer.Option([], "--sweep", metavar="KEY=V1,V2,...", help=_SWEEP),
    launcher: str = typer.Option("mpiexec", help="Launcher of several ranks: mpiexec, srun-pmi2 or srun-pmix."),
    checkpoint: str = typer.Option("", metavar="TIME", show_default=False, help=_CHECKPOINT),
    modules: list[str] = typer.Option([], "--module", metavar="NAME", show_default=False, help=_MODULE),
    out: Path | None = typer.Option(None, "--out", metavar="DIR", parser=named_path, help=_BATCH_OUT),
    script: Path | None = typer.Option(None, "-o", metavar="FILE", parser=named_path, help=_SCRIPT),
    sbatch: Sbatch = [],
    force: Force = False,
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the script and write nothing."),
    submit: bool = typer.Option(False, "--submit", help="Submit the script with sbatch."),
    quiet: Quiet = False,
) -> None:
    """Check a run file as `nadi run` does, and write a SLURM batch script for it, or for a sweep over its values."""
    from nadi import inputs
    from nadi.configuration.run_file import load_config
    from nadi.launching import slurm as batch
    from nadi.launching.progress import progress
    from nadi.launching.ranks import check_installed
    from nadi.simulation.assembly.resource_checks import JobCost, NodeLimits
    from nadi.simulation.resolving import Resolver

    if dry_run and (submit or script):
        raise ConfigError(f"--dry-run writes nothing; expected it without {'--submit' if submit else '-o'}")
    tasks = batch.sweep_tasks(sweeps)
    all_tasks = tasks or (batch.Task("", ()),)
    overrides = _with_checkpoints(file, overrides, all_tasks[0].overrides, checkpoint)
    configs = [load_config(file, [*overrides, *task.overrides]) for task in all_tasks]
    name = job_name or batch.job_name(file)
    job = batch.Job(
        run_file=file.absolute(),
        out=(out or configs[0].outputs().folder or Path("results") / name).absolute(),
        python=Path(sys.executable),
        name=name,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        threads=threads,
        time=time,
        memory=mem,
        partition=partition,
        account=account,
        launcher=launcher,
        overrides=tuple(overrides),
        tasks=tasks,
        sbatch=tuple(sbatch),
        modules=tuple(modules),
        saves=any(config.outputs().checkpoint_s for config in configs),
        force=force,
    )
    check_installed(job.ranks)
    limits = NodeLimits(batch.memory_bytes(mem), force)
    with progress(quiet=quiet) as shown:
        costs = [Resolver(one, force=force).job_cost(nodes, ranks_per_node, threads, shown, limits) for one in configs]
    # all tasks of a job array ask for the same time and memory, which must do for each
    largest = JobCost(max(cost.wall_s for cost in costs), max(cost.memory_bytes for cost in costs))
    job = replace(job, time=time or largest.time_limit, memory=mem or largest.memory_limit)
    text = batch.render(job)
    if dry_run:
        typer.echo(text, nl=False)
        return
    path = script or Path(f"{name}.sbatch")
    with inputs.refusing(path, "a file to write the script to", OutputError):
        inputs.write_whole(path, text)
    runs = f"{len(tasks)} runs" if tasks else "a run"
    say(f"{path}: {runs} on {nodes} nodes with {job.ranks} ranks of {threads} threads; results in {job.out}")
    say(f"expected: {largest}; the script asks for {job.time} and {job.memory}")
    say(batch.submit(path) if submit else f"submit with: sbatch {shlex.quote(str(path))}")


def _with_checkpoints(file: Path, overrides: Sequence[str], more: Sequence[str], checkpoint: str) -> list[str]:
    """Return overrides with the wall time between checkpoints.

    `more` are the overrides of the first task. Without `checkpoint`, a run that sets no time and can save its state
    gets the default one.
    """
    from nadi.configuration.run_file import load_config

    found = load_config(file, [*overrides, *more]).outputs()
    if not checkpoint and (found.checkpoint_s or not found.can_save):
        return list(overrides)
    return [*overrides, f"engine.checkpoint={checkpoint or _DEFAULT_CHECKPOINT}"]


_FAILED = 1
_WATCHED = "Folder that `nadi run --out DIR` writes to."
_ONCE = "Show the status once, without waiting for the end."
_LINE_EVERY_S = 5.0  # seconds between two lines if standard output is no terminal


def watch(
    folder: Path = typer.Argument(metavar="DIR", help=_WATCHED),
    once: bool = typer.Option(False, "--once", help=_ONCE),
    as_json: AsJson = False,
) -> None:
    """Show how far a run is: simulated time, rate, share done, slowest rank, time left. Ends when the run ends.

    Of a run with checkpoints it also shows the results until the last one.

    The exit code is 0 if the results are complete, or if the run continues (--once), and 1 if it has ended without.
    """
    from rich.live import Live

    from nadi.launching.checkpoints import PARTIAL
    from nadi.launching.progress import RENEW_EVERY_S
    from nadi.reports.staging import Watch, partial_metrics

    watched, said_s = Watch(folder), 0.0
    is_live = sys.stdout.isatty() and not once and not as_json
    with Live(console=Terminal(), transient=True, auto_refresh=False) if is_live else nullcontext() as live:
        while True:
            sight = watched.look()
            if sight.state == "none":
                raise ConfigError(f"{folder}: found no run that writes to it, and no results; expected --out of a run")
            is_last = once or sight.state not in ("starting", "running")
            partial = partial_metrics(folder)
            rows = [("run", _state_text(folder, sight)), *(_rows(sight.status) if sight.status else ())]
            rows += _partial_rows(folder / PARTIAL, partial) if partial else []
            if as_json:
                print_json(_document(sight, partial), indent=None)
            elif live is not None:
                live.update(facts("", rows), refresh=True)
            elif not is_last and time.monotonic() >= said_s + _LINE_EVERY_S:
                said_s = time.monotonic()
                say(_line(rows))
            if is_last:
                break
            time.sleep(RENEW_EVERY_S)
    if not as_json:  # after the end of the live display, which erases what it has shown
        print_table(facts("", rows)) if sight.state == "running" else say(_line(rows))
    if sight.state in ("ended", "dead"):
        raise typer.Exit(_FAILED)


def _line(rows: list[tuple[str, str]]) -> str:
    """Return labels and values as one line."""
    return "; ".join(text if name == "run" else f"{name} {text}" for name, text in rows)


def _document(sight: "Sight", partial: dict[str, Any] | None) -> dict[str, Any]:
    """Return the JSON document of --json; partial: figures of the results until the last checkpoint."""
    status = sight.status.model_dump() if sight.status else {}
    so_far = {"partial": partial} if partial else {}
    return {"state": sight.state, "renewed_s_ago": round(sight.age_s, 1), **status, **so_far}


def _partial_rows(tables: Path, partial: dict[str, Any]) -> list[tuple[str, str]]:
    """Return labels and values of the results until the last checkpoint, whose tables are in the folder `tables`."""
    rows = [("so far", f"the first {time_text(partial['simulated_ps'])}; tables in {tables}")]
    if "steps_done" in partial:
        rows.append(("steps", f"{partial['steps_done']} of {partial['steps']} done"))
    rows.append(("compute", f"{partial['compute_share']:.1%}, exposed communication {partial['exposed_share']:.1%}"))
    collectives = partial["collectives"]
    rows += [(kind["kind"], f"{kind['done']:,} done, mean {time_text(kind['mean_ps'])}") for kind in collectives]
    return rows


def _state_text(folder: Path, sight: "Sight") -> str:
    """Return a sentence about the state of the run."""
    status, ago = sight.status, f"last renewed {sight.age_s:.0f} s ago"
    process = f"process {status.process} on {status.host}" if status else "a process that wrote no status"
    saved = [*folder.glob("checkpoints/[0-9]*")]
    fix = f"`nadi run --resume {folder}` continues from its last checkpoint" if saved else "its output has the reason"
    ranks = f", first of {status.ranks} ranks" if status and status.ranks > 1 else ""
    return {
        "starting": "starting",
        "running": f"{status.phase if status else ''} ({process}{ranks}; {ago})",
        "finished": f"finished: results in {folder}",
        "ended": f"ended without results ({process}{ranks}): {fix}",
        "dead": f"dead: {process}{ranks} has ended or hangs, {ago}: {fix}",
    }[sight.state]


def _rows(status: "Status") -> list[tuple[str, str]]:
    """Return labels and values of what a run has reported."""
    from nadi.launching.progress import duration_text

    rows = []
    if status.simulated_ps is not None:
        rows.append(("simulated", time_text(status.simulated_ps)))
    if status.packet_hops:
        now, mean = status.packet_hops_per_s or 0.0, status.mean_packet_hops_per_s or 0.0
        rows.append(("rate", f"{now / 1e6:.1f} M packet-hops/s, mean {mean / 1e6:.1f} M"))
    if status.done_share is not None:
        rows.append(("done", f"{status.done_share:.1%}"))
    if status.left_s is not None:
        rows.append(("left", duration_text(status.left_s)))
    if status.slowest is not None:
        worker = f"rank {status.slowest.rank}, worker {status.slowest.worker}"
        waits = f"waits {status.slowest.waiting_share:.1%} of the time, mean {status.slowest.mean_waiting_share:.1%}"
        rows.append(("slowest", f"{worker}: {waits}"))
    return rows
