"""Text of `nadi trace convert`."""

from collections.abc import Mapping
from typing import Any

from nadi.terminal.tables import FittedTable, facts


def render(result: Mapping[str, Any]) -> FittedTable:
    """Return a table of inputs and outputs, with notes on what the conversion lost."""
    files = result["files"]
    shown = files[0] if len(files) == 1 else f"{files[0]} .. {files[-1]} ({len(files)} files)"
    rows = [("from", result["from"]), ("to", result["to"]), ("NPUs", str(result["npus"]))]
    rows += [("groups", str(result["groups"]))] if result["groups"] else []
    rows += [("written", f"{result['folder']}/{shown}")]
    table = facts("Converted", rows)
    table.notes.extend(result["notes"])
    return table
