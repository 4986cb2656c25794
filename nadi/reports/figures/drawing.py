"""Drawing of plotly figures by matplotlib, which writes SVG and PDF without a browser or a display.

Browsers draw the charts of pages with plotly's script. This module translates the kinds of series that pages have to
matplotlib, with the colours, dashes and marks of the page.
"""

import html
import io
import re
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from et.arrays import Float64
from nadi.reports.figures.axes import category_names, places, set_up
from nadi.reports.pages.charts import style as style_of

_WIDTH_INCHES = 7.0  # width of a figure
_PIXELS_PER_INCH = 96  # of a page, by CSS
_PIXEL = 72 / _PIXELS_PER_INCH  # points per pixel of a page
_LINE_PIXELS, _MARK_PIXELS = 2, 6  # plotly's width of lines and diameter of marks that name none
_DPI = 300  # resolution of heat maps that are images
_MAX_VECTOR_CELLS = 3000  # cells of a heat map that is drawn as vector graphics; a larger one is an image in the file
_GOLDEN = 0.618034  # multiples of it modulo 1 spread evenly, so that the points of a box do not cover each other
_DRAWN = {"scatter", "scattergl", "bar", "box", "heatmap"}
_SYMBOLS = {"": "o", "circle": "o", "square": "s", "diamond": "D", "star": "*", "line-ew": "_"}
# Lengths of dashes and gaps in widths of the line, as plotly draws them at its default width
_DASHES = {
    **{"dot": (1.5, 1.5), "dash": (4.5, 4.5), "longdash": (7.5, 7.5)},
    **{"dashdot": (4.5, 1.5, 1.5, 1.5), "longdashdot": (7.5, 3.0, 1.5, 3.0)},
}
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titlepad": 3,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#80808a",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddde2",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,  # in sizes of the font: long enough to tell dashes apart
    "text.parse_math": False,  # names of users may have dollar signs
    "pdf.fonttype": 42,  # TrueType: fonts are in the file
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "nadi",  # ids in the file do not depend on chance
}


def can_draw(figure: Any) -> bool:  # noqa: ANN401 - plotly has no types
    """Return whether all series of a plotly figure are of kinds that this module draws."""
    return bool(figure.data) and all(series.type in _DRAWN for series in figure.data)


def draw(figure: Any, height_pixels: int) -> tuple[bytes, bytes]:  # noqa: ANN401 - plotly has no types
    """Return a plotly figure as SVG and as PDF, the same bytes each time; height_pixels: its height on the page."""
    from matplotlib import style

    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")  # names of users may have any character
        drawn = matplotlib_figure(figure, height_pixels)
        files = []
        for form, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
            file = io.BytesIO()
            drawn.savefig(file, format=form, metadata=metadata, dpi=_DPI)
            files.append(file.getvalue())
    return files[0], files[1]


def matplotlib_figure(figure: Any, height_pixels: int) -> Any:  # noqa: ANN401 - neither library has types
    """Return a plotly figure as one of matplotlib, with the legend below it."""
    from matplotlib.figure import Figure

    drawn = Figure((_WIDTH_INCHES, height_pixels / _PIXELS_PER_INCH), layout="constrained")
    numbers = list(dict.fromkeys(_number(series.yaxis) for series in figure.data))
    domains = [figure.layout[f"yaxis{number}"].domain or (0, 1) for number in numbers]
    is_shared = len(numbers) > 1 and any(figure.layout[f"xaxis{number}"].matches for number in numbers)
    heights = [high - low for low, high in domains]
    all_axes = drawn.subplots(len(numbers), sharex=is_shared, sharey=is_shared, height_ratios=heights, squeeze=False)
    panels = [_Panel(axes, figure, number) for axes, number in zip(all_axes[:, 0], numbers, strict=True)]
    for panel in panels:
        panel.draw()
    for panel, (_, top), axes in zip(panels, domains, all_axes[:, 0], strict=True):
        panel.set_up_axes()  # after the series of all panels, which may share an axis
        titles = [note.text for note in figure.layout.annotations if len(numbers) > 1 and note.y == top]
        axes.set_title(html.unescape("".join(titles)))
    _add_legend(drawn, figure, all_axes[:, 0])
    return drawn


