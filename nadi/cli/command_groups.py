"""A group of commands that are imported when one of them is asked for, so that `nadi --help` stays fast."""

from collections.abc import Callable, MutableMapping
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group


def group_of(fill: Callable[[typer.Typer], None], about: str, before: Callable[[], None]) -> typer.Typer:
    """A group for `app.add_typer`.

    Args:
        fill: adds the commands, when they are asked for.
        about: its help.
        before: called before any of the commands.
    """

    class Later(TyperGroup):
        """Has its commands from `fill`."""

        @cached_property
        def _found(self) -> MutableMapping[str, Any]:
            filled = typer.Typer(rich_markup_mode=None)
            fill(filled)
            return get_group(filled).commands

        @property
        def commands(self) -> MutableMapping[str, Any]:  # type: ignore[override]  # typer's is an attribute
            """By name."""
            return self._found

        @commands.setter
        def commands(self, none: MutableMapping[str, Any]) -> None:
            """Typer sets those that it has found, which are none."""

    group = typer.Typer(help=about, cls=Later)
    group.callback()(before)
    return group
