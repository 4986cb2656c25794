"""`nadi energy`: energy and cost of a run."""

from pathlib import Path

import typer

from nadi.cli.options import AsJson, named_path
from nadi.cli.output import print_document
from nadi.errors import ConfigError

_FOLDER = "Results of `nadi run --out DIR`."
_TABLE = "TOML file of powers and prices that override the defaults."


def energy(
    folder: Path | None = typer.Argument(None, metavar="[DIR]", show_default=False, help=_FOLDER),
    table: Path | None = typer.Option(None, metavar="FILE", parser=named_path, help=_TABLE),
    show_table: bool = typer.Option(False, "--show-table", help="Print the default table with its sources."),
    as_json: AsJson = False,
) -> None:
    """Print energy and cost of a run and of its step: GPUs, hosts, NICs, switches, optics and the data centre."""
    from nadi.energy import DEFAULT_TABLE
    from nadi.insight.runs import Run, energy_of
    from nadi.reports.text.energy import energy_report

    if show_table:
        typer.echo(DEFAULT_TABLE.read_text(encoding="utf-8"), nl=False)
        return
    if folder is None:
        raise ConfigError("nadi energy: found no folder; expected results of `nadi run --out DIR`, or --show-table")
    print_document(energy_of(Run(folder), table).document(), energy_report, as_json=as_json)