def _add_legend(drawn: Any, figure: Any, all_axes: Sequence[Any]) -> None:  # noqa: ANN401
    """Add the legend below the axes in as many columns as fit, and its height to the height of the figure."""
    named = [artist for axes in all_axes for artist in axes.get_legend_handles_labels()[0]]
    is_asked = figure.layout.showlegend or any(series.showlegend for series in figure.data)
    if figure.layout.showlegend is False or not named or (len(named) < 2 and not is_asked):
        return
    for columns in range(min(len(named), 8), 0, -1):
        legend = drawn.legend(handles=named, loc="outside lower left", ncols=columns)
        extent = legend.get_window_extent()
        if extent.width <= drawn.bbox.width or columns == 1:
            break
        legend.remove()
    drawn.set_size_inches(_WIDTH_INCHES, drawn.get_figheight() + extent.height / drawn.dpi)


class _Panel:
    """The axes of one panel and the series in it."""

    def __init__(self, axes: Any, figure: Any, number: str) -> None:  # noqa: ANN401
        """Take the axes of matplotlib for the y axis of this number ("" for the first) of a plotly figure."""
        series = [each for each in figure.data if _number(each.yaxis) == number]
        self._axes, self._figure, self._series = axes, figure, series
        self._x_number = _number(series[0].xaxis)
        self._x, self._y = figure.layout[f"xaxis{self._x_number}"], figure.layout[f"yaxis{number}"]
        self._x_names = category_names(self._x, [each.x for each in series])
        self._y_names = category_names(self._y, [[each.name] if each.type == "box" else each.y for each in series])
        self._bar_ends = np.zeros(len(self._y_names))  # ends of the stacked bars so far, by row

    def draw(self) -> None:
        """Draw all series and the reference lines and bands."""
        for series in self._series:
            label = None if series.showlegend is False or not series.name else _wrapped(series.name, 100)
            number = next(number for number, each in enumerate(self._figure.data) if each is series)
            kind = "scatter" if series.type == "scattergl" else series.type
            getattr(self, f"_{kind}")(series, _colour_of(series) or style_of(number).colour, label)
        for shape in self._figure.layout.shapes:
            if _number(shape.xref) != self._x_number:
                continue
            colour = _colour(shape.line.color) or "#44444a"
            dash, width = _dash(shape.line.dash), (shape.line.width or 1) * _PIXEL
            if shape.type == "rect":
                self._axes.axvspan(shape.x0, shape.x1, color=_colour(shape.fillcolor), alpha=shape.opacity, lw=0)
            elif shape.x0 == shape.x1:
                self._axes.axvline(shape.x0, color=colour, linestyle=dash, linewidth=width)
            else:
                self._axes.axhline(shape.y0, color=colour, linestyle=dash, linewidth=width)

    def set_up_axes(self) -> None:
        """Set ranges, ticks and titles of both axes."""
        set_up(self._axes, "x", self._x, [_wrapped(name, 40) for name in self._x_names])
        set_up(self._axes, "y", self._y, [_wrapped(name, 40) for name in self._y_names])

    def _scatter(self, series: Any, colour: Any, label: str | None) -> None:  # noqa: ANN401
        """Draw the line, marks, error bars and texts of a series, and the area to the series before it if filled."""
        if series.x is None or series.y is None or series.marker.opacity == 0:
            return
        mode, is_stepped = series.mode or "lines+markers", series.line.shape == "hv"
        x, y = places(self._x, self._x_names, series.x), places(self._y, self._y_names, series.y)
        if series.fill == "tonexty":
            below = self._series[self._series.index(series) - 1].y
            fill, step = _colour(series.fillcolor), "post" if is_stepped else None
            self._axes.fill_between(x, places(self._y, self._y_names, below), y, color=fill, step=step, lw=0)
        look: dict[str, Any] = {"color": colour, "alpha": series.marker.opacity, "label": label, "clip_on": True}
        is_line = "lines" in mode and series.line.width != 0
        look["linestyle"] = _dash(series.line.dash) if is_line else "none"
        look["linewidth"] = (series.line.width or _LINE_PIXELS) * _PIXEL
        if "markers" in mode:
            look |= _mark(str(series.marker.symbol or ""))
            look["markersize"] = (series.marker.size or _MARK_PIXELS) * _PIXEL
            look["markeredgewidth"] = (series.marker.line.width or 1.5) * _PIXEL if "open" in look.pop("kind") else 0
            look["clip_on"] = series.cliponaxis is not False
        if is_line or "markers" in mode:
            self._axes.plot(x, y, drawstyle="steps-post" if is_stepped else "default", **look)
        if series.error_y.array is not None:
            above = np.asarray(series.error_y.array, np.float64)
            ends = above if series.error_y.arrayminus is None else series.error_y.arrayminus
            self._axes.errorbar(x, y, [ends, above], fmt="none", ecolor=colour, elinewidth=1, capsize=2)
        if "text" in mode and series.text is not None:
            self._texts(series, x, y)

    def _texts(self, series: Any, x: Float64, y: Float64) -> None:  # noqa: ANN401
        """Write the text of each point below it or on its right."""
        is_below = (series.textposition or "").startswith("bottom")
        offset, horizontal, vertical = ((0, -4), "center", "top") if is_below else ((5, 0), "left", "center")
        look = {"ha": horizontal, "va": vertical, "size": 6, "textcoords": "offset points", "xytext": offset}
        for text, *point in zip(series.text, x.tolist(), y.tolist(), strict=True):
            self._axes.annotate(html.unescape(text.strip()), point, **look)

    def _bar(self, series: Any, colour: Any, label: str | None) -> None:  # noqa: ANN401
        """Draw horizontal bars, after those of the series before, or below them if bars are grouped."""
        rows = places(self._y, self._y_names, series.y)
        values = np.nan_to_num(np.asarray(series.x, np.float64))
        bars = [each for each in self._series if each.type == "bar"]
        if self._figure.layout.barmode == "group":
            height = 0.8 / len(bars)
            rows, starts = rows + height * (bars.index(series) - (len(bars) - 1) / 2), np.zeros(len(values))
        else:
            height, starts = 0.8, self._bar_ends[rows.astype(np.int64)]
            self._bar_ends[rows.astype(np.int64)] += values
        self._axes.barh(rows, values, height, starts, color=colour, label=label)

    def _box(self, series: Any, colour: Any, _label: str | None) -> None:  # noqa: ANN401
        """Draw a horizontal box of the middle half of the values, whiskers of 1.5 times it, and a mark per value."""
        row = self._y_names.index(series.name)
        values = np.asarray(series.x, np.float64)
        line = {"color": colour, "linewidth": 1}
        self._axes.boxplot(
            values,
            orientation="horizontal",
            positions=[row],
            widths=0.5,
            showfliers=False,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": (colour, 0.35), "edgecolor": colour},
            **dict.fromkeys(("medianprops", "whiskerprops", "capprops"), line),
        )
        jitter = 0.25 * (np.arange(1, len(values) + 1) * _GOLDEN % 1 - 0.5)
        size = (series.marker.size or _MARK_PIXELS) * _PIXEL
        self._axes.plot(values, row + jitter, "o", color=colour, markersize=size * 0.75, markeredgewidth=0, alpha=0.6)

    def _heatmap(self, series: Any, _colour_of_series: Any, _label: str | None) -> None:  # noqa: ANN401
        """Draw the cells of a heat map and its scale on the right."""
        from matplotlib.colors import LinearSegmentedColormap

        z = np.array(series.z, np.float64)
        low = np.nanmin(z) if series.zmin is None else series.zmin
        high = np.nanmax(z) if series.zmax is None else series.zmax
        if series.zmid is not None:
            half = max(high - series.zmid, series.zmid - low)
            low, high = series.zmid - half, series.zmid + half
        scale = [(at, _on_white(_colour(colour))) for at, colour in series.colorscale]
        colours = LinearSegmentedColormap.from_list("page", scale, 1024)
        edges = [
            _edges(places(self._x, self._x_names, series.x)),
            _edges(places(self._y, self._y_names, series.y)),
        ]
        look = {"cmap": colours.reversed() if series.reversescale else colours, "vmin": low, "vmax": high}
        cells = self._axes.pcolormesh(*edges, z, rasterized=z.size > _MAX_VECTOR_CELLS, **look)
        self._axes.grid(visible=False)
        if series.ygap:
            self._axes.hlines(edges[1], edges[0][0], edges[0][-1], color="white", linewidth=series.ygap * _PIXEL)
        if series.showscale is not False:
            bar = self._axes.figure.colorbar(cells, ax=self._axes, pad=0.02, aspect=30)
            bar.outline.set_visible(False)
            set_up(bar.ax, "y", series.colorbar, [])


