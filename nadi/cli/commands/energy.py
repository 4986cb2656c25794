"""`nadi energy`: energy and cost of a run."""

import json
from pathlib import Path

import typer

from nadi.cli.options import named_path


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(energy)


def energy(
    folder: Path | None = typer.Argument(
        None, metavar="[DIR]", show_default=False, help="Results of `nadi run --out DIR`."
    ),
    table: Path | None = typer.Option(
        None, metavar="FILE", parser=named_path, help="TOML file of powers and prices that override the defaults."
    ),
    show_table: bool = typer.Option(False, "--show-table", help="Print the default table with its sources."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print energy and cost of a run and of its step: GPUs, hosts, NICs, switches, optics and the data centre."""
    from nadi.errors import ConfigError

    if show_table:
        from nadi.energy.table import DEFAULT

        typer.echo(DEFAULT.read_text(encoding="utf-8"), nl=False)
        return
    if folder is None:
        raise ConfigError("nadi energy: found no folder; expected results of `nadi run --out DIR`, or --show-table")
    from nadi.insight.runs import Run
    from nadi.insight.runs.energy import energy_of
    from nadi.reports.text.energy import render
    from nadi.terminal.tables import console

    document = energy_of(Run(folder), table).document()
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        console().print(render(document))
