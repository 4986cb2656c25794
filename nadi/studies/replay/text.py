"""Terminal table of `nadi trace replay`."""

from typing import Any

from nadi.terminal.readable import in_unit, size_text, time_text, time_unit
from nadi.terminal.tables import FittedTable, name_column


def render(document: dict[str, Any]) -> FittedTable:
    """Return the table of a document from nadi.studies.replay.outcome."""
    rows = document["operations"]
    unit = time_unit([row["transfer_ps"] for row in rows])
    times = f"transfer ({unit.name})", (f"longest wait ({unit.name})", 1)
    title = f"replay over {document['over']}, {document['ranks']} ranks, median times"
    table = FittedTable(title, name_column("kind"), "size", "members", "count", *times, ("busbw (GB/s)", 2))
    for row in rows:
        times_each = (in_unit(row[key], unit) for key in ("transfer_ps", "wait_ps"))
        counts = size_text(row["bytes"]), row["members"], row["count"]
        table.add_row(row["kind"], *counts, *times_each, f"{row['busbw_Bps'] / 1e9:,.3f}")
    longest = max(row["time_ps"] for row in document["rank_rows"])
    table.notes.append(f"the slowest rank finished after {time_text(longest)}")
    return table
