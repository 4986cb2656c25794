"""Text of `nadi trace slice` and `nadi trace reduce`."""

from collections.abc import Mapping, Sequence

from et.reshape import ReduceResult, SliceResult
from nadi.terminal.tables import FittedTable, TableColumn

_MAX_ROWS = 64


def render_sliced(folder: str, parts: Sequence[SliceResult]) -> FittedTable:
    """Return a table with a row per file of a slice."""
    columns = (
        TableColumn("file", form="name"),
        "nodes",
        "kept",
        TableColumn("for partners", 2),
        TableColumn("without partners", 2),
        TableColumn("bridged", 1),
        TableColumn("joints", 3),
        TableColumn("dangling", 4),
    )
    table = FittedTable(f"slice in {folder}", *columns)
    for part in parts[:_MAX_ROWS]:
        before = (part.nodes, part.kept, part.for_partners, part.without_partners)
        numbers = (*before, part.added, part.joints, part.dangling)
        table.add_row(part.file.path.name, *(f"{number:,}" for number in numbers))
    _note_others(table, len(parts))
    return table


def render_reduced(folder: str, results: Mapping[str, ReduceResult]) -> FittedTable:
    """Return a table with a row per reduced file."""
    columns = (
        TableColumn("file", form="name"),
        "nodes",
        "left",
        TableColumn("without time", 2),
        TableColumn("fused", 2),
        "dependencies",
        TableColumn("left", 1),
        TableColumn("implied", 3),
    )
    table = FittedTable(f"reduced traces in {folder}", *columns)
    for name, result in list(results.items())[:_MAX_ROWS]:
        nodes = (result.nodes, result.kept, result.dropped, result.fused)
        numbers = (*nodes, result.dependencies, result.kept_dependencies, result.implied)
        table.add_row(name, *(f"{number:,}" for number in numbers))
    _note_others(table, len(results))
    kept_all = [name for name, result in results.items() if result.reordered]
    if kept_all:
        table.notes.append(
            f"{kept_all[0]}{f' and {len(kept_all) - 1} more' if len(kept_all) > 1 else ''}: all nodes stay, "
            "because without some of them communications would come in another order"
        )
    return table


def _note_others(table: FittedTable, many: int) -> None:
    if many > _MAX_ROWS:
        table.notes.append(f"and {many - _MAX_ROWS:,} more files (--json has all)")
