"""The default table in Markdown, for the end of docs/explanation/energy.md."""

from collections.abc import Iterator
from typing import Any

from nadi.energy.table import EnergyTable, read_table

BASES = ("published", "measured", "derived", "assumed")
"""With which a source begins."""


def documentation() -> str:
    """A row for each number: its value, what others may find, and where it is from."""
    table = read_table()
    lines = ["| number | value | range | how | from |", "| --- | --- | --- | --- | --- |"]
    for path, value in numbers(table):
        basis, _, text = table.sources[path].partition(": ")
        least_most = table.ranges.get(path)
        between = f"{least_most[0]:g} to {least_most[1]:g}" if least_most else ""
        lines.append(f"| `{path}` | {value:g} | {between} | {basis} | {text} |")
    return "\n".join(lines) + "\n"


def numbers(table: EnergyTable) -> Iterator[tuple[str, float]]:
    """Path and value of each number of a table but rates, which are units."""
    tree = table.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True, exclude={"sources", "ranges"})
    yield from _leaves(tree, "")


def _leaves(tree: dict[str, Any], path: str) -> Iterator[tuple[str, float]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        elif key != "rate":
            yield f"{path}{key}", float(value)
