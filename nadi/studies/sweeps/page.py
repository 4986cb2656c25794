"""The page of a sweep over keys: figures of all points, how each key moves them, distributions over each other."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nadi.insight.runs import Run
from nadi.insight.runs.figures import FIGURES, Figure
from nadi.insight.runs.ranking import SAME_WITHIN, as_good_as_best, best_value, costs, order
from nadi.reports.pages.explanations import COLUMNS
from nadi.reports.pages.page import Heading, Page, PageSection, Paragraph, Part, Plot, Table
from nadi.reports.pages.series import style
from nadi.simulation.schemas import FLOWS, QUEUES
from nadi.terminal.printing import in_page
from nadi.terminal.readable import figure_text, time_unit

MOST_ROWS = 500
MOST_OVERLAID = 12
"""Points whose distributions are drawn over each other, the best ones: more lines than colours cannot be told apart."""
_QUANTILES = np.linspace(0, 1, 201)
_STRETCHES = 200
_KEPT = ("point", "run", "error")


def page(table: pa.Table, title: str, folder: Path, figure: Figure | None) -> Page:
    """Return the page of `nadi.studies.sweeps.table.table`.

    Args:
        table: Table with a row for each point.
        title: Title of the page.
        folder: Folder of the sweep, which holds the results of the points.
        figure: Figure by which points are ranked; None where no point is finished.
    """
    keys = keys_of(table)
    if figure is None:
        return Page(title, f"{len(table):,} points, none of them finished.", [_rows(table, keys, None)])
    done = table.filter(pc.is_null(table["error"]))
    by_key = PageSection(
        "keys", "What each key does", "Every point, by the value of a key.", _plots(done, keys, figure)
    )
    return Page(
        title,
        _lead(table, done, keys, figure),
        [by_key, _overlays(done, keys, figure, folder), _rows(table, keys, figure)],
    )


def _lead(table: pa.Table, done: pa.Table, keys: list[str], figure: Figure) -> str:
    """Return how many points are finished, which is best, and how many are as good."""
    counted = f"{len(done):,} of {len(table):,} points are finished."
    if len(done) == 1:
        return counted
    good = as_good_as_best(costs(done, figure))
    if good.all():
        return f"{counted} By {label(figure)} none is better than the others by more than {SAME_WITHIN:.0%}."
    best = int(order(done, figure)[0])
    text = figure_text(figure.form, done[figure.name][best].as_py())
    others = int(good.sum()) - 1
    also = f"; {others} more within {SAME_WITHIN:.0%} of it" if others else ""
    return f"{counted} Best by {label(figure)}, {text}: {name_of(done, keys, best)}{also}."


def name_of(table: pa.Table, keys: Sequence[str], row: int) -> str:
    """Return the values of a point as text: "rate = 100Gbps, seed = 1"."""
    return ", ".join(f"{key} = {table[key][row].as_py()}" for key in keys)


def keys_of(table: pa.Table) -> list[str]:
    """Return the keys of the run file among the columns."""
    figures = {figure.name for figure in FIGURES}
    return [name for name in table.column_names if name not in figures and name not in _KEPT]


def figures_shown(table: pa.Table) -> list[Figure]:
    """Return the figures that are not 0 or missing at every point."""
    columns = {figure: table[figure.name] for figure in FIGURES if figure.name in table.column_names}
    return [figure for figure, column in columns.items() if any(column.to_pylist())]


def label(figure: Figure) -> str:
    """Return the name of a figure for people: values say their unit themselves."""
    return figure.name.removesuffix("_ps").removesuffix("_bytes").replace("_", " ")


def _plots(done: pa.Table, keys: list[str], figure: Figure) -> list[Part]:
    made: list[Part] = [_plot(done, key, figure) for key in keys if len(set(done[key].to_pylist())) > 1]
    if len(keys) == 2 and made:
        made.append(_map(done, keys, figure))
    return made or [Paragraph("All finished points have the same values.")]


def _plot(done: pa.Table, key: str, figure: Figure) -> Plot:
    """Return points and means by the value of a key; means of numbers are joined by lines, those of words are not."""
    from plotly import graph_objects as go

    values, drawn = done[key].to_pylist(), go.Figure()
    found = list(dict.fromkeys(values))
    is_number = all(isinstance(value, (int, float)) for value in found if value is not None)
    found = sorted(found) if is_number else found
    of = done[figure.name].to_numpy(zero_copy_only=False) * _factor(figure)
    means = {each: float(np.mean(of[[value == each for value in values]])) for each in found}
    drawn.add_scatter(
        x=values if is_number else [in_page(str(value)) for value in values],
        y=of,
        mode="markers",
        name="points",
        marker={"color": style(0).colour, "size": 8, "opacity": 0.6},
    )
    drawn.add_scatter(
        x=found if is_number else [in_page(str(each)) for each in found],
        y=list(means.values()),
        mode="lines+markers" if is_number else "markers",
        name="mean",
        line={"color": style(1).colour},
        marker={"color": style(1).colour, "size": 16, "symbol": "line-ew-open"} if not is_number else {},
    )
    drawn.update_layout(margin={"t": 10, "b": 50, "l": 10, "r": 10})
    drawn.update_xaxes(title_text=in_page(key), type="linear" if is_number else "category")
    drawn.update_yaxes(title_text=_axis(figure), rangemode="tozero")
    best = best_value(means, is_cost=figure.is_cost)
    says = f"On the mean of all other keys {key} = {best} is best."
    if best is None:
        says = f"On the mean of all other keys no value of {key} is best by more than {SAME_WITHIN:.0%}."
    return Plot(f"{label(figure)} by {key}", drawn, says, 340)


def _map(done: pa.Table, keys: list[str], figure: Figure) -> Plot:
    """Return both keys of a sweep of two at once."""
    from plotly import graph_objects as go

    across, down = ([str(value) for value in done[key].to_pylist()] for key in keys)
    x, y = list(dict.fromkeys(across)), list(dict.fromkeys(down))
    z = np.full((len(y), len(x)), np.nan)
    for a, b, value in zip(across, down, done[figure.name].to_numpy() * _factor(figure), strict=True):
        z[y.index(b), x.index(a)] = value
    heat = go.Heatmap(
        x=x, y=y, z=z, colorscale="Viridis", reversescale=figure.is_cost, colorbar={"title": _axis(figure)}
    )
    drawn: Any = go.Figure(heat)
    drawn.update_layout(margin={"t": 10, "b": 50, "l": 10, "r": 10})
    drawn.update_xaxes(title_text=in_page(keys[0]), type="category")
    drawn.update_yaxes(title_text=in_page(keys[1]), type="category")
    return Plot(
        f"{label(figure)} by both keys", drawn, f"From {np.nanmin(z):,.4g} to {np.nanmax(z):,.4g} {_axis(figure)}."
    )


def _overlays(done: pa.Table, keys: list[str], figure: Figure, folder: Path) -> PageSection:
    """Return distributions of the points, drawn over each other."""
    rows = order(done, figure)[:MOST_OVERLAID].tolist()
    differing = [key for key in keys if len(set(done[key].to_pylist())) > 1]
    runs = {name_of(done, differing, row): Run(folder / done["run"][row].as_py()) for row in rows}
    left_out = f" The best {MOST_OVERLAID} of {len(done):,} points." if len(done) > MOST_OVERLAID else ""
    made = [
        _cdf("time to first token", "requests", runs, lambda run: _request_times(run, "ttft")),
        _cdf("time per output token", "requests", runs, lambda run: _request_times(run, "tpot")),
        _cdf("completion time of messages", "messages", runs, _completion_ps),
        _cdf("slow-down of messages", "messages", runs, _slowdown, is_time=False),
        _queues(runs),
    ]
    lead = f"All points over each other.{left_out}"
    return PageSection("distributions", "Distributions", lead, [plot for plot in made if plot is not None])


def _cdf(
    title: str, of: str, runs: dict[str, Run], values_of: Callable[[Run], NDArray[np.float64]], *, is_time: bool = True
) -> Plot | None:
    """Return a cumulative distribution for each run, or None where no run has values."""
    from plotly import graph_objects as go

    found = {name: values_of(run) for name, run in runs.items()}
    found = {name: np.quantile(values, _QUANTILES) for name, values in found.items() if len(values)}
    if not found:
        return None
    unit = time_unit(float(np.median(values)) for values in found.values())
    drawn = go.Figure()
    for number, (name, values) in enumerate(found.items()):
        look = style(number)
        drawn.add_scatter(
            x=values / unit.ps if is_time else values,
            y=100 * _QUANTILES,
            mode="lines",
            name=in_page(name),
            line={"color": look.colour, "dash": look.dash},
        )
    drawn.update_xaxes(title_text=f"{title}, {unit.name}" if is_time else f"{title}, times the time alone", type="log")
    drawn.update_yaxes(title_text=f"{of} with no more, %", range=[0, 100])
    drawn.update_layout(margin={"t": 10, "b": 50, "l": 10, "r": 10}, legend={"orientation": "h", "y": -0.25})
    last = {name: values[np.searchsorted(_QUANTILES, 0.99)] for name, values in found.items()}
    least = min(last, key=lambda name: last[name])
    text = f"{last[least] / unit.ps:,.4g} {unit.name}" if is_time else f"{last[least]:,.4g}"
    return Plot(f"{title}, cumulative distribution", drawn, f"The least 99th percentile, {text}, has {least}.")


def _request_times(run: Run, kind: str) -> NDArray[np.float64]:
    """Return float64[101]: quantiles of times of requests in picoseconds; none where nothing was served."""
    return np.array(run.summary.get("serving", {}).get(kind, {}).get("quantiles_ps", []), np.float64)


def _completion_ps(run: Run) -> NDArray[np.float64]:
    """Return float64[messages]: times from posting to arrival."""
    if not run.has(FLOWS):
        return np.zeros(0)
    return (np.asarray(run.flows["finish_ps"]) - np.asarray(run.flows["start_ps"])).astype(np.float64)


def _slowdown(run: Run) -> NDArray[np.float64]:
    """Return float64[messages with a known one]: completion time over that on an idle network."""
    return np.asarray(run.flows["slowdown"].drop_null(), np.float64) if run.has(FLOWS) else np.zeros(0)


def _queues(runs: dict[str, Run]) -> Plot | None:
    """Return the longest queue of all ports over time, a line for each run; None where no buffer held anything."""
    from plotly import graph_objects as go

    recorded = {
        name: run for name, run in runs.items() if run.has(QUEUES) and run.queues is not None and len(run.queues)
    }
    if not recorded:
        return None
    unit = time_unit(run.finish_time_ps for run in recorded.values())
    drawn, longest = go.Figure(), {}
    for number, (name, run) in enumerate(recorded.items()):
        at = np.asarray(run.queues["time_ps"]) * _STRETCHES // max(run.finish_time_ps, 1)  # type: ignore[index]
        most = np.zeros(_STRETCHES + 1)
        np.maximum.at(most, np.minimum(at, _STRETCHES), np.asarray(run.queues["bytes"], np.float64))  # type: ignore[index]
        longest[name] = float(most.max())
        look = style(number)
        drawn.add_scatter(
            x=np.linspace(0, run.finish_time_ps, _STRETCHES + 1) / unit.ps,
            y=most / 1e3,
            mode="lines",
            name=in_page(name),
            line={"color": look.colour, "dash": look.dash, "shape": "hv"},
        )
    drawn.update_xaxes(title_text=unit.name)
    drawn.update_yaxes(title_text="longest queue of a port, kB", rangemode="tozero")
    drawn.update_layout(margin={"t": 10, "b": 50, "l": 10, "r": 10}, legend={"orientation": "h", "y": -0.25})
    most_name = max(longest, key=lambda name: longest[name])
    return Plot("longest queue over time", drawn, f"The longest, {longest[most_name] / 1e3:,.4g} kB, has {most_name}.")


def _factor(figure: Figure) -> float:
    return 1e-9 if figure.form == "time" else 1.0


def _axis(figure: Figure) -> str:
    return f"{label(figure)} (ms)" if figure.form == "time" else label(figure)


def _rows(table: pa.Table, keys: list[str], figure: Figure | None) -> PageSection:
    shown = figures_shown(table)
    headings = [Heading(key, COLUMNS["key"], is_text=True) for key in keys]
    headings += [Heading(label(each), f"{each.meaning[0].upper()}{each.meaning[1:]}.") for each in shown]
    headings.append(Heading("error", is_text=True))
    rows = []
    for at in order(table, figure)[:MOST_ROWS].tolist():
        row = {name: table[name][at].as_py() for name in table.column_names}
        cells = [str(row[key]) for key in keys] + [figure_text(each.form, row[each.name]) for each in shown]
        rows.append([*cells, row["error"] or ""])
    note = f"The first {MOST_ROWS} of {len(table):,}; all are in sweep.parquet." if len(table) > MOST_ROWS else ""
    lead = f"Ranked by {label(figure)}." if figure else "As in the sweep file."
    return PageSection("points", "Points", lead, [Table("all points", headings, rows, note)])
