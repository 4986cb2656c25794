"""`nadi trace`: the tools for Chakra traces, one module each, like the commands in `nadi.cli.commands`."""

import sys

import typer

from nadi.cli.commands import add_commands


def register(app: typer.Typer) -> None:
    """Add the group of commands.

    Args:
        app: The application of typer.
    """
    group = typer.Typer(help="Inspect, generate and transform Chakra execution traces and trace sets.")
    add_commands(group, sys.modules[__name__])
    app.add_typer(group, name="trace")
