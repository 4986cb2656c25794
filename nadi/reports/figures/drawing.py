"""Drawing of Plotly figures as lines, areas and text: scatter, bars, boxes and heat maps, with axes and a legend.

Browsers draw the charts of pages with Plotly's script. Files for papers need no browser, so that this module draws the
kinds of series that pages have.
"""

import html
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from nadi.reports.figures.axes import Axis
from nadi.reports.figures.shapes import Colour, Path, Point, Text, width_of

WIDTH = 504.0  # width of a figure in points: seven inches
_LEFT_OF_TICKS, _BELOW, _TOP, _RIGHT = 24.0, 34.0, 14.0, 14.0  # margins in points
_SIZE = 8.0  # size of the text in points
_ROW = 12.0  # height of a row of the legend
_MARK_PIXELS, _LINE_PIXELS = 6, 2  # diameter of marks and width of lines that name none, as in Plotly
_PIXEL = 0.75  # points per pixel of the page
_GREY: Colour = (0.85, 0.85, 0.87)
_DARK: Colour = (0.25, 0.25, 0.28)
_DASHES = {"dot": (1, 2), "dash": (4, 3), "longdash": (7, 3), "longdashdot": (7, 2, 1, 2), "dashdot": (4, 2, 1, 2)}
_DRAWN = {"scatter", "scattergl", "bar", "box", "heatmap"}


def can_draw(figure: Any) -> bool:  # noqa: ANN401 - Plotly has no types
    """Return whether all series of a Plotly figure are of kinds that this module draws."""
    return bool(figure.data) and all(series.type in _DRAWN for series in figure.data)


def draw(figure: Any, pixels: int) -> tuple[list[Path | Text], float]:  # noqa: ANN401 - Plotly has no types
    """Return the shapes of a Plotly figure, and its height in points; pixels: height on the page."""
    drawing = _Drawing(figure, pixels * _PIXEL)
    return drawing.shapes(), drawing.height


