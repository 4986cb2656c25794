"""The commands, a module for each family of them, and the command line that has them all.

A module with several commands has `register(group)`, which adds them; its name is that of one of them. A module with
one command has a function of its own name instead. Modules import what a command needs when the command runs, because
`nadi --help` must start neither Numba nor MPI.
"""

import importlib
import pkgutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from nadi import __version__
from nadi.cli import importers
from nadi.inputs import plug_ins
from nadi.launching.installation import COMMIT, PACKAGE

_SHORT_HASH_DIGITS = 12
_KIND = "command"
_KINDS = (_KIND, importers.KIND)  # what a first word may name


def build_app() -> typer.Typer:
    """Return the application with every module of nadi/cli/commands."""
    app = typer.Typer(
        cls=AllCommands,
        name="nadi",
        help="Packet-level simulation of distributed AI training, driven by Chakra execution traces.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for info in pkgutil.iter_modules(__path__):
        _add(app, info.name, importlib.import_module(f"{__name__}.{info.name}"))
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


class AllCommands(TyperGroup):
    """Commands and importers, of Nadi and of installed packages; FILE.py in place of a name is the one in that file."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - of typer
        """Add the importers of Nadi to the commands of its modules.

        Args:
            settings: The arguments of typer.
        """
        super().__init__(**settings)
        for name in plug_ins.own_files(importers.KIND):
            self.add_command(importers.importer_command(name, plug_ins.own_module(importers.KIND, name)), name)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer has its own click
        """Return the names of all commands but those that `get_command` refuses, so that the others have a help.

        Args:
            ctx: The context of click.
        """
        names = {*super().list_commands(ctx), *(name for kind in _KINDS for name in plug_ins.installed_names(kind))}
        return sorted(name for name in names if self._is_usable(ctx, name))

    def _is_usable(self, ctx: Any, name: str) -> bool:  # noqa: ANN401 - typer has its own click
        with suppress(plug_ins.PlugInError):
            return self.get_command(ctx, name) is not None
        return False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - typer has its own click
        """Return a command; None if there is none, PlugInError if several have the name or a file holds none.

        Args:
            ctx: The context of click.
            cmd_name: The first word of the command line.
        """
        own = super().get_command(ctx, cmd_name)
        kinds = [kind for kind in _KINDS if cmd_name in plug_ins.installed_names(kind)]
        if (own is not None) + len(kinds) > 1:
            others = "Nadi and in a package" if own is not None else "packages, as command and importer"
            raise plug_ins.PlugInError(f"command {cmd_name!r}: found in {others}; expected one of this name")
        if kinds == [importers.KIND]:
            return importers.importer_command(cmd_name, plug_ins.module(importers.KIND, cmd_name))
        return outside_command(cmd_name) if kinds or plug_ins.is_file(_KIND, cmd_name) else own


def outside_command(name: str) -> Any:  # noqa: ANN401 - typer has its own click
    """Return the command of an installed package, or of a file of the user's.

    Args:
        name: The name of the command, or the path of its file.
    """
    module, group = plug_ins.module(_KIND, name), typer.Typer(add_completion=False)
    try:
        _add(group, Path(name).stem.replace("-", "_"), module)
    except AttributeError:
        if hasattr(module, "read"):
            return importers.importer_command(name, module)
        expected = "one, register, or read of an importer"
        raise plug_ins.PlugInError(f"command {name}: no function of its name; expected {expected}") from None
    return get_command(group)


def _add(group: typer.Typer, name: str, module: ModuleType) -> None:
    """Add the commands of a module; a function that would hide one of Python's ends in an underscore, `slice_`."""
    if hasattr(module, "register"):
        module.register(group)
    else:
        group.command(name)(getattr(module, name, None) or getattr(module, f"{name}_"))
