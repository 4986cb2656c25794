"""Terminal table of a sweep: its points, ranked."""

import pyarrow as pa

from nadi.insight.runs.figures import Figure, order
from nadi.studies.sweeps.page import figures_shown, keys_of, label
from nadi.terminal.readable import figure_text
from nadi.terminal.tables import FittedTable, TableColumn

MAX_ROWS = 40  # maximum number of points in the printed table


def render(table: pa.Table, ranking_figure: Figure | None) -> FittedTable:
    """Return the table of the best points with their values and figures.

    `table`: Table with a row for each point.
    `ranking_figure`: Figure that ranks the points; None if no point is finished.
    """
    keys, shown = keys_of(table), figures_shown(table)
    columns = [TableColumn(key, form="name") for key in keys]
    columns += [TableColumn(label(each), rank) for rank, each in enumerate(shown)]
    title = f"points, ranked by {label(ranking_figure)}" if ranking_figure else "points"
    result = FittedTable(title, *columns, TableColumn("error", 1, "text"), full_output_option="--json")
    for row in order(table, ranking_figure)[:MAX_ROWS].tolist():
        cells = [str(table[key][row].as_py()) for key in keys]
        cells += [figure_text(each.form, table[each.name][row].as_py()) for each in shown]
        result.add_row(*cells, table["error"][row].as_py() or "")
    return result
