"""`nadi run`: simulate what a run file says."""

import json
import os
from contextlib import nullcontext
from pathlib import Path

import typer

from nadi.bounds import MOST_WORKERS
from nadi.options import FORCE_HELP, named_path

WORKERS_HELP = "Threads or processes of this machine; under mpiexec, threads of each rank."
BACKEND_HELP = "What the workers are: threads or processes."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(run)


def run(
    file: Path = typer.Argument(metavar="RUN.toml", help="The run file; docs/run-file.md lists its keys."),
    out: Path | None = typer.Option(
        None, "--out", metavar="DIR", parser=named_path, help="Folder for summary.json and the tables."
    ),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Replace a value of the run file, as network.window=1MiB. Repeatable."
    ),
    workers: int = typer.Option(
        0, "--workers", min=0, max=MOST_WORKERS, metavar="N", show_default=False, help=WORKERS_HELP
    ),
    backend: str = typer.Option("", "--backend", metavar="NAME", show_default=False, help=BACKEND_HELP),
    weights: str = typer.Option(
        "",
        "--weights",
        metavar="WHAT",
        show_default=False,
        help="Divide by traces, fabric, or an earlier run's folder.",
    ),
    force: bool = typer.Option(False, "--force", help=FORCE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON in place of the report."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Simulate the traces of a run file on its fabric, and report where the time went."""
    from nadi.launcher import connected_ranks
    from nadi.world import together

    ranks = connected_ranks(os.environ)
    from nadi.config import WEIGHT_WORDS, load_config
    from nadi.findings import merge, part
    from nadi.printing import say
    from nadi.progress import progress
    from nadi.report import print_report
    from nadi.results import RUN_FILES, summary, write_results
    from nadi.simulate import simulate
    from nadi.staging import staged

    is_first = ranks.rank == 0
    given = [f"engine.workers={workers}"] * bool(workers) + [f"engine.backend={backend}"] * bool(backend)
    if weights:
        given.append(f"engine.weights={weights if weights in WEIGHT_WORDS else Path(weights).absolute()}")
    with together(ranks):
        config = load_config(file, [*overrides, *given])
    folder = out or config.output.dir
    with staged(folder, RUN_FILES, ranks) if folder else nullcontext() as staging:
        with progress(quiet=quiet or not is_first) as shown:
            simulation = simulate(config, shown, ranks, force=force, keep_flows=folder is not None)
        with together(ranks):
            parts = ranks.gather(part(simulation, ranks.exchange))
            findings = merge(simulation, parts) if parts is not None else None
            if folder:
                write_results(simulation, findings, staging, ranks)
            peaks = ranks.gather(simulation.peak_rss_bytes())
    if findings is None:
        return
    if as_json:
        typer.echo(json.dumps(summary(simulation, peaks, findings.warnings), indent=2))
        say(f"results: {folder}" if folder else "results are not kept: no --out DIR", err=True)
    else:
        print_report(simulation, findings, folder)
