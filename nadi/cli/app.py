"""The command-line application, built from the modules in nadi/cli/commands."""

from functools import cache
from typing import Any

import typer
from typer.main import get_command

from nadi.cli import commands


def build_app() -> typer.Typer:
    """Return the application with every module of nadi/cli/commands."""
    app = typer.Typer(
        name="nadi",
        help="Packet-level simulation of distributed AI training, driven by Chakra execution traces.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    commands.add_commands(app, commands)
    return app


@cache
def command_line() -> Any:  # noqa: ANN401 - typer's own copy of click has no public name
    """Return the command, built once per process, because building takes longer than many commands."""
    return get_command(build_app())


def _version(asked: bool) -> None:
    if asked:
        from nadi.cli.version import version_with_commit

        typer.echo(f"nadi {version_with_commit()}")
        raise typer.Exit


def _options(
    *,
    version: bool = typer.Option(
        False, "--version", help="Print the version and commit, and exit.", is_eager=True, callback=_version
    ),
) -> None:
    """Define the options of `nadi` itself; typer needs a function with their parameters."""
