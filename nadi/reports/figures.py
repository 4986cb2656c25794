"""Figures of pages as files for papers: SVG and PDF, which are drawn without a browser, and CSV with the numbers."""

import csv
import html
import importlib.util
import io
import re
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nadi import inputs
from nadi.errors import ConfigError, OutputError
from nadi.inputs.arrays import Float64
from nadi.reports.pages import Page, Plot, Plotly, series_style


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


Matplotlib = Any  # an object of matplotlib, which has no types here
Colour = tuple[float, ...]  # red, green, blue and opacity from 0 to 1
_INCHES = 7.0  # width of a figure
_PIXELS_PER_INCH = 96  # of a page, by CSS
_PIXEL = 72 / _PIXELS_PER_INCH  # points per pixel of a page
_LINE_PIXELS, _MARK_PIXELS = 2, 6  # plotly's width of lines and diameter of marks that name none
_OUTLINE_PIXELS = 1.5  # width of the outline of an open mark that names none
_LEGEND_WIDTH, _NAME_WIDTH = 85, 48  # number of characters in a line of the legend, and of a category
_MAX_NAMES = 45  # number of categories that have ticks
_CHARACTER_POINTS = 5.0  # mean width of a character of the text of ticks, in points
_SCALE_INCHES = 0.14  # width of the scale of a heat map
_MAX_VECTOR_CELLS = 3000  # cells of a heat map that is drawn as vector graphics; a larger one is an image in the file
_GOLDEN = 0.618034  # multiples of it modulo 1 spread evenly, so that the points of a box do not cover each other
_KINDS = {"scatter": "scatter", "scattergl": "scatter", "bar": "bar", "box": "box", "heatmap": "heat_map"}
_MARKS = {"circle": "o", "square": "s", "diamond": "D", "star": "*", "line-ew": "_"}
_STEPS = (1, 2, 5, 10)  # distances of ticks, times a power of ten
# Lengths of dashes and gaps in widths of the line, as plotly draws them at its default width
_DASHES: dict[str, tuple[float, ...]] = {"dot": (1.5, 1.5), "dash": (4.5, 4.5), "longdash": (7.5, 7.5)}
_DASHES |= {"dashdot": (4.5, 1.5, 1.5, 1.5), "longdashdot": (7.5, 3.0, 1.5, 3.0)}
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
    "legend.handlelength": 4,  # in sizes of the font: long enough to tell dashes apart
    "savefig.dpi": 300,  # of large heat maps
    "text.parse_math": False,  # names of users may have dollar signs
    "pdf.fonttype": 42,  # TrueType: fonts are in the file
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "nadi",  # ids in the file do not depend on chance
}


def can_draw(figure: Plotly) -> bool:
    """Return whether all series of a plotly figure are of kinds that this module draws."""
    return bool(figure.data) and all(series.type in _KINDS for series in figure.data)


def draw(figure: Plotly, height_pixels: int) -> tuple[bytes, bytes]:
    """Return a plotly figure as SVG and as PDF, the same bytes each time; height_pixels: height on the page."""
    import matplotlib.style

    files = []
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")  # names of users may have any character
        drawn = _figure(figure, height_pixels)
        for form, date in (("svg", "Date"), ("pdf", "CreationDate")):
            file = io.BytesIO()
            drawn.savefig(file, format=form, metadata={date: None})
            files.append(file.getvalue())
    return files[0], files[1]


