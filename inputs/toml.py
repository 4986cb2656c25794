"""TOML of a user, with a bound on dotted keys, which Python's parser needs a time for that grows with their square."""

import re
import tomllib
from typing import Any

MOST_KEY_PARTS = 64
"""Parts of a dotted key, a.b.c; run files need three, and JSON schemas of other tools fewer than ten."""

MOST_LEVELS = 200
"""Tables and arrays within each other; what reads the tree takes one call for each level, and Python allows 1,000."""

_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^']++|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_KEY_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Args:
        text: The document.

    Returns:
        The tree of its tables.

    Raises:
        ValueError: The text is not TOML, holds an integer of more digits than Python reads, has a dotted key of more
            than MOST_KEY_PARTS parts, or more than MOST_LEVELS levels.
        RecursionError: Arrays or inline tables are nested too deep.
    """
    if text.count(".") >= MOST_KEY_PARTS:
        plain = _STRINGS_AND_COMMENTS.sub(lambda found: "" if found[0].startswith("#") else "s", text)
        found = _LONG_KEY.search(plain)
        if found is not None:
            begin = found[0][:20]
            raise ValueError(f"a dotted key of more than {MOST_KEY_PARTS} parts ({begin}...), expected fewer")
    tree = tomllib.loads(text)
    if "{" in text and _levels(tree) > MOST_LEVELS:
        raise ValueError(f"tables within more than {MOST_LEVELS} others, expected fewer")
    return tree


def _levels(tree: dict[str, Any]) -> int:
    """Return how many tables and arrays are within each other."""
    levels = 0
    here: list[dict[str, Any] | list[Any]] = [tree]
    while here:
        inner = [value for each in here for value in (each.values() if isinstance(each, dict) else each)]
        here = [value for value in inner if isinstance(value, dict | list)]
        levels += 1
    return levels
