"""Text of `nadi trace convert`, `slice` and `reduce`."""

from collections.abc import Mapping, Sequence
from typing import Any

from et.reshape import ReduceResult, SliceResult
from nadi.terminal.tables import FittedTable, facts, name_column

_MAX_ROWS = 64


def render_sliced(folder: str, parts: Sequence[SliceResult]) -> FittedTable:
    """Return a table with a row per file of a slice."""
    nodes = "nodes", "kept", ("for partners", 2), ("without partners", 2)
    dependencies = ("bridged", 1), ("joints", 3), ("dangling", 4)
    table = FittedTable(f"slice in {folder}", name_column("file"), *nodes, *dependencies)
    for part in parts[:_MAX_ROWS]:
        counts = part.nodes, part.kept, part.for_partners, part.without_partners
        table.add_row(part.file.path.name, *counts, part.added, part.joints, part.dangling)
    table.note_more(len(parts) - _MAX_ROWS, "files")
    return table


def render_reduced(folder: str, results: Mapping[str, ReduceResult]) -> FittedTable:
    """Return a table with a row per reduced file."""
    nodes = "nodes", "left", ("without time", 2), ("fused", 2)
    dependencies = "dependencies", ("left", 1), ("implied", 3)
    table = FittedTable(f"reduced traces in {folder}", name_column("file"), *nodes, *dependencies)
    for name, result in list(results.items())[:_MAX_ROWS]:
        counts = result.nodes, result.kept, result.dropped, result.fused
        table.add_row(name, *counts, result.dependencies, result.kept_dependencies, result.implied)
    table.note_more(len(results) - _MAX_ROWS, "files")
    kept_all = [name for name, result in results.items() if result.reordered]
    if kept_all:
        table.notes.append(
            f"{kept_all[0]}{f' and {len(kept_all) - 1} more' if len(kept_all) > 1 else ''}: all nodes stay, "
            "because without some of them communications would come in another order"
        )
    return table


def render_converted(result: Mapping[str, Any]) -> FittedTable:
    """Return a table of inputs and outputs, with notes on what the conversion lost."""
    files = result["files"]
    shown = files[0] if len(files) == 1 else f"{files[0]} .. {files[-1]} ({len(files)} files)"
    rows = [("from", result["from"]), ("to", result["to"]), ("NPUs", str(result["npus"]))]
    rows += [("groups", str(result["groups"]))] if result["groups"] else []
    rows += [("written", f"{result['folder']}/{shown}")]
    table = facts("Converted", rows)
    table.notes.extend(result["notes"])
    return table
