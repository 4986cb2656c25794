"""`nadi slurm`: write a batch script for a run or a sweep."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from nadi.cli.options import Force, Overrides, Quiet, Sbatch, named_path
from nadi.errors import ConfigError, OutputError
from nadi.terminal import say

_MEMORY = "Memory per node, such as 64G; 0 for all memory. Default: twice the estimate."
_OUT = "Folder for the results; a sweep has a subfolder per task."
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
    out: Path | None = typer.Option(None, "--out", metavar="DIR", parser=named_path, help=_OUT),
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
    from nadi.launching.launcher import check_installed
    from nadi.launching.progress import progress
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