class _Drawing:
    """The drawing of one figure."""

    def __init__(self, figure: Any, plot_height: float) -> None:  # noqa: ANN401 - Plotly has no types
        self._figure, self._series = figure, list(figure.data)
        self._colours = {id(series): _first_colour(series, number) for number, series in enumerate(self._series)}
        self._x = {name: self._axis(f"x{name}", "x") for name in dict.fromkeys(map(_x_of, self._series))}
        self._y = {name: self._axis(f"y{name}", "y") for name in dict.fromkeys(map(_y_of, self._series))}
        ticks = [text for axis in self._y.values() if axis.layout.visible is not False for _, text in axis.ticks()]
        self._left = _LEFT_OF_TICKS + max((width_of(text, _SIZE) for text in ticks), default=0.0)
        legend = list(self._legend())
        self._plot = plot_height - _TOP - _BELOW  # height of the area of all panels
        self.height = plot_height + _ROW * (max((row for row, *_ in legend), default=-1) + 1)
        self._entries = legend

    def _axis(self, name: str, letter: str) -> Axis:
        """Return an axis ("x2"); axes that match each other have one range."""
        layout = self._figure.layout[f"{letter}axis{name[1:]}"]
        matches = {name, layout.matches or name}
        group = [
            series
            for series in self._series
            if (own := f"{letter}{(_x_of if letter == 'x' else _y_of)(series)}") in matches
            or self._figure.layout[f"{letter}axis{own[1:]}"].matches in matches
        ]
        return Axis(layout, [column for series in group for column in _values(series, letter, self._figure)])

    def shapes(self) -> list[Path | Text]:
        """Return all shapes."""
        found: list[Path | Text] = []
        for name in self._y:
            found += self._frame(name)
        base: dict[tuple[str, float], float] = {}
        bars = [series for series in self._series if series.type == "bar"]
        for series in self._series:
            kind = "scatter" if series.type == "scattergl" else series.type
            if kind == "bar":
                found += self._bars(series, bars.index(series), len(bars), base)
            else:
                found += getattr(self, f"_{kind}")(series)
        for note in self._figure.layout.annotations:
            at = self._left, _TOP + (1 - (note.y or 0)) * self._plot - 2
            found.append(Text(at, _plain(note.text), _SIZE - 1))
        found += self._vertical_lines()
        for row, x, series in self._entries:
            y, colour = self.height - _ROW * row - 4, self._colours[id(series)]
            is_mark = (getattr(series, "mode", None) or "").startswith("markers")
            mark = _mark((x + 8, y - 3), 3.5, colour, str(series.marker.symbol or "")) if is_mark else None
            found.append(mark or Path([(x, y - 3), (x + 16, y - 3)], colour, 2, _dash(series)))
            found.append(Text((x + 20, y), _plain(series.name), _SIZE))
        return found

    def _vertical_lines(self) -> Iterator[Path]:
        """Yield the vertical lines that a figure has beside its series."""
        for line in self._figure.layout.shapes:
            if line.type == "line" and line.x0 == line.x1:
                x = self._left + float(next(iter(self._x.values())).share([line.x0])[0]) * (WIDTH - self._left - _RIGHT)
                yield Path([(x, _TOP), (x, _TOP + self._plot)], _DARK, 1, _DASHES["dash"])

    def _legend(self) -> Iterator[tuple[int, float, Any]]:
        """Yield row, left end and series of the entries of the legend, from the last row upwards."""
        if self._figure.layout.showlegend is False:
            return
        named = [series for series in self._series if series.name and series.showlegend is not False]
        if len(named) < 2 and not self._figure.layout.showlegend:
            return
        widths = [width_of(_plain(series.name), _SIZE) + 34 for series in named]
        rows: list[list[tuple[float, Any]]] = [[]]
        x = self._left
        for series, width in zip(named, widths, strict=True):
            if rows[-1] and x + width > WIDTH:
                rows.append([])
                x = self._left
            rows[-1].append((x, series))
            x += width
        yield from ((len(rows) - 1 - row, x, series) for row, entries in enumerate(rows) for x, series in entries)

    def _box_of(self, name: str) -> tuple[float, float]:
        """Return upper end and height of the panel of a y axis."""
        low, high = self._y[name].layout.domain or (0.0, 1.0)
        return _TOP + (1 - high) * self._plot, (high - low) * self._plot

    def _points(self, series: Any, x: Any, y: Any) -> np.ndarray:  # noqa: ANN401 - numbers or names
        """Return float64[n, 2]: places on the page of values of a series, NaN where one is missing."""
        top, height = self._box_of(_y_of(series))
        across = self._left + self._x[_x_of(series)].share(x) * (WIDTH - self._left - _RIGHT)
        return np.stack([across, top + (1 - self._y[_y_of(series)].share(y)) * height], axis=1)

    def _frame(self, name: str) -> Iterator[Path | Text]:
        """Yield grid, ticks and titles of a panel."""
        y_axis, (top, height) = self._y[name], self._box_of(name)
        x_axis = self._x.get(name) or next(iter(self._x.values()))
        right = WIDTH - _RIGHT
        if y_axis.layout.visible is not False:
            for share, text in y_axis.ticks():
                y = top + (1 - share) * height
                yield Path([(self._left, y), (right, y)], _GREY, 0.5)
                yield Text((self._left - 4, y + 3), text, _SIZE, "end")
            if y_axis.layout.title.text:
                yield Text((11, top + height / 2), _plain(y_axis.layout.title.text), _SIZE, "middle", is_upward=True)
        if x_axis.layout.visible is not False:
            is_last = top + height > _TOP + self._plot - 1
            for share, text in x_axis.ticks():
                x = self._left + share * (right - self._left)
                yield Path([(x, top), (x, top + height)], _GREY, 0.5)
                if is_last:
                    yield Text((x, top + height + 11), text, _SIZE, "middle")
            if is_last and x_axis.layout.title.text:
                middle = (self._left + right) / 2
                yield Text((middle, top + height + 26), _plain(x_axis.layout.title.text), _SIZE, "middle")

    def _scatter(self, series: Any) -> Iterator[Path | Text]:  # noqa: ANN401 - Plotly has no types
        """Yield lines, areas, marks, error bars and texts of a scatter series."""
        if series.x is None or series.y is None or (series.marker.opacity == 0 and series.mode == "markers"):
            return
        points, mode = self._points(series, series.x, series.y), series.mode or "lines+markers"
        if "lines" in mode:
            yield from self._line(series, points)
        yield from self._error_bars(series, points, self._colours[id(series)])
        known = np.flatnonzero(np.isfinite(points).all(axis=1)).tolist()
        if "markers" in mode:
            colours, sizes = _each(series.marker.color, len(points)), _each(series.marker.size, len(points))
            for place in known:
                colour = _colour(colours[place]) or self._colours[id(series)]
                radius = (sizes[place] or _MARK_PIXELS) * _PIXEL / 2
                yield _mark(_point(points[place]), radius, colour, str(series.marker.symbol or ""))
        if "text" in mode and series.text is not None:
            for place in known:
                x, y = _point(points[place])
                yield Text((x + 5, y + 3), _plain(series.text[place]), _SIZE - 1)

    def _line(self, series: Any, points: np.ndarray) -> Iterator[Path]:  # noqa: ANN401 - Plotly has no types
        """Yield the line of a scatter series, and the area between it and the series before it if that is filled."""
        is_stepped = series.line.shape == "hv"
        corners = _steps(points) if is_stepped else points
        if series.fill == "tonexty":
            before = self._series[self._series.index(series) - 1]
            under = self._points(before, before.x, before.y)
            area = [*map(_point, corners), *map(_point, (_steps(under) if is_stepped else under)[::-1])]
            yield Path(area, fill=self._colours[id(series)], opacity=0.25)
        for run in _runs(corners) if series.line.width != 0 else ():
            width = (series.line.width or _LINE_PIXELS) * _PIXEL
            yield Path(run, self._colours[id(series)], width, _dash(series))

    def _error_bars(self, series: Any, points: np.ndarray, colour: Colour) -> Iterator[Path]:  # noqa: ANN401
        """Yield the vertical error bars of a scatter series."""
        if series.error_y.array is None:
            return
        y, above = np.asarray(series.y, np.float64), np.asarray(series.error_y.array, np.float64)
        below = above if series.error_y.arrayminus is None else np.asarray(series.error_y.arrayminus, np.float64)
        ends = (self._points(series, series.x, end) for end in (y - below, y + above))
        for place, low, high in zip(points, *ends, strict=True):
            if np.isfinite([place, low, high]).all() and low[1] != high[1]:
                yield Path([_point(low), _point(high)], colour, 1)

    def _bars(self, series: Any, place: int, count: int, base: dict) -> Iterator[Path]:  # noqa: ANN401
        """Yield horizontal bars: the series number `place` of `count`; base: ends of the stacked bars so far."""
        rows, is_group = self._y[_y_of(series)].share(series.y), self._figure.layout.barmode == "group"
        top, height = self._box_of(_y_of(series))
        thick = 0.8 * height / max(len(self._y[_y_of(series)].names), 1)
        for row, value in zip(rows.tolist(), np.nan_to_num(np.asarray(series.x, np.float64)).tolist(), strict=True):
            begin = 0.0 if is_group else base.get((_y_of(series), row), 0.0)
            base[_y_of(series), row] = begin + value
            left, right = (float(at) for at in self._x[_x_of(series)].share([begin, begin + value]))
            middle = top + (1 - row) * height - thick / 2
            own = thick / count if is_group else thick
            upper = middle + (own * place if is_group else 0)
            if value:
                yield self._rectangle(left, right, upper, upper + own, self._colours[id(series)])

    def _box(self, series: Any) -> Iterator[Path]:  # noqa: ANN401 - Plotly has no types
        """Yield a horizontal box: the middle half of the values, their median, and a mark for each."""
        values = np.asarray(series.x, np.float64)
        row = float(self._y[_y_of(series)].share([series.name])[0])
        top, height = self._box_of(_y_of(series))
        thick = 0.5 * height / max(len(self._y[_y_of(series)].names), 1)
        middle, colour = top + (1 - row) * height, self._colours[id(series)]
        axis = self._x[_x_of(series)]
        first, median, third = (float(at) for at in axis.share(np.percentile(values, (25, 50, 75))))
        box = self._rectangle(first, third, middle - thick / 2, middle + thick / 2, colour)
        yield box._replace(opacity=0.4)
        yield self._rectangle(median, median, middle - thick / 2, middle + thick / 2, colour)._replace(stroke=colour)
        for share in axis.share(values).tolist():
            yield _mark((self._left + share * (WIDTH - self._left - _RIGHT), middle), 1.5, colour, "")

    def _heatmap(self, series: Any) -> Iterator[Path | Text]:  # noqa: ANN401 - Plotly has no types
        """Yield the cells of a heat map, equal neighbours as one, and its scale above it."""
        z = np.array(series.z, np.float64)
        low = float(np.nanmin(z)) if series.zmin is None else float(series.zmin)
        high = float(np.nanmax(z)) if series.zmax is None else float(series.zmax)
        scale = series.colorscale or ((0, "#ffffff"), (1, "#d6202a"))
        stops = np.array([float(at) for at, _ in scale])
        colours = np.array([_colour(colour) or (1.0, 1.0, 1.0) for _, colour in scale])
        share = np.round(np.clip((z - low) / ((high - low) or 1.0), 0, 1), 2)
        share = 1 - share if series.reversescale else share
        top, height = self._box_of(_y_of(series))
        rows = self._y[_y_of(series)].share(series.y)
        edges = np.clip(self._x[_x_of(series)].cells(series.x), 0, 1)
        thick = height / max(len(rows), 1)
        for row, cells in zip(rows.tolist(), share, strict=True):
            upper = top + (1 - row) * height - thick / 2
            begins = np.flatnonzero(np.diff(cells, prepend=np.nan) != 0)
            for begin, end in zip(begins, [*begins[1:], len(cells)], strict=True):
                if np.isfinite(cells[begin]):
                    colour = tuple(float(np.interp(cells[begin], stops, part)) for part in colours.T)
                    yield self._rectangle(edges[begin], edges[end], upper, upper + 0.94 * thick, colour)  # type: ignore[arg-type]
        if series.showscale is not False:
            yield from self._scale(low, high, stops, colours[::-1] if series.reversescale else colours)

    def _scale(self, low: float, high: float, stops: np.ndarray, colours: np.ndarray) -> Iterator[Path | Text]:
        """Yield the scale of colours of a heat map from its lowest to its highest value."""
        steps, width = 24, 3.0
        begin = WIDTH - _RIGHT - steps * width - width_of(f"{high:,.4g}", _SIZE) - 4
        for step in range(steps):
            colour = tuple(float(np.interp(step / (steps - 1), stops, part)) for part in colours.T)
            left = begin + step * width
            corners = [(left, 3.0), (left + width, 3.0), (left + width, 10.0), (left, 10.0)]
            yield Path(corners, fill=colour)  # type: ignore[arg-type]
        yield Text((begin - 4, 10), f"{low:,.4g}", _SIZE, "end")
        yield Text((begin + steps * width + 4, 10), f"{high:,.4g}", _SIZE)

    def _rectangle(self, left: float, right: float, upper: float, lower: float, colour: Colour) -> Path:
        """Return a filled rectangle; left, right: shares of the x axis; upper, lower: points of the page."""
        a, b = (self._left + share * (WIDTH - self._left - _RIGHT) for share in (left, right))
        return Path([(a, upper), (b, upper), (b, lower), (a, lower)], fill=colour)


