"""Terminal table of a sweep: its points, ranked."""

import pyarrow as pa

from nadi.insight.runs.figures import Figure, order
from nadi.studies.sweeps.page import figures_shown, keys_of, label
from nadi.terminal.readable import figure_text
from nadi.terminal.tables import FittedTable, TableColumn

MAX_ROWS = 40  # maximum number of points in the printed table


def render(points: pa.Table, ranking_figure: Figure | None) -> FittedTable:
    """Return the table of the best points with their values and figures; ranking_figure: None if none is finished."""
    keys, shown = keys_of(points), figures_shown(points)
    columns = [TableColumn(key, form="name") for key in keys]
    columns += [TableColumn(label(each), rank) for rank, each in enumerate(shown)]
    title = f"points, ranked by {label(ranking_figure)}" if ranking_figure else "points"
    result = FittedTable(title, *columns, TableColumn("error", 1, "text"), full_output_option="--json")
    for row in order(points, ranking_figure)[:MAX_ROWS].tolist():
        cells = [str(points[key][row].as_py()) for key in keys]
        cells += [figure_text(each.form, points[each.name][row].as_py()) for each in shown]
        result.add_row(*cells, points["error"][row].as_py() or "")
    return result
