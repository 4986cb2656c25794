"""The page of a sweep over keys: the figures of all points, and how each key moves them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.pages.explanations import COLUMNS
from nadi.pages.page import Heading, Page, Part, Plot, Section, Table, Words
from nadi.pages.series import style
from nadi.runs.figures import FIGURES, Figure
from nadi.terminal.printing import in_page
from nadi.terminal.readable import figure_text

MOST_ROWS = 500
_MAIN = ("step_time_ps", "finish_time_ps", "exposed_share", "collectives_ratio", "p99_completion_ps", "busiest_link")
_KEPT = ("point", "run", "error")


def page(table: pa.Table, title: str) -> Page:
    """A page of `nadi.run_sweeps.table.table`.

    Args:
        table: a row for each point.
        title: of the page.
    """
    keys = keys_of(table)
    done = table.filter(pc.is_null(table["error"]))
    main = main_figure(table)
    if main is None:
        return Page(title, f"{len(table):,} points, none of them finished.", [_rows(table, keys, None)])
    values = done[main.name].to_numpy()
    best = int(np.argmin(values) if main.is_cost else np.argmax(values))
    said = ", ".join(f"{key} = {done[key][best].as_py()}" for key in keys)
    best_is = f"{label(main)}, {figure_text(main.form, values[best])}, with {said}"
    lead = f"{len(done):,} of {len(table):,} points are finished. Best by {best_is}."
    by_key = Section(
        "keys", "What each key does", "Every point, by the value of a key; lines join means.", _plots(done, keys, main)
    )
    return Page(title, lead, [by_key, _rows(table, keys, main)])


def keys_of(table: pa.Table) -> list[str]:
    """The keys of the run file among the columns."""
    figures = {figure.name for figure in FIGURES}
    return [name for name in table.column_names if name not in figures and name not in _KEPT]


def main_figure(table: pa.Table) -> Figure | None:
    """The figure by which points are ranked: the step's time, else the run's; None where no point is finished."""
    known = {figure.name: figure for figure in FIGURES if figure.name in table.column_names}
    return next((known[name] for name in _MAIN if name in known), None)


def told(table: pa.Table) -> list[Figure]:
    """The figures that are not 0 or missing at every point."""
    columns = {figure: table[figure.name] for figure in FIGURES if figure.name in table.column_names}
    return [figure for figure, column in columns.items() if any(column.to_pylist())]


def label(figure: Figure) -> str:
    """Its name for people: values say their unit themselves."""
    return figure.name.removesuffix("_ps").removesuffix("_bytes").replace("_", " ")


def _plots(done: pa.Table, keys: list[str], main: Figure) -> list[Part]:
    made: list[Part] = [_plot(done, key, main) for key in keys if len(set(done[key].to_pylist())) > 1]
    if len(keys) == 2 and made:
        made.append(_map(done, keys, main))
    return made or [Words("All finished points have the same values.")]


def _plot(done: pa.Table, key: str, main: Figure) -> Plot:
    from plotly import graph_objects as go

    values, drawn = done[key].to_pylist(), go.Figure()
    order = list(dict.fromkeys(values))
    is_number = all(isinstance(value, (int, float)) for value in order if value is not None)
    order = sorted(order) if is_number else order
    of = done[main.name].to_numpy() * _factor(main)
    means = [float(np.mean(of[[value == each for value in values]])) for each in order]
    x = order if is_number else [in_page(str(each)) for each in order]
    drawn.add_scatter(
        x=values if is_number else [in_page(str(value)) for value in values],
        y=of,
        mode="markers",
        name="points",
        marker={"color": style(0).colour, "size": 8, "opacity": 0.6},
    )
    drawn.add_scatter(x=x, y=means, mode="lines+markers", name="mean", line={"color": style(1).colour})
    drawn.update_layout(margin={"t": 10, "b": 50, "l": 10, "r": 10})
    drawn.update_xaxes(title_text=in_page(key), type="linear" if is_number else "category")
    drawn.update_yaxes(title_text=_axis(main), rangemode="tozero")
    least = order[int(np.argmin(means) if main.is_cost else np.argmax(means))]
    return Plot(f"{label(main)} by {key}", drawn, f"On the mean of all other keys {key} = {least} is best.", 340)


def _map(done: pa.Table, keys: list[str], main: Figure) -> Plot:
    """Both keys of a sweep of two at once."""
    from plotly import graph_objects as go

    across, down = ([str(value) for value in done[key].to_pylist()] for key in keys)
    x, y = list(dict.fromkeys(across)), list(dict.fromkeys(down))
    z = np.full((len(y), len(x)), np.nan)
    for a, b, value in zip(across, down, done[main.name].to_numpy() * _factor(main), strict=True):
        z[y.index(b), x.index(a)] = value
    heat = go.Heatmap(x=x, y=y, z=z, colorscale="Viridis", reversescale=main.is_cost, colorbar={"title": _axis(main)})
    drawn: Any = go.Figure(heat)
    drawn.update_layout(margin={"t": 10, "b": 50, "l": 10, "r": 10})
    drawn.update_xaxes(title_text=in_page(keys[0]), type="category")
    drawn.update_yaxes(title_text=in_page(keys[1]), type="category")
    return Plot(f"{label(main)} by both keys", drawn, f"From {np.nanmin(z):,.4g} to {np.nanmax(z):,.4g} {_axis(main)}.")


def _factor(figure: Figure) -> float:
    return 1e-9 if figure.form == "time" else 1.0


def _axis(figure: Figure) -> str:
    return f"{label(figure)} (ms)" if figure.form == "time" else label(figure)


def _rows(table: pa.Table, keys: list[str], main: Figure | None) -> Section:
    shown = told(table)
    headings = [Heading(key, COLUMNS["key"], is_text=True) for key in keys]
    headings += [Heading(label(figure), f"{figure.meaning[0].upper()}{figure.meaning[1:]}.") for figure in shown]
    headings.append(Heading("error", is_text=True))
    order = np.arange(len(table))
    if main is not None:
        values = table[main.name].to_numpy(zero_copy_only=False).astype(np.float64)
        order = np.argsort(np.where(np.isnan(values), np.inf, values if main.is_cost else -values), kind="stable")
    rows = []
    for at in order[:MOST_ROWS].tolist():
        row = {name: table[name][at].as_py() for name in table.column_names}
        cells = [str(row[key]) for key in keys] + [figure_text(figure.form, row[figure.name]) for figure in shown]
        rows.append([*cells, row["error"] or ""])
    note = f"The first {MOST_ROWS} of {len(table):,}; all stand in sweep.parquet." if len(table) > MOST_ROWS else ""
    lead = f"The best first, by {label(main)}." if main else "As in the sweep file."
    return Section("points", "Points", lead, [Table("all points", headings, rows, note)])
