"""`nadi trace`: the tools for Chakra traces, one module each, found by looking into this folder.

A module has `register(group)`, which adds its commands to the group. It is imported when a command of the group is
asked for, and imports what a command needs when the command runs, so that `nadi --help` stays fast.
"""

import importlib
import pkgutil

import typer

from nadi.cli.command_groups import group_of

_HELP = "Chakra execution traces and trace sets: look at them, make them, change them."


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(group_of(_fill, _HELP, _group), name="trace")


def _fill(group: typer.Typer) -> None:
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        importlib.import_module(f"{__name__}.{module.name}").register(group)


def _group() -> None:
    """Before any of the commands: large traces are read by a kernel."""
    from nadi.simulation.trace_decoding.compiled import use_compiled_decoder

    use_compiled_decoder()
