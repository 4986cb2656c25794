"""Parsing of user-written TOML, with a limit on dotted keys, in whose parts Python's parser takes quadratic time."""

import re
import tomllib
from typing import Any

MAX_KEY_PARTS = 64  # parts of a dotted key, a.b.c; run files need three, and JSON schemas of other tools fewer than ten

MAX_LEVELS = 200  # nested tables and arrays; code recurses once per level, and Python allows 1,000 levels

_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^']++|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tree of a TOML document; ValueError if it is wrong or too large, RecursionError if nested too deep.

    Args:
        text: The complete document.
    """
    if text.count(".") >= MAX_KEY_PARTS:
        plain = _STRINGS_AND_COMMENTS.sub(lambda match: "" if match[0].startswith("#") else "s", text)
        long_key = _LONG_KEY.search(plain)
        if long_key is not None:
            begin = long_key[0][:20]
            raise ValueError(f"a dotted key of more than {MAX_KEY_PARTS} parts ({begin}...), expected fewer")
    tree = tomllib.loads(text)
    if "{" in text and _levels(tree) > MAX_LEVELS:
        raise ValueError(f"tables within more than {MAX_LEVELS} others, expected fewer")
    return tree


def _levels(tree: dict[str, Any]) -> int:
    """Return the depth of nested tables and arrays."""
    levels = 0
    here: list[dict[str, Any] | list[Any]] = [tree]
    while here:
        inner = [value for item in here for value in (item.values() if isinstance(item, dict) else item)]
        here = [value for value in inner if isinstance(value, dict | list)]
        levels += 1
    return levels
