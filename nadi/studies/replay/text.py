"""What `nadi trace replay` prints."""

from typing import Any

from nadi.terminal.readable import in_unit, size_text, time_text, time_unit
from nadi.terminal.tables import FittedTable, TableColumn


def render(found: dict[str, Any]) -> FittedTable:
    """The document of nadi.studies.replay.outcome as a table."""
    rows = found["operations"]
    unit = time_unit([row["transfer_ps"] for row in rows])
    table = FittedTable(
        f"replayed over {found['over']} by {found['ranks']} ranks, medians",
        TableColumn("kind", form="name"),
        "size",
        "members",
        "count",
        f"transfer ({unit.name})",
        TableColumn(f"longest wait ({unit.name})", 1),
        TableColumn("busbw (GB/s)", 2),
    )
    for row in rows:
        table.add_row(
            row["kind"],
            size_text(row["bytes"]),
            f"{row['members']:,}",
            f"{row['count']:,}",
            in_unit(row["transfer_ps"], unit),
            in_unit(row["wait_ps"], unit),
            f"{row['busbw_Bps'] / 1e9:,.3f}",
        )
    longest = max(row["time_ps"] for row in found["rank_rows"])
    table.notes.append(f"the last rank was done after {time_text(longest)}")
    return table
