"""How far generated traces are from others: distances between distributions."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance

from et.order import depth
from et.table import TraceTable

Floats = NDArray[np.float64]


def distances(tables: Sequence[TraceTable], others: Sequence[TraceTable]) -> dict[str, float]:
    """Distances between the nodes of traces and those of others, all traces of a side together.

    Jensen-Shannon divergences in bits, 0 = alike, 1 = nothing in common: kinds of nodes with those of collectives, and
    fan-in. Wasserstein distances of logarithms to base 2, so that 1 is a factor of 2 in the mean: sizes, durations, and
    the depth of each trace.
    """
    return {
        "node kinds (JS, bits)": _divergence(_joined(tables, _kinds), _joined(others, _kinds)),
        "fan-in (JS, bits)": _divergence(_joined(tables, _fan_in), _joined(others, _fan_in)),
        "sizes (Wasserstein, octaves)": _apart(_joined(tables, _sizes), _joined(others, _sizes)),
        "durations (Wasserstein, octaves)": _apart(_joined(tables, _micros), _joined(others, _micros)),
        "depth (Wasserstein, octaves)": _apart(_joined(tables, _depth), _joined(others, _depth)),
    }


def _joined(tables: Sequence[TraceTable], of_table: Callable[[TraceTable], Floats]) -> Floats:
    return np.concatenate([np.zeros(0), *(of_table(table) for table in tables)])


def _kinds(table: TraceTable) -> Floats:
    return table.type.astype(np.float64) * 100 + table.is_cpu_op * 50 + table.comm_type


def _fan_in(table: TraceTable) -> Floats:
    return np.diff(table.dep_ptr).astype(np.float64)


def _sizes(table: TraceTable) -> Floats:
    return np.log2(table.comm_size[table.comm_size > 0].astype(np.float64))


def _micros(table: TraceTable) -> Floats:
    return np.log2(table.duration_micros[table.duration_micros > 0].astype(np.float64))


def _depth(table: TraceTable) -> Floats:
    return np.array([np.log2(max(depth(table), 1))])


def _divergence(values: Floats, others: Floats) -> float:
    places = np.union1d(values, others)
    counts = [np.bincount(np.searchsorted(places, side), minlength=len(places)) for side in (values, others)]
    return float(jensenshannon(*counts, base=2) ** 2)


def _apart(values: Floats, others: Floats) -> float:
    return float(wasserstein_distance(values, others)) if len(values) and len(others) else float("nan")
