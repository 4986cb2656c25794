"""The points of a sweep on the terminal, ranked."""

import pyarrow as pa

from nadi.insight.runs.figures import Figure
from nadi.insight.runs.ranking import order
from nadi.studies.sweeps.page import figures_shown, keys_of, label
from nadi.terminal.readable import figure_text
from nadi.terminal.tables import FittedTable, TableColumn

MOST_ROWS = 40


def render(table: pa.Table, figure: Figure | None) -> FittedTable:
    """Return the points with their values and figures; of many, the best.

    Args:
        table: Table with a row for each point.
        figure: Figure by which points are ranked; None = none is finished.
    """
    keys, shown = keys_of(table), figures_shown(table)
    columns = [TableColumn(key, form="name") for key in keys]
    columns += [TableColumn(label(each), rank) for rank, each in enumerate(shown)]
    title = f"points, ranked by {label(figure)}" if figure else "points"
    made = FittedTable(title, *columns, TableColumn("error", 1, "text"), full_output_option="--json")
    for at in order(table, figure)[:MOST_ROWS].tolist():
        cells = [str(table[key][at].as_py()) for key in keys]
        cells += [figure_text(each.form, table[each.name][at].as_py()) for each in shown]
        made.add_row(*cells, table["error"][at].as_py() or "")
    return made
