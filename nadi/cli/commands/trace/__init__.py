"""`nadi trace`: the tools for Chakra traces, one module each, like the commands in `nadi.cli.commands`."""

import sys

import typer

from nadi.cli.commands import add_commands


def register(app: typer.Typer) -> None:
    """Add the group of commands.

    Args:
        app: The application of typer.
    """
    group = typer.Typer(help="Inspect, generate and transform Chakra execution traces and trace sets.", callback=_group)
    add_commands(group, sys.modules[__name__])
    app.add_typer(group, name="trace")


def _group() -> None:
    """Enable the compiled trace reader before any of the commands."""
    from nadi.simulation.trace_decoding import use_compiled_decoder

    use_compiled_decoder()
