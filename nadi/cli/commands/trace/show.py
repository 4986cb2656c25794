"""`nadi trace show`: print the contents of a trace or a trace set."""

import json
from pathlib import Path

import typer


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(show)


def show(
    file: Path = typer.Argument(metavar="FILE|DIR", help="Trace NAME.<npu>.et or .et.gz, or folder of a trace set."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show counts by type, bytes by collective, dependencies and first nodes of a trace, or the traces of a set."""
    import et
    from nadi.reports.text.trace import render, render_set
    from nadi.terminal.tables import console
    from workload.trace_sets.files import describe_set, is_set

    described = describe_set(file) if is_set(file) else et.describe(file)
    if as_json:
        typer.echo(json.dumps(described, indent=2))
    else:
        console().print(render_set(described) if is_set(file) else render(described))