def _figure(figure: Plotly, height_pixels: int) -> Matplotlib:
    """Return a plotly figure as one of matplotlib, a row per panel, with the legend below."""
    from matplotlib.figure import Figure

    drawn = Figure((_INCHES, height_pixels / _PIXELS_PER_INCH), layout="constrained")
    numbers = list(dict.fromkeys(_number(series.yaxis) for series in figure.data))
    domains = [figure.layout[f"yaxis{number}"].domain or (0, 1) for number in numbers]
    shares = any(figure.layout[f"xaxis{number}"].matches for number in numbers)
    heights = [top - bottom for bottom, top in domains]
    axes = drawn.subplots(len(numbers), sharex=shares, sharey=shares, height_ratios=heights, squeeze=False)[:, 0]
    panels = [_Panel(own, figure, number) for own, number in zip(axes, numbers, strict=True)]
    for panel in panels:
        panel.draw()
    for panel, own, (_, top) in zip(panels, axes, domains, strict=True):
        panel.set_up_axes()  # after the series of all panels, which may share an axis
        titles = (note.text for note in figure.layout.annotations if note.y == top)
        own.set_title(html.unescape("".join(titles)))
    named = [artist for own in axes for artist in own.get_legend_handles_labels()[0]]
    is_asked = figure.layout.showlegend or any(series.showlegend for series in figure.data)
    if figure.layout.showlegend is not False and len(named) > (not is_asked):
        _add_legend(drawn, named)
    return drawn


def _add_legend(drawn: Matplotlib, artists: Sequence[Matplotlib]) -> None:
    """Add the legend of artists in as many columns as fit, and its height to the height of the figure."""
    for columns in range(min(len(artists), 8), 0, -1):
        legend = drawn.legend(handles=artists, loc="outside lower left", ncols=columns)
        extent = legend.get_window_extent()
        if extent.width <= drawn.bbox.width or columns == 1:
            break
        legend.remove()
    drawn.set_size_inches(_INCHES, drawn.get_figheight() + extent.height / drawn.dpi)