def _number(axis: str | None) -> str:
    """Return the number of an axis such as "x2": "" for the first."""
    return (axis or "")[1:]


def _edges(middles: Float64) -> Float64:
    """Return float64[n + 1]: the edges of cells around float64[n] middles."""
    steps = np.diff(middles) if len(middles) > 1 else np.ones(1)
    return np.concatenate([[middles[0] - steps[0] / 2], middles[:-1] + steps[: len(middles) - 1] / 2, [middles[-1] + steps[-1] / 2]])


def _colour_of(series: Any) -> Any:  # noqa: ANN401
    """Return the colour of a series, or None if it names none."""
    line = getattr(series, "line", None)
    return _colour(line.color if line is not None else None) or _colour(getattr(series, "marker", None) and series.marker.color)


def _colour(text: object) -> Any:  # noqa: ANN401
    """Return red, green, blue and opacity from 0 to 1 of a colour of plotly; None without a colour."""
    from matplotlib.colors import to_rgba

    if not isinstance(text, str):
        return None
    if not text.startswith("rgb"):
        return to_rgba(text)
    red, green, blue, *opacity = (float(number) for number in re.findall(r"[0-9.]++", text))
    return red / 255, green / 255, blue / 255, *(opacity or (1.0,))


def _on_white(colour: Sequence[float]) -> tuple[float, ...]:
    """Return the opaque colour that a colour with an opacity has on white."""
    *parts, opacity = colour
    return tuple(1 - opacity + opacity * part for part in parts)


