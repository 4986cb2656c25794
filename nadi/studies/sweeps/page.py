"""HTML page of a sweep: figures of all points, the effect of each key, and overlaid distributions."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nadi.insight.runs import Run
from nadi.insight.runs.figures import FIGURES, SAME_WITHIN, Figure, as_good_as_best, best_value, costs, order
from nadi.reports.pages import charts
from nadi.reports.pages.page import Page, PageSection, Paragraph, Part, Plot, explanations, from_terminal
from nadi.reports.text.comparison import label
from nadi.simulation.schemas import FLOWS, QUEUES
from nadi.terminal.printing import in_page
from nadi.terminal.readable import figure_text, time_unit
from nadi.terminal.tables import FittedTable, TableColumn

MAX_ROWS = 500
MAX_PRINTED = 40  # maximum number of points in the table of the terminal
MAX_OVERLAID = 12
"""Number of best points whose distributions are overlaid; more lines than colours are indistinguishable."""
_QUANTILES = np.linspace(0, 1, 201)
_TIME_BINS = 200  # number of time bins of the queue chart
_OTHER_COLUMNS = ("point", "run", "error")


def page(points: pa.Table, title: str, folder: Path, ranking_figure: Figure | None) -> Page:
    """Return the page of a sweep's table of points and its folder; ranking_figure: None if no point is finished."""
    keys = keys_of(points)
    if ranking_figure is None:
        return Page(title, f"{len(points):,} points, none of them finished.", [_rows(points, keys, None)])
    finished = points.filter(pc.is_null(points["error"]))
    plots: list[Part] = [
        _plot(finished, key, ranking_figure) for key in keys if len(set(finished[key].to_pylist())) > 1
    ]
    if len(keys) == 2 and plots:
        plots.append(_map(finished, keys, ranking_figure))
    plots = plots or [Paragraph("All finished points have the same values.")]
    by_key = PageSection("keys", "Effect of each key", "All points by the value of a key.", plots)
    return Page(
        title,
        _lead(points, finished, keys, ranking_figure),
        [by_key, _overlays(finished, keys, ranking_figure, folder), _rows(points, keys, ranking_figure)],
    )


def _lead(table: pa.Table, finished: pa.Table, keys: list[str], figure: Figure) -> str:
    """Return the summary: number of finished points, the best by a figure, and how many are as good."""
    counted = f"{len(finished):,} of {len(table):,} points are finished."
    if len(finished) == 1:
        return counted
    good = as_good_as_best(costs(finished, figure))
    if good.all():
        return f"{counted} All points are within {SAME_WITHIN:.0%} of each other by {label(figure.name)}."
    best = int(order(finished, figure)[0])
    text = figure_text(figure.form, finished[figure.name][best].as_py())
    others = int(good.sum()) - 1
    also = f"; {others} more within {SAME_WITHIN:.0%} of it" if others else ""
    return f"{counted} Best by {label(figure.name)}, {text}: {name_of(finished, keys, best)}{also}."


def name_of(table: pa.Table, keys: Sequence[str], row: int) -> str:
    """Return the values of the point in a row as text: "rate = 100Gbps, seed = 1"."""
    return ", ".join(f"{key} = {table[key][row].as_py()}" for key in keys)


def keys_of(table: pa.Table) -> list[str]:
    """Return the names of the columns that are keys of the run file."""
    figures = {figure.name for figure in FIGURES}
    return [name for name in table.column_names if name not in figures and name not in _OTHER_COLUMNS]


def figures_shown(table: pa.Table) -> list[Figure]:
    """Return the figures that are neither 0 nor missing for at least one point."""
    columns = {figure: table[figure.name] for figure in FIGURES if figure.name in table.column_names}
    return [figure for figure, column in columns.items() if any(column.to_pylist())]


def _plot(finished: pa.Table, key: str, figure: Figure) -> Plot:
    """Return a chart of a figure by the value of a key: points, and means; lines join means of numeric keys only."""
    values, chart = finished[key].to_pylist(), charts.figure(in_page(key), _axis(figure))
    levels = list(dict.fromkeys(values))
    is_number = all(isinstance(value, (int, float)) for value in levels if value is not None)
    levels = sorted(levels) if is_number else levels
    figure_values = finished[figure.name].to_numpy(zero_copy_only=False) * _factor(figure)
    means = {level: float(np.mean(figure_values[[value == level for value in values]])) for level in levels}
    chart.add_scatter(
        x=values if is_number else [in_page(str(value)) for value in values],
        y=figure_values,
        mode="markers",
        name="points",
        marker={"color": charts.style(0).colour, "size": 8, "opacity": 0.6},
    )
    chart.add_scatter(
        x=levels if is_number else [in_page(str(level)) for level in levels],
        y=list(means.values()),
        mode="lines+markers" if is_number else "markers",
        name="mean",
        line={"color": charts.style(1).colour},
        marker={"color": charts.style(1).colour, "size": 16, "symbol": "line-ew-open"} if not is_number else {},
    )
    chart.update_xaxes(type="linear" if is_number else "category")
    chart.update_yaxes(rangemode="tozero")
    best = best_value(means, is_cost=figure.is_cost)
    caption = f"{key} = {best} is best on average over all other keys."
    if best is None:
        caption = f"No value of {key} is best by more than {SAME_WITHIN:.0%} on average over all other keys."
    return Plot(f"{label(figure.name)} by {key}", chart, caption, 340)


