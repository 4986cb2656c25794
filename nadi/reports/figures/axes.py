"""Axes of a figure: categories, ranges, ticks and titles of plotly's axes for those of matplotlib."""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from et.arrays import Float64

_MAX_NAMES = 45  # number of names of categories that an axis shows
_NAME_POINTS = 5.0  # mean width of a character of the ticks' text, in points
_FEW_DECADES = 3  # of a logarithmic axis, which has ticks at 2 and 5 times the powers of ten too


def category_names(layout: Any, columns: Sequence[Any]) -> list[str]:  # noqa: ANN401 - plotly has no types
    """Return the categories of an axis in their order; [] for an axis of numbers. columns: values of each series."""
    values = [value for column in columns if column is not None for value in column if value is not None]
    is_category = layout.type == "category" or any(isinstance(value, str) for value in values)
    return list(dict.fromkeys(map(str, values))) if is_category else []


def places(layout: Any, names: Sequence[str], values: Any) -> Float64:  # noqa: ANN401
    """Return float64[values]: numbers, or indices of categories; NaN for gaps and what a logarithmic axis lacks."""
    if names:
        index = {name: place for place, name in enumerate(names)}
        return np.array([index.get(str(value), np.nan) for value in values], np.float64)
    numbers = np.array(values, np.float64)  # None becomes NaN
    return np.where(numbers > 0, numbers, np.nan) if layout.type == "log" else numbers


def set_up(axes: Any, letter: str, layout: Any, names: Sequence[str]) -> None:  # noqa: ANN401
    """Set range, ticks and title of an axis of matplotlib, "x" or "y", by the layout of one of plotly.

    layout: of an axis, or of the scale of a heat map. names: Its categories as they are shown; [] for numbers.
    """
    axis = getattr(axes, f"{letter}axis")
    if getattr(layout, "visible", None) is False:
        axes.set_axis_off()
        return
    title = html.unescape(layout.title.text or "")
    axis.set_label_text(title)
    if names:
        _set_categories(axes, letter, names)
    else:
        is_log = getattr(layout, "type", None) == "log"
        if is_log:
            getattr(axes, f"set_{letter}scale")("log")
        _set_range(axes, letter, layout, is_log=is_log)
        _set_ticks(axis, layout, is_log=is_log)
    if getattr(layout, "autorange", None) == "reversed":
        axis.set_inverted(True)


def _set_categories(axes: Any, letter: str, names: Sequence[str]) -> None:  # noqa: ANN401
    """Name the ticks of an axis of categories, upright where they would overlap."""
    step = -(-len(names) // _MAX_NAMES)
    shown = names[::step]
    axis = getattr(axes, f"{letter}axis")
    axis.set_ticks(range(0, len(names), step), shown)
    getattr(axes, f"set_{letter}lim")(-0.5, len(names) - 0.5)
    width_points = 72 * axes.figure.get_figwidth() * 0.8 / len(shown)
    if letter == "x" and max(map(len, shown)) * _NAME_POINTS > width_points:
        axis.set_tick_params(rotation=90)


def _set_range(axes: Any, letter: str, layout: Any, *, is_log: bool) -> None:  # noqa: ANN401
    """Set the ends of an axis of numbers: those that its layout names, or from 0."""
    set_limits, given = getattr(axes, f"set_{letter}lim"), getattr(layout, "range", None)
    if given:
        set_limits(*(10.0**end if is_log else end for end in given))
    elif getattr(layout, "rangemode", None) == "tozero" and not is_log:
        low, high = getattr(axes, f"get_{letter}lim")()
        if low < 0 <= getattr(axes.dataLim, f"{letter}0") or low > 0:
            set_limits(0, high)


def _set_ticks(axis: Any, layout: Any, *, is_log: bool) -> None:  # noqa: ANN401
    """Set the ticks of an axis of numbers and their texts."""
    from matplotlib import ticker

    if getattr(layout, "tickvals", None) is not None:
        axis.set_ticks(layout.tickvals, layout.ticktext)
        axis.set_minor_locator(ticker.NullLocator())
        return
    if is_log:
        low, high = axis.get_view_interval()
        decades = np.log10(high / low)
        subs = (1, 2, 5) if decades < _FEW_DECADES else (1,)
        axis.set_major_locator(ticker.LogLocator(subs=subs) if decades > 1 else ticker.MaxNLocator(6, steps=(1, 2, 5, 10)))
        axis.set_minor_locator(ticker.NullLocator())
    elif layout.nticks:
        axis.set_major_locator(ticker.MaxNLocator(layout.nticks))
    form, suffix = layout.tickformat or "", html.unescape(layout.ticksuffix or "")
    if "%" in form:
        sign = "+" if form.startswith("+") else ""
        axis.set_major_formatter(lambda value, _: f"{100 * value:{sign}.6g}%")
    elif layout.exponentformat == "SI":
        axis.set_major_formatter(ticker.EngFormatter(suffix, sep=""))
    else:
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}{suffix}")
