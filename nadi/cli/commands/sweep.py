"""`nadi sweep`: simulate many variants of a run file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nadi.cli.options import FORCE_HELP, SBATCH_HELP, named_path

if TYPE_CHECKING:
    import pyarrow as pa


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sweep)


def sweep(
    file: Path = typer.Argument(
        metavar="SWEEP.toml", help="Sweep file with keys and their values; docs/how-to/sweep.md."
    ),
    out: Path = typer.Option(..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for all results."),
    jobs: int = typer.Option(1, min=1, max=1024, metavar="N", help="Number of concurrent runs on this machine."),
    shard: str = typer.Option("", metavar="I/N", help="Run only every N-th point, starting at point I; I from 0."),
    merge: bool = typer.Option(False, "--merge", help="Only merge the results of shards into one table."),
    slurm: int = typer.Option(
        0, min=0, max=10_000, metavar="N", help="Only print a batch script of a job array of N shards."
    ),
    sbatch: list[str] = typer.Option([], "--sbatch", metavar="OPTION", help=SBATCH_HELP),
    force: bool = typer.Option(False, "--force", help=FORCE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Run a grid, a list or a Latin hypercube of settings; resume an earlier sweep in the same folder."""
    from nadi.configuration.effects import without_effect_in_all
    from nadi.errors import ConfigError
    from nadi.launching.ending import unwound
    from nadi.launching.shards import shard_of
    from nadi.studies.sweeps.points import read_sweep
    from nadi.studies.sweeps.reporting import progress_reporter
    from nadi.studies.sweeps.results import finish
    from nadi.studies.sweeps.running import earlier_outcomes, run_points
    from nadi.terminal.printing import say
    from nadi.terminal.tables import console

    if slurm:
        from nadi.studies.sweeps.batch import sweep_script

        read_sweep(file)
        typer.echo(sweep_script(file, out, slurm, sbatch, force=force), nl=False)
        return
    if merge and shard:
        raise ConfigError("--merge makes the table of all shards; expected it without --shard")
    number, count = shard_of(shard) if shard else (0, 1)
    found = read_sweep(file)
    if unused := without_effect_in_all([point.config for point in found.points]):
        say(f"nadi: {unused}", err=True)
    own = range(number, len(found.points), count)
    if merge:
        outcomes = earlier_outcomes(found, out)
    else:
        with unwound(), progress_reporter(found, len(own), quiet=quiet) as report:
            outcomes = run_points(found, out, own, jobs, report, force=force)
    failed = [outcome for outcome in outcomes if outcome.error]
    if not shard:
        table = finish(found, out, outcomes)
        if as_json:
            typer.echo(json.dumps(table.to_pylist(), indent=2))
        else:
            console().print(_shown(table, found.rank))
        say(f"results: {out}", err=as_json)
    if failed:
        first = failed[0]
        raise ConfigError(f"{len(failed)} of {len(own)} points failed; point {first.point}: {first.error}")


def _shown(table: "pa.Table", rank: str) -> object:
    from nadi.insight.runs.figures import ranking_figure
    from nadi.studies.sweeps.report import render

    return render(table, ranking_figure(table, rank))
