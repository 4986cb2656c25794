"""How options of several commands are read."""

from pathlib import Path

import typer

from nadi.errors import ConfigError

FORCE_HELP = "Try what would take more memory than is free, or more than a day."

SBATCH_HELP = "Further option of sbatch for the script, without dashes, as qos=high or exclusive. Repeatable."


def named_path(text: str) -> Path:
    """A path that has a name: nothing is not the folder in hand.

    Raises:
        typer.BadParameter: an empty text.
    """
    if not text.strip():
        raise typer.BadParameter("found an empty path; expected a name, or . for this folder")
    return Path(text)


def number_ranges(option: str, text: str) -> tuple[tuple[int, int], ...] | None:
    """Ranges (first, last) of a list such as 0-7,16; None where nothing is said.

    Raises:
        ConfigError: it is no such list.
    """
    if not text.strip():
        return None
    found = []
    for part in text.split(","):
        ends = part.strip().split("-")
        if not 1 <= len(ends) <= 2 or not all(end.strip().isdecimal() and len(end) < 20 for end in ends):
            raise ConfigError(f"{option} {text}: found {part.strip()!r}; expected numbers and ranges, as 0-7,16")
        first, last = int(ends[0]), int(ends[-1])
        if last < first or last >= 1 << 64:
            raise ConfigError(f"{option} {text}: found the range {part.strip()}; expected one that ascends, as 0-7")
        found.append((first, last))
    return tuple(found)
