"""Plot of a group of the validation page: the error of each prediction over the published figure, as SVG."""

import math
from collections.abc import Sequence

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 220, 56, 36, 12  # pixels
_FONT, _BAND = ' font-family="sans-serif" font-size="12" fill="#666"', ' fill="#2a9d8f" fill-opacity="0.15"'
_AIM = 0.05  # error that the project wants to stay within, as a band
_SHOWN = 0.98  # fraction of the errors that the vertical axis must hold, so that an outlier does not set it
_SCALES = (0.1, 0.2, 0.5, 1.0, 2.0)  # maximum errors that the vertical axis shows


def error_plot(published: Sequence[float], errors: Sequence[float], unit: str) -> str:
    """Return the SVG text of a plot: a point for each figure, on a logarithmic axis of the published values.

    Args:
        published: Published values in `unit`, above 0.
        errors: Relative error of each prediction; those beyond the axis are drawn at its end.
        unit: Unit of the published values, for the axis.
    """
    most = sorted(map(abs, errors))[int(_SHOWN * (len(errors) - 1))]
    scale = next((limit for limit in _SCALES if most <= limit), _SCALES[-1])
    first = math.floor(math.log10(min(published)))
    decades = max(1, math.ceil(math.log10(max(published))) - first)
    right, low = _WIDTH - 30, _HEIGHT - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - first) / decades * (right - _LEFT)

    def y(error: float) -> float:
        return _TOP + (1 - max(-1.0, min(1.0, error / scale))) / 2 * (low - _TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"{_FONT}>',
        f'<rect x="{_LEFT}" y="{y(_AIM):.1f}" width="{right - _LEFT}" height="{y(-_AIM) - y(_AIM):.1f}"{_BAND}/>',
    ]
    for error in (-scale, -scale / 2, 0.0, scale / 2, scale):
        parts.append(f'<path d="M{_LEFT} {y(error):.1f}H{right}" stroke="#999" stroke-width="0.5"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(error) + 4:.1f}" text-anchor="end">{error:+.0%}</text>')
    for exponent in range(first, first + decades + 1):
        at = x(10.0**exponent)
        parts.append(f'<path d="M{at:.1f} {_TOP}V{low}" stroke="#999" stroke-width="0.5"/>')
        parts.append(f'<text x="{at:.1f}" y="{low + 16}" text-anchor="middle">{10.0**exponent:,g}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 4}">published ({unit}); upwards: error of the prediction</text>')
    parts.extend(
        f'<circle cx="{x(value):.1f}" cy="{y(error):.1f}" r="3" fill="#1d6fb8" fill-opacity="0.7"/>'
        for value, error in zip(published, errors, strict=True)
    )
    return "\n".join([*parts, "</svg>\n"])
