"""The command-line application, built from the modules in nadi/cli/commands."""

import subprocess
from functools import cache
from typing import Any

import typer
from typer.main import get_command

from nadi import __version__
from nadi.cli import commands
from nadi.launching.installation import COMMIT, PACKAGE

_SHORT_HASH_DIGITS = 12


def build_app() -> typer.Typer:
    """Return the application with every module of nadi/cli/commands."""
    app = typer.Typer(
        cls=commands.AllCommands,
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


def _version(is_asked: bool) -> None:
    """Print version and commit, and exit, if the user asks for them."""
    if is_asked:
        typer.echo(f"nadi {__version__} (commit {_commit() or 'unknown'})")
        raise typer.Exit


def _commit() -> str:
    """Return the abbreviated hash of the checkout, or of the one that a wheel was built from; empty if unknown."""
    if (PACKAGE.parent / ".git").exists():
        command = ["git", "-C", str(PACKAGE.parent), "rev-parse", f"--short={_SHORT_HASH_DIGITS}", "HEAD"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603 - fixed words
        except (OSError, subprocess.SubprocessError):
            return ""
    built_from = PACKAGE / COMMIT
    return built_from.read_text(encoding="utf-8").strip() if built_from.exists() else ""


def _options(
    *,
    version: bool = typer.Option(
        False, "--version", help="Print the version and commit, and exit.", is_eager=True, callback=_version
    ),
) -> None:
    """Define the options of `nadi` itself; typer needs a function with their parameters."""
