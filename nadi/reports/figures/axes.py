"""Axes of a figure: from values to points of the page, and the ticks between them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from et.arrays import Float64

_MAX_TICKS = 6  # number of ticks of an axis of numbers, at most about
_MAX_NAMES = 40  # number of names of an axis of categories
_PADDING = 0.04  # share of an axis beyond the values at either end
_SI = {0: "", 1: "k", 2: "M", 3: "G", 4: "T", -1: "m", -2: "µ", -3: "n"}


class Axis:
    """An axis of a Plotly figure with the values of all its series."""

    def __init__(self, layout: Any, columns: Sequence[Any]) -> None:  # noqa: ANN401 - Plotly has no types
        """Find the range of an axis. layout: of Plotly. columns: values of each series on the axis."""
        self.layout = layout
        values = [value for column in columns for value in column if value is not None]
        self.is_log = layout.type == "log"
        texts = [value for value in values if isinstance(value, str)]
        self.names = list(dict.fromkeys(map(str, values))) if texts or layout.type == "category" else []
        if self.names:
            self.low, self.high = -0.5, len(self.names) - 0.5
        else:
            self.low, self.high = self._limits(np.array(values, np.float64))

    def _limits(self, values: Float64) -> tuple[float, float]:
        """Return the ends of an axis of numbers, on a logarithmic axis their logarithms to base 10."""
        if self.layout.range:
            low, high = (float(end) for end in self.layout.range)
            return low, high
        values = values[np.isfinite(values) & ((values > 0) | (not self.is_log))]
        values = np.log10(values) if self.is_log else values
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        begins_at_0 = self.layout.rangemode == "tozero" and not self.is_log and low >= 0
        low = 0.0 if begins_at_0 else low
        padding = _PADDING * ((high - low) or abs(high) or 1.0)
        return (low if begins_at_0 else low - padding), high + padding

    def share(self, values: Any) -> NDArray[np.float64]:  # noqa: ANN401 - numbers or names
        """Return float64[values]: places on the axis, from 0 at its begin to 1 at its end; NaN for missing values."""
        if self.names:
            number = {name: place for place, name in enumerate(self.names)}
            found = np.array([number.get(str(value), np.nan) for value in values], np.float64)
        else:
            found = np.array([np.nan if value is None else value for value in values], np.float64)
            if self.is_log:
                found = np.log10(np.where(found > 0, found, np.nan))
        share = (found - self.low) / ((self.high - self.low) or 1.0)
        return 1 - share if self.layout.autorange == "reversed" else share

    def cells(self, values: Any) -> NDArray[np.float64]:  # noqa: ANN401 - numbers at equal distances, or names
        """Return float64[values + 1]: the places of the edges of cells around values."""
        middles = self.share(values)
        half = (middles[-1] - middles[0]) / max(len(middles) - 1, 1) / 2 or 0.5
        return np.append(middles - half, middles[-1] + half)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the places of the ticks, from 0 to 1, and their texts."""
        if self.names:
            step = -(-len(self.names) // _MAX_NAMES)
            return [(float(self.share([name])[0]), name) for name in self.names[::step]]
        values = self._log_ticks() if self.is_log else self._even_ticks()
        places = self.share(values)
        return [
            (float(place), self._text(value))
            for place, value in zip(places, values, strict=True)
            if -1e-9 <= place <= 1
        ]

    def _even_ticks(self) -> list[float]:
        """Return multiples of 1, 2 or 5 times a power of ten."""
        rough = (self.high - self.low) / (self.layout.nticks or _MAX_TICKS) or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [round(number * step, 12) for number in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _log_ticks(self) -> list[float]:
        """Return powers of ten; if these are few, also 2 and 5 times them."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        factors = (1,) if self.high - self.low > _MAX_TICKS / 2 else (1, 2, 5)
        step = -(-len(powers) // (2 * _MAX_TICKS))
        return [factor * 10.0**power for power in powers[::step] for factor in factors]

    def _text(self, value: float) -> str:
        """Return the text of a tick."""
        suffix = self.layout.ticksuffix or ""
        if "%" in (self.layout.tickformat or ""):
            return f"{100 * value:g}%"
        if self.layout.exponentformat == "SI" and value:
            thousands = min(max(math.floor(math.log10(abs(value)) / 3), -3), 4)
            return f"{value / 1000.0**thousands:g}{_SI[thousands]}{suffix}"
        return f"{value:g}{suffix}" if abs(value) < 1e6 else f"{value:.3g}{suffix}"