class _Panel:
    """The axes of one panel and the series in it."""

    def __init__(self, axes: Matplotlib, figure: Plotly, number: str) -> None:
        """Take the axes of matplotlib for the y axis of this number ("" for the first) of a plotly figure."""
        self._axes, self._figure = axes, figure
        self._series = [each for each in figure.data if _number(each.yaxis) == number]
        self._bars = [each for each in self._series if each.type == "bar"]
        self._x_number = _number(self._series[0].xaxis)
        self._x, self._y = figure.layout[f"xaxis{self._x_number}"], figure.layout[f"yaxis{number}"]
        self._x_names = _categories(self._x, [each.x for each in self._series])
        self._y_names = _categories(self._y, [[each.name] if each.type == "box" else each.y for each in self._series])
        self._ends = np.zeros(len(self._y_names))  # ends of the stacked bars so far, by row

    def draw(self) -> None:
        """Draw all series and the reference lines and bands."""
        for series in self._series:
            label = None if series.showlegend is False or not series.name else _wrapped(series.name, _LEGEND_WIDTH)
            colour = _colour_of(series, series_style(_place(series, self._figure.data)).colour)
            getattr(self, f"_{_KINDS[series.type]}")(series, colour, label)
        for shape in self._figure.layout.shapes:
            look = {"color": _colour(shape.line.color or "#44444a"), "linestyle": _dash(shape.line.dash), "lw": 1}
            # shapes of other panels
            if _number(shape.xref) != self._x_number:
                continue
            if shape.type == "rect":
                self._axes.axvspan(shape.x0, shape.x1, color=_colour(shape.fillcolor), alpha=shape.opacity, lw=0)
            elif shape.x0 == shape.x1:
                self._axes.axvline(shape.x0, **look)
            else:
                self._axes.axhline(shape.y0, **look)

    def set_up_axes(self) -> None:
        """Set ranges, ticks and titles of both axes."""
        for letter, layout, names in (("x", self._x, self._x_names), ("y", self._y, self._y_names)):
            axis = getattr(self._axes, f"{letter}axis")
            if layout.visible is False:
                self._axes.set_axis_off()
            elif names:
                _set_categories(self._axes, letter, [_wrapped(name, _NAME_WIDTH) for name in names])
            else:
                _set_range(self._axes, letter, layout)
                _set_ticks(axis, layout)
            axis.set_label_text(html.unescape(layout.title.text or ""))
            axis.set_inverted(layout.autorange == "reversed")

    def _scatter(self, series: Plotly, colour: Colour, label: str | None) -> None:
        """Draw the line, marks, error bars and texts of a series, and the area to the series before it if filled."""
        if series.x is None or series.y is None or series.marker.opacity == 0:
            return
        mode, is_stepped = series.mode or "lines+markers", series.line.shape == "hv"
        x, y = _places(self._x, self._x_names, series.x), _places(self._y, self._y_names, series.y)
        # plotly fills towards the series before it
        if series.fill == "tonexty":
            below = _places(self._y, self._y_names, self._series[_place(series, self._series) - 1].y)
            step = "post" if is_stepped else None
            self._axes.fill_between(x, below, y, color=_colour(series.fillcolor), step=step, lw=0)
        is_line = "lines" in mode and series.line.width != 0
        look: dict[str, Any] = {"color": colour, "alpha": series.marker.opacity, "label": label}
        look |= {"linestyle": _dash(series.line.dash)} if is_line else {"linestyle": "none"}
        look |= {"linewidth": (series.line.width or _LINE_PIXELS) * _PIXEL}
        look |= _mark(series.marker) | {"clip_on": series.cliponaxis is not False} if "markers" in mode else {}
        if is_line or "markers" in mode:
            self._axes.plot(x, y, drawstyle="steps-post" if is_stepped else "default", **look)
        if series.error_y.array is not None:
            above = np.asarray(series.error_y.array, np.float64)
            ends = above if series.error_y.arrayminus is None else series.error_y.arrayminus
            cap = 2 * (series.error_y.width != 0)
            self._axes.errorbar(x, y, [ends, above], fmt="none", ecolor=colour, elinewidth=1, capsize=cap)
        if "text" in mode and series.text is not None:
            is_below = (series.textposition or "").startswith("bottom")
            look = {"ha": "center", "va": "top", "xytext": (0, -4)} if is_below else {"va": "center", "xytext": (5, 0)}
            for text, *point in zip(series.text, x.tolist(), y.tolist(), strict=True):
                self._axes.annotate(html.unescape(text.strip()), point, size=6, textcoords="offset points", **look)

    def _bar(self, series: Plotly, colour: Colour, label: str | None) -> None:
        """Draw horizontal bars, after those of the series before, or below them if bars are grouped."""
        rows, values = _places(self._y, self._y_names, series.y), np.nan_to_num(np.asarray(series.x, np.float64))
        if self._figure.layout.barmode == "group":
            height = 0.8 / len(self._bars)
            # around the middle of the row
            rows += height * (_place(series, self._bars) - (len(self._bars) - 1) / 2)
            self._axes.barh(rows, values, height, color=colour, label=label)
        else:
            numbers = rows.astype(np.int64)
            self._axes.barh(rows, values, 0.8, self._ends[numbers], color=colour, label=label)
            self._ends[numbers] += values

    def _box(self, series: Plotly, colour: Colour, _label: str | None) -> None:
        """Draw a horizontal box of the middle half of the values, whiskers of 1.5 times it, and a mark per value."""
        row, values, line = self._y_names.index(series.name), np.asarray(series.x), {"color": colour, "linewidth": 1}
        look: dict[str, Any] = dict.fromkeys(("medianprops", "whiskerprops", "capprops"), line)
        look |= {"boxprops": {"facecolor": (*colour[:3], 0.35), "edgecolor": colour}, "positions": [row], "widths": 0.5}
        look |= {"patch_artist": True, "showfliers": False, "manage_ticks": False, "orientation": "horizontal"}
        self._axes.boxplot(values, **look)
        jitter = 0.25 * (np.arange(1, len(values) + 1) * _GOLDEN % 1 - 0.5)
        self._axes.plot(values, row + jitter, "o", color=colour, markersize=3, markeredgewidth=0, alpha=0.6)

    def _heat_map(self, series: Plotly, _colour_of_series: Colour, _label: str | None) -> None:
        """Draw the cells of a heat map and its scale on the right."""
        from matplotlib.colors import CenteredNorm, LinearSegmentedColormap, Normalize

        z = np.array(series.z, np.float64)
        opaque = [_colour(colour) for _, colour in series.colorscale]
        opaque = [tuple(1 - alpha + alpha * part for part in colour) for *colour, alpha in opaque]  # on white
        colours = [(at, colour) for (at, _), colour in zip(series.colorscale, opaque, strict=True)]
        scale = LinearSegmentedColormap.from_list("page", colours, 1024)
        x, y = (
            np.append(middles - _half(middles), middles[-1] + _half(middles))
            for middles in (_places(self._x, self._x_names, series.x), _places(self._y, self._y_names, series.y))
        )
        look: dict[str, Any] = {
            "norm": Normalize(series.zmin, series.zmax) if series.zmid is None else CenteredNorm(series.zmid)
        }
        look |= {"cmap": scale.reversed() if series.reversescale else scale, "rasterized": z.size > _MAX_VECTOR_CELLS}
        cells = self._axes.pcolormesh(x, y, z, **look)
        self._axes.grid(visible=False)
        if series.ygap:
            self._axes.hlines(y, x[0], x[-1], color="white", linewidth=series.ygap * _PIXEL)
        if series.showscale is not False:
            drawn, layout = self._axes.figure, series.colorbar
            bar = drawn.colorbar(cells, ax=self._axes, pad=0.02, aspect=drawn.get_figheight() / _SCALE_INCHES)
            bar.outline.set_visible(False)
            bar.ax.set_ylabel(html.unescape(layout.title.text or ""))
            _set_ticks(bar.ax.yaxis, layout)


