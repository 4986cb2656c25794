"""HTML page of a sweep: metrics of all points, effects of keys, and overlaid distributions of the best settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nadi.et.statistics import percentile
from nadi.inputs.arrays import numpy_column
from nadi.insight.metrics import METRICS, SAME_WITHIN, Metric, as_good_as_best, best_value, costs, ranked_rows
from nadi.insight.runs import Run
from nadi.reports.pages import charts
from nadi.reports.pages.page import Page, PageSection, Paragraph, Part, Plot, explanations, from_terminal
from nadi.reports.text.comparison import label
from nadi.reports.text.network import mean_text
from nadi.simulation.schemas import FLOWS, QUEUES
from nadi.studies.sweeps.points import by_level_and_seed, keys_of, name_of, settings_of
from nadi.terminal import FittedTable, TableColumn, in_page, metric_text, time_unit

MAX_ROWS = 500
MAX_PRINTED = 40  # maximum number of settings in the table of the terminal


def points_page(points: pa.Table, title: str, folder: Path, ranking_metric: Metric | None) -> Page:
    """Return the page of a sweep's table of points and its folder.

    Args:
        points: The table with a row for each point.
        folder: The folder of the sweep.
        ranking_metric: The metric that sorts settings; None if no point is finished.
        title: The heading of the page.
    """
    settings = settings_of(points, ranking_metric)
    keys = keys_of(settings)
    if ranking_metric is None:
        return Page(title, f"{len(points):,} points, none of them finished.", [_rows(settings, keys, None)])
    finished = settings.filter(pc.is_null(settings["error"]))
    plots: list[Part] = [
        _plot(finished, points, key, ranking_metric) for key in keys if len(set(finished[key].to_pylist())) > 1
    ]
    if len(keys) == 2 and plots:
        plots.append(_map(finished, keys, ranking_metric))
    plots = plots or [Paragraph("All finished points have the same values.")]
    by_key = PageSection("keys", "Effect of each key", "All points by the value of a key.", plots)
    return Page(
        title,
        f"{_counted(points, settings)} {_best(finished, keys, ranking_metric)}".strip(),
        [by_key, distributions(finished, keys, ranking_metric, folder), _rows(settings, keys, ranking_metric)],
    )


def _counted(points: pa.Table, settings: pa.Table) -> str:
    """Return how many points are finished, and of how many settings they are repetitions."""
    counted = f"{points['error'].null_count:,} of {len(points):,} points are finished."
    if len(settings) < len(points):
        repeated = "repetitions of one setting" if len(settings) == 1 else f"repetitions of {len(settings):,} settings"
        counted += f" They are {repeated}, with different seeds: figures are means over seeds."
    return counted


def _best(finished: pa.Table, keys: list[str], metric: Metric) -> str:
    """Return the best setting by a metric, and how many are as good; "" with a single one."""
    if len(finished) == 1:
        return ""
    ends = np.stack([numpy_column(finished[name]) for name in ("low", "high")], axis=1)
    good = as_good_as_best(costs(finished, metric), ends)
    has_seeds = bool(np.isfinite(ends).any())
    same = f"within {SAME_WITHIN:.0%} of {{}}" + " or with an overlapping confidence interval" * has_seeds
    if good.all():
        return f"All settings are {same.format('the best' if has_seeds else 'each other')} by {label(metric.name)}."
    best = int(ranked_rows(finished, metric)[0])
    others = int(good.sum()) - 1
    also = f"; {others} more {same.format('it')}" if others else ""
    name, value = name_of(finished, keys, best), _ranking_text(finished, best, metric)
    return f"Best by {label(metric.name)}, {value}: {name}{also}."


def metrics_shown(table: pa.Table) -> list[Metric]:
    """Return the metrics that are neither 0 nor missing for at least one setting.

    Args:
        table: The table with a row for each setting.
    """
    columns = {metric: numpy_column(table[metric.name]) for metric in METRICS if metric.name in table.column_names}
    return [metric for metric, column in columns.items() if np.nan_to_num(column).any()]


def _plot(finished: pa.Table, points: pa.Table, key: str, metric: Metric) -> Plot:
    """Return a chart of a metric by the value of a key: settings, and means; lines join means of numeric keys only.

    finished: The settings with results. points: All points, whose seeds are the repetitions of each mean.
    """
    values, chart = finished[key].to_pylist(), charts.empty_figure(in_page(key), _axis(metric))
    levels = list(dict.fromkeys(values))
    is_number = all(isinstance(value, (int, float)) for value in levels if value is not None)
    levels = sorted(levels) if is_number else levels
    metric_values = numpy_column(finished[metric.name]) * _factor(metric)
    means = {level: float(np.mean(metric_values[[value == level for value in values]])) for level in levels}
    low, high = (numpy_column(finished[name]) * _factor(metric) for name in ("low", "high"))
    bars = {"array": np.nan_to_num(high - metric_values), "arrayminus": np.nan_to_num(metric_values - low), "width": 0}
    chart.add_scatter(
        x=values if is_number else [in_page(str(value)) for value in values],
        y=metric_values,
        error_y=bars if np.isfinite(low).any() else None,
        mode="markers",
        name="settings" if len(finished) < len(points) else "points",
        marker={"color": charts.series_style(0).colour, "size": 8, "opacity": 0.6},
    )
    chart.add_scatter(
        x=levels if is_number else [in_page(str(level)) for level in levels],
        y=list(means.values()),
        mode="lines+markers" if is_number else "markers",
        name="mean",
        line={"color": charts.series_style(1).colour},
        marker={"color": charts.series_style(1).colour, "size": 16, "symbol": "line-ew-open"} if not is_number else {},
    )
    chart.update_xaxes(type="linear" if is_number else "category")
    chart.update_yaxes(rangemode="tozero")
    repetitions = by_level_and_seed(points, key, metric)
    best = best_value(repetitions, metric)
    caption = f"{key} = {best} is best on average over all other keys."
    if best is None:
        caption = f"No value of {key} is best by more than {SAME_WITHIN:.0%} on average over all other keys"
        has_seeds = any(len(own) > 1 for own in repetitions.values())
        caption += " and by more than confidence intervals overlap." if has_seeds else "."
    return Plot(f"{label(metric.name)} by {key}", chart, caption, 340)


def _map(finished: pa.Table, keys: list[str], metric: Metric) -> Plot:
    """Return the heat map of a metric for a sweep with two keys."""
    across, down = ([str(value) for value in finished[key].to_pylist()] for key in keys)
    x, y = list(dict.fromkeys(across)), list(dict.fromkeys(down))
    # settings that are not in the sweep, or not finished, stay NaN and are drawn as gaps
    z = np.full((len(y), len(x)), np.nan)
    for a, b, value in zip(across, down, numpy_column(finished[metric.name]) * _factor(metric), strict=True):
        z[y.index(b), x.index(a)] = value
    look = {"colorscale": "Viridis", "reversescale": metric.is_cost, "colorbar": {"title": _axis(metric)}}
    chart = charts.heat_map(x, y, z, in_page(keys[0]), f"%{{x}}, %{{y}}: %{{z:,.4g}} {_axis(metric)}", **look)
    chart.update_xaxes(type="category")
    chart.update_yaxes(title_text=in_page(keys[1]))
    return Plot(
        f"{label(metric.name)} by both keys", chart, f"From {np.nanmin(z):,.4g} to {np.nanmax(z):,.4g} {_axis(metric)}."
    )


def _factor(metric: Metric) -> float:
    """Return the factor from a metric's values to those of charts: times are in ps, and shown in ms."""
    return 1e-9 if metric.form == "time" else 1.0


