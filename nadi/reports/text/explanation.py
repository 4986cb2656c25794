"""Text of `nadi explain`."""

from typing import Any

from rich.console import Group, RenderableType

from nadi.terminal.readable import in_unit, time_text, time_unit
from nadi.terminal.tables import FittedTable, TableColumn

MAX_ROWS = 20


def render(document: dict[str, Any]) -> RenderableType:
    """Return the document of nadi.insight.explanation.document as something that a rich Console prints."""
    whole = time_text(document["finish_time_ps"])
    head = f"{whole}: the critical path has {document['pieces']:,} pieces on {len(document['npus']):,} NPUs"
    parts: list[RenderableType] = [head, _by_what(document), _by_bound(document), _what_if(document)]
    return Group(*parts)


def _by_what(document: dict[str, Any]) -> FittedTable:
    rows = document["by_what"][:MAX_ROWS]
    unit = time_unit(row["time_ps"] for row in rows)
    table = FittedTable(
        "composition of the critical path",
        TableColumn("activity", form="name"),
        TableColumn("operation", form="name"),
        TableColumn("pieces", 2),
        f"time ({unit.name})",
        "share",
        TableColumn("main bound", 1, "text"),
    )
    for row in rows:
        time = in_unit(row["time_ps"], unit)
        table.add_row(row["what"], row["sort"], f"{row['count']:,}", time, f"{row['share']:.1%}", row["bound"])
    return table


def _by_bound(document: dict[str, Any]) -> FittedTable:
    unit = time_unit(row["time_ps"] for row in document["by_bound"])
    table = FittedTable("time by bound", TableColumn("bound", form="name"), f"time ({unit.name})", "share")
    for row in document["by_bound"]:
        table.add_row(row["bound"], in_unit(row["time_ps"], unit), f"{row['share']:.1%}")
    return table


def _what_if(document: dict[str, Any]) -> FittedTable:
    table = FittedTable("what if", TableColumn("change", form="text"), "predicted time", "saving")
    for row in document["what_if"]:
        table.add_row(row["change"], time_text(row["finish_time_ps"]), f"{row['gain']:.2%}")
    table.notes.append("predicted from the run's dependencies and closed forms, not simulated again")
    return table
