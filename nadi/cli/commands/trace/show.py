"""`nadi trace show`: what is in a trace or a trace set."""

import json
from pathlib import Path

import typer


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(show)


def show(
    file: Path = typer.Argument(metavar="FILE|DIR", help="A trace, NAME.<npu>.et or .et.gz; or the folder of a set."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Counts by type, bytes by collective, dependencies, and the first nodes of a trace; of a set its traces."""
    import et
    from nadi.reports.text.trace import render, render_set
    from nadi.terminal.tables import console
    from workload.trace_sets.files import describe_set, is_set

    described = describe_set(file) if is_set(file) else et.describe(file)
    if as_json:
        typer.echo(json.dumps(described, indent=2))
    else:
        console().print(render_set(described) if is_set(file) else render(described))
