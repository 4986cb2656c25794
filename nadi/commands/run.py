"""`nadi run`: simulate what a run file says."""

import json
from contextlib import nullcontext
from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(run)


def run(
    file: Path = typer.Argument(metavar="RUN.toml", help="The run file; docs/run-file.md lists its keys."),
    out: Path | None = typer.Option(None, "--out", metavar="DIR", help="Folder for summary.json and the tables."),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Replace a value of the run file, as network.window=1MiB. Repeatable."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON in place of the report."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Simulate the traces of a run file on its fabric, and report where the time went."""
    from nadi.config import load_config
    from nadi.findings import find
    from nadi.progress import progress
    from nadi.report import print_report
    from nadi.results import staged, summary, write_results
    from nadi.simulate import simulate

    config = load_config(file, overrides)
    folder = out or config.output.dir
    with staged(folder) if folder else nullcontext() as staging:
        with progress(quiet=quiet) as shown:
            simulation = simulate(config, shown)
        findings = find(simulation)
        if staging:
            write_results(simulation, findings, staging)
    if as_json:
        typer.echo(json.dumps(summary(simulation), indent=2))
        typer.echo(f"results: {folder}" if folder else "results are not kept: no --out DIR", err=True)
    else:
        print_report(simulation, findings, folder)
