"""`nadi sweep`: simulate many variants of a run file."""

from itertools import count
from pathlib import Path

import typer

from nadi.cli.options import ArraySize, AsJson, FiguresFolder, Force, Quiet, Sbatch, named_path
from nadi.cli.output import check_outputs, print_json, print_table
from nadi.errors import ConfigError
from nadi.launching.ending import unwound
from nadi.terminal.printing import say

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
    from nadi.configuration.effects import without_effect_in_all
    from nadi.insight.runs.figures import ranking_figure
    from nadi.launching.progress import progress
    from nadi.launching.slurm import shard_of
    from nadi.studies.sweeps.page import MAX_PRINTED, points_table
    from nadi.studies.sweeps.points import read_sweep
    from nadi.studies.sweeps.results import finish
    from nadi.studies.sweeps.running import PointOutcome, earlier_outcomes, outcome_text, run_points, sweep_script
    from nadi.studies.sweeps.settings import settings_of

    if slurm:
        read_sweep(file)
        typer.echo(sweep_script(file, out, slurm, sbatch, force=force), nl=False)
        return
    if merge and shard:
        raise ConfigError("--merge makes the table of all shards; expected it without --shard")
    check_outputs(None, figures)
    first, step = shard_of(shard) if shard else (0, 1)
    found = read_sweep(file)
    if unused := without_effect_in_all([point.config for point in found.points]):
        say(f"nadi: {unused}", err=True)
    own = range(first, len(found.points), step)
    if merge:
        outcomes = earlier_outcomes(found, out)
    else:
        with unwound(), progress(quiet=quiet) as shown:
            done = count(1)

            def report(outcome: PointOutcome) -> None:
                shown.say(outcome_text(found, outcome))
                shown.count(next(done), len(own), "points")

            outcomes = run_points(found, out, own, jobs, report, force=force)
    failed = [outcome for outcome in outcomes if outcome.error]
    if not shard:
        table = finish(found, out, outcomes, figures)
        if as_json:
            print_json(table.to_pylist())
        else:
            figure = ranking_figure(table, found.rank)
            print_table(points_table(settings_of(table, figure), figure, MAX_PRINTED))
        say(f"results: {out}", err=as_json)
        if figures:
            say(f"figures: {figures}, as SVG, PDF and CSV", err=as_json)
    if failed:
        raise ConfigError(f"{len(failed)} of {len(own)} points failed; point {failed[0].point}: {failed[0].error}")