def _axis(metric: Metric) -> str:
    """Return the title of an axis that shows a metric."""
    return f"{label(metric.name)} (ms)" if metric.form == "time" else label(metric.name)


def _rows(table: pa.Table, keys: list[str], metric: Metric | None) -> PageSection:
    """Return the section with all points, ranked by a metric unless it is None."""
    meanings = {label(each.name): f"{each.meaning[0].upper()}{each.meaning[1:]}." for each in metrics_shown(table)}
    seeds = {"seeds": "Number of finished points, which differ in seeds: figures are means over them."}
    why = dict.fromkeys(keys, explanations()["key"]) | seeds | meanings
    note = f"The first {MAX_ROWS} of {len(table):,}; all are in sweep.parquet." if len(table) > MAX_ROWS else ""
    lead = "" if metric else "In the order of the sweep file."
    return PageSection("points", "Points", lead, [from_terminal(points_table(table, metric, MAX_ROWS), note, why)])


def points_table(settings: pa.Table, ranking_metric: Metric | None, max_rows: int) -> FittedTable:
    """Return a table of the best settings. Equal values are in a note.

    If seeds differ, the ranking metric has its confidence interval.

    Args:
        settings: The table of `settings_of`, with a row for each setting.
        ranking_metric: The metric that sorts settings; None if no point is finished.
        max_rows: The largest number of rows to show.
    """
    values = {key: [str(value) for value in settings[key].to_pylist()] for key in keys_of(settings)}
    keys, shown = [key for key in values if len(set(values[key])) > 1], metrics_shown(settings)
    has_seeds = max(settings["seeds"].to_pylist(), default=0) > 1
    columns = [TableColumn(key, form="name") for key in keys] + [TableColumn("seeds")] * has_seeds
    columns += [TableColumn(label(each.name), rank) for rank, each in enumerate(shown)]
    ranked = f", ranked by {label(ranking_metric.name)}" if ranking_metric else ""
    what = "settings: means over seeds, with 95 % confidence intervals" if has_seeds else "points"
    result = FittedTable(f"{what}{ranked}", *columns, TableColumn("error", 1, "text"), full_output_option="--json")
    for row in ranked_rows(settings, ranking_metric)[:max_rows].tolist():
        cells = [values[key][row] for key in keys] + [str(settings["seeds"][row].as_py())] * has_seeds
        for metric in shown:
            is_ranked = metric == ranking_metric
            value = settings[metric.name][row].as_py()
            cells.append(_ranking_text(settings, row, metric) if is_ranked else metric_text(metric.form, value))
        result.add_row(*cells, settings["error"][row].as_py() or "")
    constant = [f"{key} = {values[key][0]}" for key in values if key not in keys]
    if constant:
        result.notes.append(f"all points: {', '.join(constant)}")
    return result


