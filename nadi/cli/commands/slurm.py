"""`nadi slurm`: write a batch script for a run or a sweep."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import typer

from nadi.cli.options import FORCE_HELP, SBATCH_HELP, named_path


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(slurm)


def slurm(
    file: Path = typer.Argument(metavar="RUN.toml", help="Run file."),
    nodes: int = typer.Option(..., min=1, help="Number of cluster nodes."),
    ranks_per_node: int = typer.Option(1, min=1, help="MPI processes per node."),
    threads: int = typer.Option(1, min=1, help="Threads per process."),
    time: str = typer.Option("", metavar="HH:MM:SS", help="Time limit of a run. Default: twice the estimate."),
    mem: str = typer.Option(
        "", metavar="SIZE", help="Memory per node, such as 64G; 0 for all memory. Default: twice the estimate."
    ),
    partition: str = typer.Option("", help="Partition. Default: the cluster's."),
    account: str = typer.Option("", help="Account. Default: yours."),
    job_name: str = typer.Option("", help="Job name. Default: the name of the run file."),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Replace a value, as in `nadi run`. Repeatable."
    ),
    sweeps: list[str] = typer.Option(
        [],
        "--sweep",
        metavar="KEY=V1,V2,...",
        help="Job array with one task per value, or per combination if repeated. Values that contain commas are "
        "separated by semicolons.",
    ),
    launcher: str = typer.Option("mpiexec", help="Launcher of several ranks: mpiexec, srun-pmi2 or srun-pmix."),
    out: Path | None = typer.Option(
        None,
        "--out",
        metavar="DIR",
        parser=named_path,
        help="Folder for the results; a sweep has a subfolder per task.",
    ),
    script: Path | None = typer.Option(
        None, "-o", metavar="FILE", parser=named_path, help="Script to write. Default: JOB-NAME.sbatch."
    ),
    sbatch: list[str] = typer.Option([], "--sbatch", metavar="OPTION", help=SBATCH_HELP),
    force: bool = typer.Option(False, "--force", help=FORCE_HELP),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the script and write nothing."),
    submit: bool = typer.Option(False, "--submit", help="Submit the script with sbatch."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Check a run file as `nadi run` does, and write a SLURM batch script for it, or for a sweep over its values."""
    import inputs
    from nadi.configuration.run_file import load_config
    from nadi.errors import ConfigError, OutputError
    from nadi.launching import slurm as batch
    from nadi.launching.progress import progress
    from nadi.simulation.run import check_job
    from nadi.simulation.wiring.affordable import JobCost, NodeLimits
    from nadi.terminal.printing import say

    if dry_run and (submit or script):
        raise ConfigError(f"--dry-run writes nothing; expected it without {'--submit' if submit else '-o'}")
    tasks = batch.sweep_tasks(sweeps)
    configs = [load_config(file, [*overrides, *task.overrides]) for task in tasks or [batch.Task("", ())]]
    name = job_name or batch.job_name(file)
    job = batch.Job(
        run_file=file.absolute(),
        out=(out or configs[0].output.dir or Path("results") / name).absolute(),
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
        force=force,
    )
    limits = NodeLimits(batch.memory_bytes(mem), force)
    with progress(quiet=quiet) as shown:
        costs = [check_job(config, nodes, ranks_per_node, threads, shown, limits) for config in configs]
    largest = JobCost(max(cost.wall_s for cost in costs), max(cost.memory_bytes for cost in costs))
    job = replace(job, time=time or largest.time_limit, memory=mem or largest.memory_limit)
    text = batch.render(job)
    if dry_run:
        typer.echo(text, nl=False)
        return
    path = script or Path(f"{name}.sbatch")
    try:
        inputs.write_whole(path, text)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the script to") from None
    runs = f"{len(tasks)} runs" if tasks else "a run"
    say(f"{path}: {runs} on {nodes} nodes with {job.ranks} ranks of {threads} threads; results in {job.out}")
    say(f"expected: {largest}; the script asks for {job.time} and {job.memory}")
    say(batch.submit(path) if submit else f"submit with: sbatch {shlex.quote(str(path))}")
