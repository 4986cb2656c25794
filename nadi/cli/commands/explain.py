"""`nadi explain`: the critical path of a run and its bounds."""

import json
from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explain)


def explain(
    folder: Path = typer.Argument(metavar="DIR", help="Results of `nadi run --out DIR`."),
    faster: float = typer.Option(1.1, min=1.0, max=100.0, metavar="TIMES", help="Speed-up factor of each `what if`."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Show the critical path of a run across NPUs, the bound of each piece, and which changes would shorten the run."""
    from nadi.insight.explanation.document import explain as explained
    from nadi.insight.runs import Run
    from nadi.launching.progress import progress
    from nadi.reports.text.explanation import render
    from nadi.terminal.tables import console

    with progress(quiet=quiet) as shown:
        document = explained(Run(folder), faster, shown.begin)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        console().print(render(document))
