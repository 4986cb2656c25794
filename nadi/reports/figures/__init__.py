"""Figures of pages as files for papers: SVG and PDF, which are drawn without a browser, and CSV with the numbers."""

import csv
import importlib.util
import io
import re
from pathlib import Path

import numpy as np

from nadi import inputs
from nadi.errors import ConfigError, OutputError
from nadi.reports.figures.drawing import can_draw, draw
from nadi.reports.pages.page import Page, Plot


def check_figures() -> None:
    """Raise ConfigError if figures cannot be drawn, because matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--figures: matplotlib is not installed; expected pip install matplotlib")


def write_figures(folder: Path, page: Page) -> list[str]:
    """Write each chart of a page as NAME.svg, NAME.pdf and NAME.csv, and return the names.

    A chart of another kind than lines, points, bars, boxes and heat maps has no file. Raise OutputError if a file
    cannot be written.

    Args:
        folder: Folder to write to.
        page: Page with the charts.
    """
    names: dict[str, None] = {}
    with inputs.refusing(folder, "a folder to write figures to", OutputError):
        folder.mkdir(parents=True, exist_ok=True)
        for section in page.sections:
            for plot in section.parts:
                if isinstance(plot, Plot) and can_draw(plot.figure):
                    name = _name(f"{section.id} {plot.title}", names)
                    names[name] = None
                    svg, pdf = draw(plot.figure, plot.height)
                    inputs.write_whole(folder / f"{name}.svg", svg)
                    inputs.write_whole(folder / f"{name}.pdf", pdf)
                    inputs.write_whole(folder / f"{name}.csv", _table(plot))
    return list(names)


def _name(title: str, taken: dict[str, None]) -> str:
    """Return a title as a file name of letters, digits and dashes that no other figure has."""
    name = re.sub("[^a-z0-9]++", "-", title.lower()).strip("-")[:80]
    number = next(number for number in range(1, len(taken) + 2) if f"{name}-{number}".removesuffix("-1") not in taken)
    return f"{name}-{number}".removesuffix("-1")


def _table(plot: Plot) -> str:
    """Return the numbers of a chart: a row per point with its series, x and y, and the value of a heat map's cell."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["series", "x", "y", "value", "low", "high"])
    for series in plot.figure.data:
        if series.type == "heatmap":
            for y, values in zip(series.y, series.z, strict=True):
                rows.writerows(
                    [series.name or "", x, y, value, "", ""] for x, value in zip(series.x, values, strict=True)
                )
            continue
        x = series.x if series.x is not None else ()
        # a box has its samples on one axis
        y = [series.name] * len(x) if series.type == "box" else series.y
        errors = series.error_y if series.type.startswith("scatter") and series.error_y.array is not None else None
        for place, (at, value) in enumerate(zip(x, y, strict=True)):
            ends = ["", ""]
            if errors is not None:
                # symmetric bars have one array
                below = errors.array if errors.arrayminus is None else errors.arrayminus
                ends = [value - below[place], value + errors.array[place]]
            rows.writerow([series.name or "", *(_cell(each) for each in (at, value)), "", *ends])
    return text.getvalue()


def _cell(value: object) -> object:
    """Return a value as CSV writes it: nothing for a gap."""
    return "" if value is None or (isinstance(value, float) and np.isnan(value)) else value