def _ranking_text(settings: pa.Table, row: int, metric: Metric) -> str:
    """Return the metric that ranks, of the setting in a row, with its confidence interval."""
    value, low, high = (settings[name][row].as_py() for name in (metric.name, "low", "high"))
    interval = None if np.isnan(low) else (low, high)
    return mean_text(value, interval, partial(metric_text, metric.form))


MAX_OVERLAID = 12
"""Number of best settings whose distributions are drawn; more lines than colours are indistinguishable."""
_QUANTILES = np.linspace(0, 1, 201)
_TIME_BINS = 200  # number of time bins of the queue charts


@dataclass(frozen=True, eq=False)
class DrawnSetting:
    """A setting of a sweep, and how charts draw it."""

    name: str  # its values of the keys that differ
    runs: list[Run]  # its finished runs, which differ in seeds
    look: charts.SeriesStyle  # colour by the value of the first key, dash by the other values


def distributions(finished: pa.Table, keys: Sequence[str], ranking_metric: Metric, folder: Path) -> PageSection:
    """Return the distributions of the best settings of a table of `settings_of`.

    Args:
        finished: A table of `settings_of`, with a row for each setting that has results.
        folder: The folder of the sweep.
        keys: The keys that the sweep varies.
        ranking_metric: The metric that sorts settings.
    """
    shown = _settings(finished, keys, ranking_metric, folder)
    left_out = f" Only the best {MAX_OVERLAID} of {len(finished):,} are drawn." if len(finished) > MAX_OVERLAID else ""
    plots = [
        _cdf("time to first token", "requests", shown, lambda run: _request_times(run, "ttft")),
        _cdf("time per output token", "requests", shown, lambda run: _request_times(run, "tpot")),
        _cdf("message completion time", "messages", shown, _completion_ps),
        _cdf("message slow-down", "messages", shown, _slowdown, is_time=False),
        _queues(shown),
    ]
    lead = f"Distributions of several settings, each over all its runs.{left_out}"
    return PageSection("distributions", "Distributions", lead, [plot for plot in plots if plot is not None])


def _settings(finished: pa.Table, keys: Sequence[str], ranking_metric: Metric, folder: Path) -> list[DrawnSetting]:
    """Return the best settings, in the order of the sweep file."""
    differing = [key for key in keys if len(set(finished[key].to_pylist())) > 1]
    values = [tuple(finished[key][row].as_py() for key in differing) for row in range(len(finished))]
    colours = list(dict.fromkeys(own[:1] for own in values))
    dashes = list(dict.fromkeys(own[1:] for own in values))
    found = []
    # choose by rank, draw in the order of the file: colours then stay with their values when another metric ranks
    for row in sorted(ranked_rows(finished, ranking_metric)[:MAX_OVERLAID].tolist()):
        look = charts.series_style_of(colours.index(values[row][:1]), dashes.index(values[row][1:]))
        runs = [Run(folder / name) for name in finished["runs"][row].as_py()]
        found.append(DrawnSetting(name_of(finished, differing, row) or "all runs", runs, look))
    return found


