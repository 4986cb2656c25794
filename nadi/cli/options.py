"""Help texts and parsers that several commands share."""

from pathlib import Path

import typer

from nadi.errors import ConfigError

FORCE_HELP = "Run even if the estimate exceeds the free memory or a day."

SBATCH_HELP = "Additional sbatch option without dashes, such as qos=high or exclusive. Repeatable."


def named_path(text: str) -> Path:
    """Return a path; an empty text is an error instead of the current folder.

    Raises:
        typer.BadParameter: The text is empty.
    """
    if not text.strip():
        raise typer.BadParameter("found an empty path; expected a name, or . for this folder")
    return Path(text)


def number_ranges(option: str, text: str) -> tuple[tuple[int, int], ...] | None:
    """Return the ranges (first, last) of a list such as 0-7,16; None for an empty text.

    Raises:
        ConfigError: The text is not such a list.
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
