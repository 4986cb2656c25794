"""How the series of a picture look: the first 12 differ in colour, and with dash and mark any 48."""

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
"""At least 35 apart in CIELAB, and from red, which marks what is cut; each at least 3:1 on light and on dark ground."""
_DASHES = (None, "dot", "longdash", "longdashdot")
_EXPECTED = ("dash", "dashdot", "5px,15px", "15px,5px,2px,5px")
_MARKS = ("", "-open", "-dot", "-x")


class SeriesStyle(NamedTuple):
    """Of one series.

    Attributes:
        colour: "#rrggbb".
        dash: of the line of what was measured; None = it is solid.
        expected_dash: of the line of what was expected beside it.
        mark: ending of a plotly symbol, "circle" + "-open".
    """

    colour: str
    dash: str | None
    expected_dash: str
    mark: str


def style(number: int) -> SeriesStyle:
    """Of series `number` of a picture."""
    colour, turn = COLOURS[number % len(COLOURS)], number // len(COLOURS) % len(_DASHES)
    return SeriesStyle(colour, _DASHES[turn], _EXPECTED[turn], _MARKS[turn])
