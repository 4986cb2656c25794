"""Distributions of the best settings of a sweep: completion times, slow-downs, times of requests, and queues."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nadi.et.statistics import percentile
from nadi.inputs.arrow import numpy_column
from nadi.insight.metrics import Metric, ranked_rows
from nadi.insight.runs import Run
from nadi.reports.pages.charts import (
    SeriesStyle,
    band_lines,
    empty_figure,
    height_of_panels,
    panel_figure,
    series_style_of,
)
from nadi.reports.pages.page import PageSection, Plot
from nadi.simulation.schemas import FLOWS, QUEUES
from nadi.studies.sweeps.settings import name_of
from nadi.terminal import in_page, time_unit

MAX_OVERLAID = 12
"""Number of best settings whose distributions are drawn; more lines than colours are indistinguishable."""
_QUANTILES = np.linspace(0, 1, 201)
_TIME_BINS = 200  # number of time bins of the queue charts


@dataclass(frozen=True, eq=False)
class DrawnSetting:
    """A setting of a sweep, and how charts draw it."""

    name: str  # its values of the keys that differ
    runs: list[Run]  # its finished runs, which differ in seeds
    look: SeriesStyle  # colour by the value of the first key, dash by the other values


def distributions(finished: pa.Table, keys: Sequence[str], ranking_figure: Metric, folder: Path) -> PageSection:
    """Return the distributions of the best settings of a table of `settings_of`.

    Args:
        finished: A table of `settings_of`, with a row for each setting that has results.
        folder: The folder of the sweep.
        keys: The keys that the sweep varies.
        ranking_figure: The figure that sorts settings.
    """
    shown = _settings(finished, keys, ranking_figure, folder)
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


def _settings(finished: pa.Table, keys: Sequence[str], ranking_figure: Metric, folder: Path) -> list[DrawnSetting]:
    """Return the best settings, in the order of the sweep file."""
    differing = [key for key in keys if len(set(finished[key].to_pylist())) > 1]
    values = [tuple(finished[key][row].as_py() for key in differing) for row in range(len(finished))]
    colours = list(dict.fromkeys(own[:1] for own in values))
    dashes = list(dict.fromkeys(own[1:] for own in values))
    found = []
    # choose by rank, draw in the order of the file: colours then stay with their values when another figure ranks
    for row in sorted(ranked_rows(finished, ranking_figure)[:MAX_OVERLAID].tolist()):
        look = series_style_of(colours.index(values[row][:1]), dashes.index(values[row][1:]))
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
    chart = empty_figure(f"{title}, {unit.name}" if is_time else title, f"cumulative share of {population}, %")
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
    chart = panel_figure([setting.name for setting in recorded], unit.name, "B")
    for row, (setting, of_runs) in enumerate(recorded.items(), 1):
        for line in band_lines(times, of_runs.min(axis=0), of_runs.max(axis=0), setting.look.colour):
            chart.add_trace(line, row, 1)
        mean = {"x": times, "y": of_runs.mean(axis=0), "name": in_page(setting.name)}
        chart.add_scatter(**mean, mode="lines", line={"color": setting.look.colour, "shape": "hv"}, row=row, col=1)
    longest = {setting.name: of_runs.max() for setting, of_runs in recorded.items()}
    name = max(longest, key=lambda name: longest[name])
    band = " The band has all seeds, the line is their mean." if max(map(len, recorded.values())) > 1 else ""
    text = f"{name} has the longest queue, {longest[name] / 1e3:,.4g} kB.{band}"
    return Plot("longest port queue over time", chart, text, height_of_panels(len(recorded)))


def _longest_queue(run: Run, end_ps: int) -> NDArray[np.float64]:
    """Return float64[_TIME_BINS + 1]: the longest port queue of each bin until end_ps, in bytes; 0 without queues."""
    longest_bytes = np.zeros(_TIME_BINS + 1)
    if run.has(QUEUES) and run.queues is not None:
        # bins of all settings end with the longest run, so that curves over time are comparable
        time_bin = numpy_column(run.queues["time_ps"]) * _TIME_BINS // max(end_ps, 1)
        np.maximum.at(longest_bytes, np.minimum(time_bin, _TIME_BINS), numpy_column(run.queues["bytes"], np.float64))
    return longest_bytes
