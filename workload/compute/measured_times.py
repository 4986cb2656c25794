"""Measured times of operators, and times of shapes between measured ones.

A measured shape has its measured time. Other shapes of the same kind and data type have the time of the roofline
(`workload.compute.roofline`) times a correction factor: the geometric mean of measurement over roofline at the nearest
measured shapes, weighted by the inverse square of their distance between the logarithms of the entries. Entries that
are not sizes (head dimensions, causal or not, reads and writes) must be equal. There is no extrapolation: each entry
must be between the measured minimum and maximum, and the nearest shape must be within a factor of 4 (2 in logarithms to
base 2).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.workload.compute.operators import KINDS, Operator

_NOT_SIZES = {"head_dim", "value_dim", "causal", "reads", "writes", "bytes", "top_k", "rank", "rope_dim"}
"""Entries of shapes that are not sizes and must be equal."""
_MAX_DISTANCE = 2.0  # of the nearest measured shape, in logarithms to base 2
_NEIGHBOURS = 4  # measured shapes from which others are interpolated

Roofline = Callable[[Operator], float]
Share = Callable[[Operator], float]
"""Function from an operator to its share of its measured time, 0 to 1; other kernels take the rest."""
Family = tuple[object, ...]
"""What two operators must share for interpolation: kind, data type, and entries of shapes that are not sizes."""
Row = tuple[Operator, float]  # An operator and its measured time in ps


class MeasuredTimes:
    """Measured times on one GPU, in families of operators that differ in their sizes only."""

    def __init__(
        self,
        families: Mapping[Family, "MeasuredFamily"],
        load: Callable[[str, str], Iterable[Row]],
        share: Share = lambda _operator: 1.0,
    ) -> None:
        """Keep the known families; `load` returns measured rows by kind and data type; share: of the measured time."""
        self._families = dict(families)
        self._load = load
        self._share = share
        self._loaded: set[tuple[str, str]] = set()

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> "MeasuredTimes":
        """Return the times of given rows; of several rows of one operator, the last one counts."""
        return cls(_families(rows), lambda _kind, _dtype: ())

    def __len__(self) -> int:
        return sum(len(family.exact) for family in self._families.values())

    def exact_ps(self, operator: Operator) -> float | None:
        """Return the measured time of an operator in ps, None = not measured."""
        family = self._family(operator)
        time_ps = None if family is None else family.exact.get(operator.shape)
        return None if time_ps is None else time_ps * self._share(operator)

    def between_ps(self, operator: Operator, roofline_ps: Roofline) -> float | None:
        """Return the ps interpolated between measured shapes, by the GPU's roofline; None = outside the range."""
        family = self._family(operator)
        return None if family is None else family.between_ps(operator, roofline_ps, self._share)

    def _family(self, operator: Operator) -> "MeasuredFamily | None":
        """Return the family of an operator, loaded at first use; None = not measured."""
        table = operator.kind, operator.dtype
        if table not in self._loaded:
            self._loaded.add(table)
            for key, family in _families(self._load(*table)).items():
                self._families.setdefault(key, family)
        return self._families.get(_family_of(operator))


class MeasuredFamily:
    """Measured operators of one family, which differ in their sizes only."""

    def __init__(self, example: Operator, exact: Mapping[tuple[int, ...], float]) -> None:
        """Keep the measured times in ps by shape, of the family of an example."""
        self.exact = exact
        self._example = example
        names = KINDS[example.kind].shape
        self._sizes = [index for index, name in enumerate(names) if name not in _NOT_SIZES]
        self._shapes = [shape for shape in exact if min(shape) > 0]
        self._tree: Any = None  # scipy's cKDTree of the positions, built at the first interpolation

    def between_ps(self, operator: Operator, roofline_ps: Roofline, share_of: Share) -> float | None:
        """Return the time in ps interpolated between measured shapes, None = outside the measured range."""
        # roofline_ps: roofline of the GPU; share_of: function that returns an operator's share of its measured time.
        if min(operator.shape) <= 0 or not self._shapes:
            return None
        if self._tree is None:
            from scipy.spatial import cKDTree  # noqa: PLC0415 - a quarter of a second, for shapes between measured ones

            self._tree = cKDTree(self._positions(self._shapes))
        position = self._positions([operator.shape])[0]
        if np.any(position < self._tree.mins) or np.any(position > self._tree.maxes):
            return None
        neighbours = min(_NEIGHBOURS, len(self._shapes))
        distances, rows = self._tree.query(position, k=range(1, neighbours + 1))
        if distances[0] > _MAX_DISTANCE:
            return None
        known = [self._example._replace(shape=self._shapes[row]) for row in rows]
        rooflines_ps = [max(roofline_ps(near), 1.0) for near in known]
        measured_ps = [max(self.exact[near.shape] * share_of(near), 1.0) for near in known]
        corrections = np.log(measured_ps) - np.log(rooflines_ps)
        weights = 1.0 / np.maximum(distances, 1e-9) ** 2
        return roofline_ps(operator) * float(np.exp(np.average(corrections, weights=weights)))

    def _positions(self, shapes: Sequence[tuple[int, ...]]) -> NDArray[np.float64]:
        """Return float64[shapes, sizes]: logarithms to base 2 of the sizes."""
        return np.log2(np.asarray(shapes, np.float64)[:, self._sizes])


def _families(measurements: Iterable[Row]) -> dict[Family, MeasuredFamily]:
    """Return the measurements, pairs of operator and time in ps, by family."""
    exact: dict[Family, dict[tuple[int, ...], float]] = defaultdict(dict)
    examples: dict[Family, Operator] = {}
    for operator, time_ps in measurements:
        family = _family_of(operator)
        exact[family][operator.shape] = time_ps
        examples[family] = operator
    return {family: MeasuredFamily(examples[family], times) for family, times in exact.items()}


def _family_of(operator: Operator) -> Family:
    """Return the key of an operator's family: kind, data type and the entries of its shape that are no sizes."""
    names = KINDS[operator.kind].shape
    fixed = [entry for name, entry in zip(names, operator.shape, strict=True) if name in _NOT_SIZES]
    return (operator.kind, operator.dtype, *fixed)