def _categories(layout: Plotly, columns: Sequence[Any]) -> list[str]:
    """Return the categories of an axis in their order; [] for an axis of numbers. columns: values of each series."""
    values = [value for column in columns if column is not None for value in column if value is not None]
    is_category = layout.type == "category" or any(isinstance(value, str) for value in values)
    return list(dict.fromkeys(map(str, values))) if is_category else []


def _places(layout: Plotly, names: Sequence[str], values: Any) -> Float64:  # noqa: ANN401 - numbers or names
    """Return float64[values]: numbers, or indices of categories; NaN for gaps and what a logarithmic axis lacks."""
    if names:
        place = {name: number for number, name in enumerate(names)}
        return np.array([place.get(str(value), np.nan) for value in values], np.float64)
    numbers = np.array(values, np.float64)  # None becomes NaN
    return np.where(numbers > 0, numbers, np.nan) if layout.type == "log" else numbers


def _place(series: Plotly, among: Sequence[Plotly]) -> int:
    """Return the place of a series among several, of which others may be equal."""
    return next(place for place, each in enumerate(among) if each is series)


def _half(middles: Float64) -> float:
    """Return half the width of cells at equal distances."""
    return float(middles[-1] - middles[0]) / max(len(middles) - 1, 1) / 2 or 0.5