def _cdf(
    title: str,
    population: str,
    settings: Sequence[DrawnSetting],
    values_of: Callable[[Run], NDArray[np.float64]],
    *,
    is_time: bool = True,
) -> Plot | None:
    """Return a cumulative distribution per setting of what `values_of` returns, in ps if is_time; None without."""
    quantiles, tails = {}, {}
    for setting in settings:
        values = np.concatenate([values_of(run) for run in setting.runs])
        if len(values):
            quantiles[setting] = np.quantile(values, _QUANTILES)
        if (tail := percentile(values, 99)) is not None:
            tails[setting.name] = tail
    if not quantiles:
        return None
    unit = time_unit(float(np.median(own)) for own in quantiles.values())
    scale = 1 / unit.ps if is_time else 1.0
    chart = charts.empty_figure(f"{title}, {unit.name}" if is_time else title, f"cumulative share of {population}, %")
    for setting, own in quantiles.items():
        chart.add_scatter(
            x=own * scale, y=100 * _QUANTILES, mode="lines", name=in_page(setting.name), line=setting.look.line()
        )
    chart.update_layout(showlegend=True)
    chart.update_xaxes(type="log")
    chart.update_yaxes(range=[0, 100])
    caption = f"There are too few {population} for a 99th percentile."
    if tails:
        lowest = min(tails, key=lambda name: tails[name])
        text = f"{tails[lowest] * scale:,.4g}{f' {unit.name}' * is_time}"
        caption = f"{lowest} has the lowest 99th percentile, {text}."
    return Plot(f"{title}, cumulative distribution", chart, caption)


def _request_times(run: Run, metric: str) -> NDArray[np.float64]:
    """Return float64[101]: quantiles of a request time in ps, "ttft" or "tpot"; empty if nothing was served."""
    return np.array(run.summary.get("serving", {}).get(metric, {}).get("quantiles_ps", []), np.float64)


def _completion_ps(run: Run) -> NDArray[np.float64]:
    """Return float64[messages]: times in ps from posting to arrival."""
    if not run.has(FLOWS):
        return np.zeros(0)
    return (numpy_column(run.flows["finish_ps"]) - numpy_column(run.flows["start_ps"])).astype(np.float64)


def _slowdown(run: Run) -> NDArray[np.float64]:
    """Return float64[messages]: completion time over that on an idle network, for messages where it is known."""
    return numpy_column(run.flows["slowdown"].drop_null(), np.float64) if run.has(FLOWS) else np.zeros(0)


def _queues(settings: Sequence[DrawnSetting]) -> Plot | None:
    """Return the longest port queue over time, a panel per setting; None if no run recorded a queue.

    The line is the mean over the runs of a setting; the band reaches from the shortest to the longest of them.
    """
    end_ps = max((run.finish_time_ps for setting in settings for run in setting.runs), default=0)
    recorded = {setting: np.array([_longest_queue(run, end_ps) for run in setting.runs]) for setting in settings}
    recorded = {setting: of_runs for setting, of_runs in recorded.items() if of_runs.any()}
    if not recorded:
        return None
    unit = time_unit([end_ps])
    times = np.linspace(0, end_ps, _TIME_BINS + 1) / unit.ps
    chart = charts.panel_figure([setting.name for setting in recorded], unit.name, "B")
    for row, (setting, of_runs) in enumerate(recorded.items(), 1):
        for line in charts.band_lines(times, of_runs.min(axis=0), of_runs.max(axis=0), setting.look.colour):
            chart.add_trace(line, row, 1)
        mean = {"x": times, "y": of_runs.mean(axis=0), "name": in_page(setting.name)}
        chart.add_scatter(**mean, mode="lines", line={"color": setting.look.colour, "shape": "hv"}, row=row, col=1)
    longest = {setting.name: of_runs.max() for setting, of_runs in recorded.items()}
    name = max(longest, key=lambda name: longest[name])
    band = " The band has all seeds, the line is their mean." if max(map(len, recorded.values())) > 1 else ""
    text = f"{name} has the longest queue, {longest[name] / 1e3:,.4g} kB.{band}"
    return Plot("longest port queue over time", chart, text, charts.height_of_panels(len(recorded)))


def _longest_queue(run: Run, end_ps: int) -> NDArray[np.float64]:
    """Return float64[_TIME_BINS + 1]: the longest port queue of each bin until end_ps, in bytes; 0 without queues."""
    longest_bytes = np.zeros(_TIME_BINS + 1)
    if run.has(QUEUES) and run.queues is not None:
        # bins of all settings end with the longest run, so that curves over time are comparable
        time_bin = numpy_column(run.queues["time_ps"]) * _TIME_BINS // max(end_ps, 1)
        np.maximum.at(longest_bytes, np.minimum(time_bin, _TIME_BINS), numpy_column(run.queues["bytes"], np.float64))
    return longest_bytes
