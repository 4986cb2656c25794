"""Text of `nadi explain`."""

from typing import Any

from rich.console import Group, RenderableType

from nadi.terminal import FittedTable, in_unit, name_column, text_column, time_text, time_unit

MAX_ROWS = 20


def render(document: dict[str, Any]) -> RenderableType:
    """Return the document of nadi.insight.explanation.document as something that a rich Console prints."""
    whole = time_text(document["finish_time_ps"])
    head = f"{whole}: the critical path has {document['pieces']:,} pieces on {len(document['npus']):,} NPUs"
    what_if = what_if_table(document)
    what_if.notes.append("predicted from the run's dependencies and closed forms, not simulated again")
    unit = time_unit(row["time_ps"] for row in document["by_bound"])
    table = FittedTable("time by bound", name_column("bound"), f"time ({unit.name})", "share")
    for row in document["by_bound"]:
        table.add_row(row["bound"], in_unit(row["time_ps"], unit), f"{row['share']:.1%}")
    return Group(head, path_table(document, MAX_ROWS), table, what_if)


def path_table(document: dict[str, Any], max_rows: int) -> FittedTable:
    """Return the pieces of the critical path by activity and operation.

    Args:
        document: Document of nadi.insight.explanation.
        max_rows: Maximum number of rows of the table.
    """
    rows = document["by_what"][:max_rows]
    unit = time_unit(row["time_ps"] for row in rows)
    columns = ("pieces", 2), f"time ({unit.name})", "share", text_column("main bound", 1)
    title = "composition of the critical path"
    table = FittedTable(title, name_column("activity"), name_column("operation"), *columns)
    for row in rows:
        time = in_unit(row["time_ps"], unit)
        table.add_row(row["what"], row["sort"], row["count"], time, f"{row['share']:.1%}", row["bound"])
    return table


def what_if_table(document: dict[str, Any]) -> FittedTable:
    """Return the predicted time of the run after each change.

    Args:
        document: Document of nadi.insight.explanation.
    """
    table = FittedTable("what if", text_column("change"), "predicted time", "saving")
    for row in document["what_if"]:
        table.add_row(row["change"], time_text(row["finish_time_ps"]), f"{row['gain']:.2%}")
    return table
