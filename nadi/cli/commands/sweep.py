"""`nadi sweep`: simulate many variants of a run file."""

from pathlib import Path

import typer

from nadi.cli.options import ArraySize, AsJson, FiguresFolder, Force, Quiet, Sbatch, named_path
from nadi.cli.output import check_outputs, print_json, print_table
from nadi.errors import ConfigError
from nadi.launching.ending import unwound
from nadi.terminal import say

_FILE = "Sweep file with keys and their values; docs/how-to/sweep.md."


def sweep(
    file: Path = typer.Argument(metavar="SWEEP.toml", help=_FILE),
    out: Path = typer.Option(..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for all results."),
    jobs: int = typer.Option(1, min=1, max=1024, metavar="N", help="Number of concurrent runs on this machine."),
    shard: str = typer.Option("", metavar="I/N", help="Run only every N-th point, starting at point I; I from 0."),
    merge: bool = typer.Option(False, "--merge", help="Only merge the results of shards into one table."),
    slurm: ArraySize = 0,
    sbatch: Sbatch = [],
    figures: FiguresFolder = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a grid, a list or a Latin hypercube of settings; resume an earlier sweep in the same folder."""
    from nadi.api.studies import SweepRequest, run_sweep
    from nadi.insight.metrics import ranking_metric
    from nadi.launching.progress import progress
    from nadi.studies.sweeps import MAX_PRINTED, points_table, read_sweep, settings_of, sweep_script

    if slurm:
        # refuses a wrong file now, not in each task
        read_sweep(file)
        typer.echo(sweep_script(file, out, slurm, sbatch, force=force), nl=False)
        return
    check_outputs(None, figures)
    with unwound():
        answer = run_sweep(
            SweepRequest(file, out, jobs, shard, merge, figures),
            lambda: progress(quiet=quiet),
            force=force,
        )
    if answer.table is not None:
        if as_json:
            print_json(answer.table.to_pylist())
        else:
            figure = ranking_metric(answer.table, answer.definition.rank)
            print_table(points_table(settings_of(answer.table, figure), figure, MAX_PRINTED))
        say(f"results: {out}", err=as_json)
        if figures:
            say(f"figures: {figures}, as SVG, PDF and CSV", err=as_json)
    if failed := answer.failed():
        first = failed[0]
        raise ConfigError(f"{len(failed)} of {len(answer.outcomes)} points failed; point {first.point}: {first.error}")