def _map(finished: pa.Table, keys: list[str], figure: Figure) -> Plot:
    """Return the heat map of a figure for a sweep with two keys."""
    across, down = ([str(value) for value in finished[key].to_pylist()] for key in keys)
    x, y = list(dict.fromkeys(across)), list(dict.fromkeys(down))
    z = np.full((len(y), len(x)), np.nan)
    for a, b, value in zip(across, down, finished[figure.name].to_numpy() * _factor(figure), strict=True):
        z[y.index(b), x.index(a)] = value
    look = {"colorscale": "Viridis", "reversescale": figure.is_cost, "colorbar": {"title": _axis(figure)}}
    chart = charts.heat_map(x, y, z, in_page(keys[0]), f"%{{x}}, %{{y}}: %{{z:,.4g}} {_axis(figure)}", **look)
    chart.update_xaxes(type="category")
    chart.update_yaxes(title_text=in_page(keys[1]))
    return Plot(
        f"{label(figure.name)} by both keys", chart, f"From {np.nanmin(z):,.4g} to {np.nanmax(z):,.4g} {_axis(figure)}."
    )


def _overlays(finished: pa.Table, keys: list[str], ranking_figure: Figure, folder: Path) -> PageSection:
    """Return the overlaid distributions of the best points; folder: the sweep's, with the results of the points."""
    rows = order(finished, ranking_figure)[:MAX_OVERLAID].tolist()
    differing = [key for key in keys if len(set(finished[key].to_pylist())) > 1]
    runs = {name_of(finished, differing, row): Run(folder / finished["run"][row].as_py()) for row in rows}
    left_out = f" Only the best {MAX_OVERLAID} of {len(finished):,} are drawn." if len(finished) > MAX_OVERLAID else ""
    plots = [
        _cdf("time to first token", "requests", runs, lambda run: _request_times(run, "ttft")),
        _cdf("time per output token", "requests", runs, lambda run: _request_times(run, "tpot")),
        _cdf("message completion time", "messages", runs, _completion_ps),
        _cdf("message slow-down", "messages", runs, _slowdown, is_time=False),
        _queues(runs),
    ]
    lead = f"Distributions of several points, overlaid.{left_out}"
    return PageSection("distributions", "Distributions", lead, [plot for plot in plots if plot is not None])


def _cdf(
    title: str,
    population: str,
    runs: dict[str, Run],
    values_of: Callable[[Run], NDArray[np.float64]],
    *,
    is_time: bool = True,
) -> Plot | None:
    """Return a cumulative distribution per run of what `values_of` returns, in ps if is_time; None without values."""
    values_by_run = {name: values_of(run) for name, run in runs.items()}
    values_by_run = {name: np.quantile(values, _QUANTILES) for name, values in values_by_run.items() if len(values)}
    if not values_by_run:
        return None
    unit = time_unit(float(np.median(values)) for values in values_by_run.values())
    scale = 1 / unit.ps if is_time else 1.0
    lines = {name: (values * scale, 100 * _QUANTILES) for name, values in values_by_run.items()}
    x_title = f"{title}, {unit.name if is_time else 'relative to an idle network'}"
    chart = _line_chart(x_title, f"cumulative share of {population}, %", lines, "linear")
    chart.update_xaxes(type="log")
    chart.update_yaxes(range=[0, 100])
    p99 = {name: values[np.searchsorted(_QUANTILES, 0.99)] for name, values in values_by_run.items()}
    lowest = min(p99, key=lambda name: p99[name])
    text = f"{p99[lowest] / unit.ps:,.4g} {unit.name}" if is_time else f"{p99[lowest]:,.4g}"
    return Plot(f"{title}, cumulative distribution", chart, f"{lowest} has the lowest 99th percentile, {text}.")


def _line_chart(
    x_title: str, y_title: str, lines: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]], shape: str
) -> charts.Plotly:
    """Return a chart with a line per run, from the x and y coordinates of each; shape: plotly's, "hv" = steps."""
    chart = charts.figure(x_title, y_title)
    for number, (name, (x, y)) in enumerate(lines.items()):
        series = charts.style(number)
        line = {"color": series.colour, "dash": series.dash, "shape": shape}
        chart.add_scatter(x=x, y=y, mode="lines", name=in_page(name), line=line)
    chart.update_layout(legend={"orientation": "h", "y": -0.25})
    return chart