def _set_categories(axes: Matplotlib, letter: str, names: Sequence[str]) -> None:
    """Name the ticks of an axis, "x" or "y", by categories, upright where they would overlap."""
    step, axis = -(-len(names) // _MAX_NAMES), getattr(axes, f"{letter}axis")
    axis.set_ticks(range(0, len(names), step), names[::step])
    getattr(axes, f"set_{letter}lim")(-0.5, len(names) - 0.5)
    if letter == "x" and max(map(len, names)) * len(names[::step]) * _CHARACTER_POINTS > 0.8 * 72 * _INCHES:
        axis.set_tick_params(rotation=90)


def _set_range(axes: Matplotlib, letter: str, layout: Plotly) -> None:
    """Set the kind of an axis of numbers, and its ends to those that its layout names, or the first to 0."""
    if layout.type == "log" and getattr(axes.dataLim, f"{letter}1") > 0:  # matplotlib's scale needs values
        getattr(axes, f"set_{letter}scale")("log")
    set_limits = getattr(axes, f"set_{letter}lim")
    if layout.range:
        set_limits(*(10.0**end if layout.type == "log" else end for end in layout.range))
    elif layout.rangemode == "tozero" and layout.type != "log" and getattr(axes.dataLim, f"{letter}0") >= 0:
        set_limits(0, getattr(axes, f"get_{letter}lim")()[1])


def _set_ticks(axis: Matplotlib, layout: Plotly) -> None:
    """Set the ticks of numbers and their texts; layout: layout of an axis, or of the scale of a heat map."""
    from matplotlib import ticker

    axis.set_minor_locator(ticker.NullLocator())
    if layout.tickvals is not None:
        axis.set_ticks(layout.tickvals, layout.ticktext)
        return
    low, high = axis.get_view_interval()
    # within one decade, ticks of a linear scale read better
    decades = np.log10(high / low) if axis.get_scale() == "log" else 0
    if decades > 1:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if decades < 3 else (1,)))
    else:
        axis.set_major_locator(ticker.MaxNLocator(layout.nticks or "auto", steps=_STEPS))
    form, suffix = layout.tickformat or "", html.unescape(layout.ticksuffix or "")
    if "%" in form:
        axis.set_major_formatter(lambda value, _: f"{100 * value:{'+' * ('+' in form)}.6g}%")
    elif layout.exponentformat == "SI":
        axis.set_major_formatter(ticker.EngFormatter(suffix, sep=""))
    else:
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}{suffix}")


def _number(axis: str | None) -> str:
    """Return the number of an axis such as "x2" or "x2 domain": "" for the first."""
    return (axis or "")[1:].removesuffix(" domain")


def _colour_of(series: Plotly, otherwise: str) -> Colour:
    """Return the colour of the line or the marks of a series, `otherwise` if it names none."""
    given = (series[part].color for part in ("line", "marker") if part in series)
    return _colour(next((colour for colour in given if isinstance(colour, str)), otherwise))


def _colour(text: str) -> Colour:
    """Return a colour of plotly, such as "#102030" or "rgba(16, 32, 48, 0.5)"."""
    from matplotlib.colors import to_rgba

    if not text.startswith("rgb"):
        return tuple(to_rgba(text))
    red, green, blue, *opacity = (float(number) for number in re.findall(r"[0-9.]++", text))
    return red / 255, green / 255, blue / 255, *(opacity or [1.0])


def _dash(dash: str | None) -> tuple[int, tuple[float, ...] | None]:
    """Return where a dash begins, and its lengths; dash: a name of plotly, or lengths such as "5px,15px"."""
    if not dash or dash == "solid":
        return 0, None
    return 0, _DASHES.get(dash) or tuple(float(length) / _LINE_PIXELS for length in re.findall(r"[0-9.]++", dash))


def _mark(marker: Plotly) -> dict[str, Any]:
    """Return the options of a mark: its shape is filled, or with "-open" in its symbol an outline."""
    symbol = str(marker.symbol or "circle")
    shape = _MARKS[symbol.removesuffix("-open").removesuffix("-dot").removesuffix("-x")]
    look = {"marker": shape, "markersize": (marker.size or _MARK_PIXELS) * _PIXEL, "markeredgewidth": 0}
    if symbol.endswith("-open"):
        look |= {"markerfacecolor": "none", "markeredgewidth": (marker.line.width or _OUTLINE_PIXELS) * _PIXEL}
    return look


def _wrapped(text: str, width: int) -> str:
    """Return a text of plotly without its escapes of HTML, in lines of at most `width` characters."""
    words = html.unescape(str(text)).replace(",", ", ").split()
    return "\n".join(textwrap.wrap(" ".join(words), width, break_on_hyphens=False)) or " "
