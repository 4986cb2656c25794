"""How options of several commands are read."""

from pathlib import Path

import typer

FORCE_HELP = "Try what would take more memory than is free, or more than a day."


def named_path(text: str) -> Path:
    """A path that has a name: nothing is not the folder in hand.

    Raises:
        typer.BadParameter: an empty text.
    """
    if not text.strip():
        raise typer.BadParameter("found an empty path; expected a name, or . for this folder")
    return Path(text)
