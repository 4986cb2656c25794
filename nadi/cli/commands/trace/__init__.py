"""`nadi trace`: the tools for Chakra traces, some to a module; each is a function, and `_COMMANDS` lists them all."""

from collections.abc import Callable

import typer

from nadi.cli.commands.trace import contents, imitation, recording, transformation

_COMMANDS: dict[str, Callable[..., None]] = {
    "check": contents.check,
    "collect": recording.collect,
    "convert": transformation.convert,
    "expand": transformation.expand,
    "graph": contents.graph,
    "merge": transformation.merge,
    "obfuscate": imitation.obfuscate,
    "reduce": transformation.reduce_,
    "replay": recording.replay,
    "select": imitation.select,
    "show": contents.show,
    "slice": transformation.slice_,
    "split": transformation.split,
    "stats": contents.stats,
    "synth": imitation.synth,
    "timeline": contents.timeline,
}
_OTHERS_OPTIONS = {"ignore_unknown_options": True}  # of a command that takes another one


def register(app: typer.Typer) -> None:
    """Add the group of commands.

    Args:
        app: The application of typer.
    """
    group = typer.Typer(help="Inspect, generate and transform Chakra execution traces and trace sets.")
    for name, command in _COMMANDS.items():
        group.command(name, context_settings=_OTHERS_OPTIONS if name == "collect" else None)(command)
    app.add_typer(group, name="trace")