def _request_times(run: Run, metric: str) -> NDArray[np.float64]:
    """Return float64[101]: quantiles of a request time in ps, "ttft" or "tpot"; empty if nothing was served."""
    return np.array(run.summary.get("serving", {}).get(metric, {}).get("quantiles_ps", []), np.float64)


def _completion_ps(run: Run) -> NDArray[np.float64]:
    """Return float64[messages]: times in ps from posting to arrival."""
    if not run.has(FLOWS):
        return np.zeros(0)
    return (np.asarray(run.flows["finish_ps"]) - np.asarray(run.flows["start_ps"])).astype(np.float64)


def _slowdown(run: Run) -> NDArray[np.float64]:
    """Return float64[messages]: completion time over that on an idle network, for messages where it is known."""
    return np.asarray(run.flows["slowdown"].drop_null(), np.float64) if run.has(FLOWS) else np.zeros(0)


def _queues(runs: dict[str, Run]) -> Plot | None:
    """Return the longest port queue over time, a line per run; None if no run recorded a queue."""
    recorded = {
        name: run for name, run in runs.items() if run.has(QUEUES) and run.queues is not None and len(run.queues)
    }
    if not recorded:
        return None
    unit = time_unit(run.finish_time_ps for run in recorded.values())
    lines, longest = {}, {}
    for name, run in recorded.items():
        time_bin = np.asarray(run.queues["time_ps"]) * _TIME_BINS // max(run.finish_time_ps, 1)  # type: ignore[index]
        longest_bytes = np.zeros(_TIME_BINS + 1)
        np.maximum.at(longest_bytes, np.minimum(time_bin, _TIME_BINS), np.asarray(run.queues["bytes"], np.float64))  # type: ignore[index]
        longest[name] = float(longest_bytes.max())
        lines[name] = np.linspace(0, run.finish_time_ps, _TIME_BINS + 1) / unit.ps, longest_bytes / 1e3
    chart = _line_chart(unit.name, "longest port queue, kB", lines, "hv")
    chart.update_yaxes(rangemode="tozero")
    name_of_longest = max(longest, key=lambda name: longest[name])
    text = f"{name_of_longest} has the longest queue, {longest[name_of_longest] / 1e3:,.4g} kB."
    return Plot("longest port queue over time", chart, text)


def _factor(figure: Figure) -> float:
    """Return the factor from a figure's values to those of charts: times are in ps, and shown in ms."""
    return 1e-9 if figure.form == "time" else 1.0


def _axis(figure: Figure) -> str:
    """Return the title of an axis that shows a figure."""
    return f"{label(figure.name)} (ms)" if figure.form == "time" else label(figure.name)


def _rows(table: pa.Table, keys: list[str], figure: Figure | None) -> PageSection:
    """Return the section with all points, ranked by a figure unless it is None."""
    meanings = {label(each.name): f"{each.meaning[0].upper()}{each.meaning[1:]}." for each in figures_shown(table)}
    why = dict.fromkeys(keys, explanations()["key"]) | meanings
    note = f"The first {MAX_ROWS} of {len(table):,}; all are in sweep.parquet." if len(table) > MAX_ROWS else ""
    lead = "" if figure else "In the order of the sweep file."
    return PageSection("points", "Points", lead, [from_terminal(points_table(table, figure, MAX_ROWS), note, why)])


def points_table(points: pa.Table, ranking_figure: Figure | None, max_rows: int) -> FittedTable:
    """Return a table of the best points; ranking_figure: None if none is finished. Equal values are in a note."""
    values = {key: [str(value) for value in points[key].to_pylist()] for key in keys_of(points)}
    keys, shown = [key for key in values if len(set(values[key])) > 1], figures_shown(points)
    columns = [TableColumn(key, form="name") for key in keys]
    columns += [TableColumn(label(each.name), rank) for rank, each in enumerate(shown)]
    title = f"points, ranked by {label(ranking_figure.name)}" if ranking_figure else "points"
    result = FittedTable(title, *columns, TableColumn("error", 1, "text"), full_output_option="--json")
    for row in order(points, ranking_figure)[:max_rows].tolist():
        cells = [values[key][row] for key in keys]
        cells += [figure_text(each.form, points[each.name][row].as_py()) for each in shown]
        result.add_row(*cells, points["error"][row].as_py() or "")
    constant = [f"{key} = {values[key][0]}" for key in values if key not in keys]
    if constant:
        result.notes.append(f"all points: {', '.join(constant)}")
    return result