def _x_of(series: Any) -> str:  # noqa: ANN401 - Plotly has no types
    """Return the number of the x axis of a series, "" for the first."""
    return (series.xaxis or "x")[1:]


def _y_of(series: Any) -> str:  # noqa: ANN401 - Plotly has no types
    """Return the number of the y axis of a series, "" for the first."""
    return (series.yaxis or "y")[1:]


def _values(series: Any, letter: str, figure: Any) -> list[Any]:  # noqa: ANN401 - Plotly has no types
    """Return columns of values that an axis must show for a series."""
    if series.type == "box":
        return [series.x] if letter == "x" else [[series.name]]
    column = series[letter] if series[letter] is not None else ()
    if series.type == "bar" and letter == "x":
        stacked = [np.nan_to_num(np.asarray(own.x, np.float64)) for own in figure.data if own.type == "bar"]
        return [[0.0], stacked[0] if figure.layout.barmode == "group" else np.sum(stacked, axis=0), *stacked]
    if letter == "y" and series.type.startswith("scatter") and series.error_y.array is not None:
        y, above = np.asarray(column, np.float64), np.asarray(series.error_y.array, np.float64)
        below = above if series.error_y.arrayminus is None else np.asarray(series.error_y.arrayminus, np.float64)
        return [column, y + above, y - below]
    return [column]


