"""`nadi trace`: look at Chakra traces."""

import json
from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Look at Chakra execution traces.")
    group.command()(show)
    app.add_typer(group, name="trace")


def show(
    file: Path = typer.Argument(metavar="FILE", help="A trace, PREFIX.<npu>.et or .et.gz."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Counts by type, bytes by collective, dependencies, and the first nodes of a trace."""
    import et
    from nadi.tables import console
    from nadi.trace_report import render

    description = et.describe(file)
    if as_json:
        typer.echo(json.dumps(description, indent=2))
    else:
        console().print(render(description))
