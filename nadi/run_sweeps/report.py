"""What the terminal says of a sweep: its points, the best first."""

import numpy as np
import pyarrow as pa

from nadi.pages.run_sweep import keys_of, label, main_figure, told
from nadi.terminal.readable import figure_text
from nadi.terminal.tables import Column, FittedTable

MOST_ROWS = 40


def render(table: pa.Table) -> FittedTable:
    """The points with their values and figures; of many, the best."""
    keys, main = keys_of(table), main_figure(table)
    shown = told(table)
    columns = [Column(key, form="name") for key in keys]
    columns += [Column(label(figure), rank) for rank, figure in enumerate(shown)]
    made = FittedTable("points, the best first", *columns, Column("error", 1, "text"), whole="--json")
    values = table[main.name].to_numpy(zero_copy_only=False).astype(np.float64) if main else np.zeros(len(table))
    cost = values if main is None or main.is_cost else -values
    for at in np.argsort(np.where(np.isnan(cost), np.inf, cost), kind="stable")[:MOST_ROWS].tolist():
        cells = [str(table[key][at].as_py()) for key in keys]
        cells += [figure_text(figure.form, table[figure.name][at].as_py()) for figure in shown]
        made.add_row(*cells, table["error"][at].as_py() or "")
    return made
