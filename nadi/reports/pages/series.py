"""Styles of chart series: 12 colours, combined with dashes and marks for 48 distinct series."""

from typing import NamedTuple

COLOURS = (
    "#1f77b4",
    "#ea7200",
    "#0ca800",
    "#cc6ce4",
    "#189c90",
    "#a84e36",
    "#909c00",
    "#f000fc",
    "#2460fc",
    "#908454",
    "#cc3c78",
    "#b4849c",
)
"""Colours at least 35 apart in CIELAB, also from the red of cut links; contrast of 3:1 on light and dark ground."""
_DASHES = (None, "dot", "longdash", "longdashdot")
_EXPECTED = ("dash", "dashdot", "5px,15px", "15px,5px,2px,5px")
_MARKS = ("", "-open", "-dot", "-x")


class SeriesStyle(NamedTuple):
    """The style of one series."""

    colour: str  # Colour as "#rrggbb"
    dash: str | None  # Dash of the line of measured values; None = solid
    expected_dash: str  # Dash of the line of expected values
    mark: str  # Suffix of a plotly symbol, such as "-open" for "circle-open"


def style(number: int) -> SeriesStyle:
    """Return the style of series `number` of a chart."""
    colour, turn = COLOURS[number % len(COLOURS)], number // len(COLOURS) % len(_DASHES)
    return SeriesStyle(colour, _DASHES[turn], _EXPECTED[turn], _MARKS[turn])