def _first_colour(series: Any, number: int) -> Colour:  # noqa: ANN401 - Plotly has no types
    """Return the colour of a series."""
    from nadi.reports.pages.charts import style

    line = getattr(series, "line", None)
    given = (line.color if line is not None else None, series.marker.color if hasattr(series, "marker") else None)
    fill = getattr(series, "fillcolor", None)
    found = next((colour for each in (*given, fill) if (colour := _colour(each)) is not None), None)
    return found or _colour(style(number).colour) or _DARK


def _colour(text: object) -> Colour | None:
    """Return the colour of "#rrggbb" or "rgba(r, g, b, a)" on white; None for anything else."""
    if not isinstance(text, str):
        return None
    if re.fullmatch("#[0-9a-fA-F]{6}", text):
        red, green, blue = (int(text[at : at + 2], 16) / 255 for at in (1, 3, 5))
        return red, green, blue
    numbers = [float(number) for number in re.findall(r"[0-9.]++", text)] if text.startswith("rgb") else []
    if len(numbers) not in {3, 4}:
        return None
    opacity = numbers[3] if len(numbers) == 4 else 1.0
    red, green, blue = (1 - opacity + opacity * number / 255 for number in numbers[:3])
    return red, green, blue


def _dash(series: Any) -> tuple[int, ...]:  # noqa: ANN401 - Plotly has no types
    line = getattr(series, "line", None)
    return _DASHES.get(str(getattr(line, "dash", None)), ())


