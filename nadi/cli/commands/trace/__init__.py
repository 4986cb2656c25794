"""`nadi trace`: the tools for Chakra traces, one module each; this file imports all modules of the folder.

A module has `register(group)`, which adds its commands to the group. It imports the modules of a command when the
command runs, so that `nadi --help` stays fast.
"""

import importlib
import pkgutil

import typer

_HELP = "Inspect, generate and transform Chakra execution traces and trace sets."


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help=_HELP, callback=_group)
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        importlib.import_module(f"{__name__}.{module.name}").register(group)
    app.add_typer(group, name="trace")


def _group() -> None:
    """Enable the compiled trace reader before any of the commands."""
    from nadi.simulation.trace_decoding import use_compiled_decoder

    use_compiled_decoder()
