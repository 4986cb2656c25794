"""Terminal table of `nadi trace replay`."""

from typing import Any

from nadi.terminal.readable import in_unit, size_text, time_text, time_unit
from nadi.terminal.tables import FittedTable, TableColumn


def render(document: dict[str, Any]) -> FittedTable:
    """Return the table of a document from nadi.studies.replay.outcome."""
    rows = document["operations"]
    unit = time_unit([row["transfer_ps"] for row in rows])
    table = FittedTable(
        f"replay over {document['over']}, {document['ranks']} ranks, median times",
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
    longest = max(row["time_ps"] for row in document["rank_rows"])
    table.notes.append(f"the slowest rank finished after {time_text(longest)}")
    return table