def _each(value: Any, count: int) -> list[Any]:  # noqa: ANN401 - one value or several
    return list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value] * count


def _steps(points: np.ndarray) -> np.ndarray:
    """Return the corners of a line that goes to the right, then up or down, to each point."""
    corners = np.repeat(points, 2, axis=0)[:-1]
    corners[1::2, 1] = points[:-1, 1]
    corners[1::2, 0] = points[1:, 0]
    return corners


def _runs(points: np.ndarray) -> Iterator[list[Point]]:
    """Yield the parts of a line between missing points, of two points or more."""
    is_known = np.isfinite(points).all(axis=1)
    ends = np.flatnonzero(np.diff(is_known.astype(np.int8), prepend=0, append=0))
    for begin, end in ends.reshape(-1, 2).tolist():
        if end - begin > 1:
            yield [_point(point) for point in points[begin:end]]


def _mark(at: Point, radius: float, colour: Colour, symbol: str) -> Path:
    """Return a mark: a circle, or another polygon for symbols such as "square-open"."""
    corners = {"square": 4, "diamond": 4, "star": 5, "line": 2}.get(symbol.partition("-")[0], 12)
    turn = np.pi / 4 if symbol.startswith("square") else 0.0
    angles = turn + 2 * np.pi * np.arange(corners) / corners
    points = [(at[0] + radius * float(np.cos(angle)), at[1] + radius * float(np.sin(angle))) for angle in angles]
    if corners == 2:
        return Path(points, colour, 2)
    return Path([*points, points[0]], colour, 1.5) if "open" in symbol else Path(points, fill=colour)


def _point(row: np.ndarray) -> Point:
    return float(row[0]), float(row[1])


def _plain(text: str) -> str:
    """Return a text of Plotly without its escapes of HTML."""
    return html.unescape(str(text))
