"""What `nadi trace convert` prints."""

from collections.abc import Mapping
from typing import Any

from nadi.terminal.tables import FittedTable, facts


def render(said: Mapping[str, Any]) -> FittedTable:
    """What was made of what, and what was lost."""
    files = said["files"]
    shown = files[0] if len(files) == 1 else f"{files[0]} .. {files[-1]} ({len(files)} files)"
    rows = [("from", said["from"]), ("to", said["to"]), ("NPUs", str(said["npus"]))]
    rows += [("groups", str(said["groups"]))] if said["groups"] else []
    rows += [("written", f"{said['folder']}/{shown}")]
    table = facts("Converted", rows)
    table.notes.extend(said["notes"])
    return table