def _dash(dash: str | None) -> Any:  # noqa: ANN401
    """Return the style of a line: its dash is a name of plotly, or lengths such as "5px,15px"."""
    if not dash or dash == "solid":
        return "-"
    return 0, _DASHES.get(dash) or tuple(float(length) / _LINE_PIXELS for length in re.findall(r"[0-9.]++", dash))


def _mark(symbol: str) -> dict[str, Any]:
    """Return the options of a mark of plotly: a shape, or with "-open" its outline, "-dot" or "-x" a hole in it."""
    from matplotlib.path import Path

    shape = symbol.removesuffix("-open").removesuffix("-dot").removesuffix("-x")
    look: dict[str, Any] = {"marker": _SYMBOLS.get(shape, "o"), "kind": symbol}
    if symbol.endswith("-open"):
        look["markerfacecolor"] = "none"
    elif symbol != shape:
        radii = np.resize((0.75, 0.15) if symbol.endswith("-x") else (0.45,), 8)
        hole = radii * np.exp(-2j * np.pi * (np.arange(8) + 0.5) / 8)  # clockwise, so that filling leaves it out
        corners = np.stack([hole.real, hole.imag], axis=1)
        look["marker"] = Path.make_compound_path(Path.unit_circle(), Path([*corners, corners[0]], closed=True))
    return look


def _wrapped(text: str, width: int) -> str:
    """Return a text of plotly without its escapes of HTML, in lines of at most about `width` characters."""
    return "\n".join(textwrap.wrap(html.unescape(str(text)), width)) or " "
