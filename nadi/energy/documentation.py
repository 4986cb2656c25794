"""The default table of powers and prices as Markdown, for the documentation."""

from collections.abc import Iterator
from typing import Any

from nadi.energy.table import EnergyTable, read_table

BASES = ("published", "measured", "derived", "assumed")
"""Words that a source may begin with: how its number was obtained."""


def documentation() -> str:
    """Return a Markdown table with a row per number: value, plausible range, and source."""
    table = read_table()
    lines = ["| number | value | range | how | from |", "| --- | --- | --- | --- | --- |"]
    for path, value in numbers(table):
        basis, _, text = table.sources[path].partition(": ")
        bounds = table.ranges.get(path)
        between = f"{bounds[0]:g} to {bounds[1]:g}" if bounds else ""
        lines.append(f"| `{path}` | {value:g} | {between} | {basis} | {text} |")
    return "\n".join(lines) + "\n"


def numbers(table: EnergyTable) -> Iterator[tuple[str, float]]:
    """Yield the path and value of each number of a table, except the rates that other numbers refer to."""
    tree = table.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True, exclude={"sources", "ranges"})
    yield from _leaves(tree, "")


def _leaves(tree: dict[str, Any], path: str) -> Iterator[tuple[str, float]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        elif key != "rate":
            yield f"{path}{key}", float(value)
