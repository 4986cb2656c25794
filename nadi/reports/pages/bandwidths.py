"""Charts of bus bandwidth over size: lines with bands around them, and measured points."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nadi.reports.pages import empty_figure, series_style


class BandwidthSeries(NamedTuple):
    """Bus bandwidths of some sizes."""

    name: str
    sizes: Sequence[int]  # sizes of the buffer in bytes, ascending
    values: Sequence[float]  # bandwidths in GB/s
    low: Sequence[float] = ()  # lower end of the band in GB/s; () = no band
    high: Sequence[float] = ()  # upper end of the band in GB/s
    measured: Sequence[float] = ()  # measured bandwidths of the same sizes in GB/s, shown as points; () = none


def bandwidth_chart(series: Iterable[BandwidthSeries]) -> Any:  # noqa: ANN401 - plotly has no types
    """Return a plotly Figure of bus bandwidth over size.

    Args:
        series: The series, each in a colour of its own.
    """
    chart = empty_figure("size in bytes", "GB/s")
    for number, each in enumerate(series):
        style = series_style(number)
        if each.low:
            area = {"x": [*each.sizes, *reversed(each.sizes)], "y": [*each.high, *reversed(each.low)], "fill": "toself"}
            look = {"fillcolor": style.colour, "opacity": 0.15, "line": {"width": 0}, "hoverinfo": "skip"}
            chart.add_scatter(**area, **look, mode="lines", showlegend=False)
        mode = "lines" if each.measured else "lines+markers"
        chart.add_scatter(x=each.sizes, y=each.values, name=each.name, mode=mode, **style.line_and_marker())
        if each.measured:
            name, look = f"{each.name}, measured", {"color": style.colour, "symbol": "x", "size": 9}
            chart.add_scatter(x=each.sizes, y=each.measured, name=name, mode="markers", marker=look)
    chart.update_xaxes(type="log")
    chart.update_yaxes(rangemode="tozero")
    return chart
