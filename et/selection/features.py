"""Features of a trace, numbers that can be compared: size, mix, messages, compute and the shape of its graph."""

import numpy as np

from et.arrays import Float64, Int64
from et.order import depth
from et.schema import CollectiveCommType, NodeType
from et.summary import collective_name
from et.table import TraceTable

_QUANTILES = (0.1, 0.5, 0.9)
_KINDS = [kind for kind in NodeType if kind != NodeType.INVALID_NODE]
_SHARE, _LOG = 0.01, 0.05  # deviations of a share, and of a logarithm to base 2, below which all traces count as equal

FAMILIES: dict[str, dict[str, float]] = {
    "size": {"nodes": _LOG, "groups": _LOG},
    "mix": {f"share of {kind.name}": _SHARE for kind in _KINDS} | {"share of host operations": _SHARE},
    "collectives": {f"bytes in {collective_name(kind)}": _SHARE for kind in CollectiveCommType}
    | {"bytes in sends": _SHARE},
    "messages": {f"message bytes at {q:.0%}": _LOG for q in _QUANTILES} | {"bytes": _LOG},
    "compute": {f"microseconds at {q:.0%}": _LOG for q in _QUANTILES} | {"microseconds": _LOG, "operations": _LOG},
    "shape": {"depth": _LOG, "depth by nodes": _SHARE, "fan-in": _LOG, "largest fan-in": _LOG, "roots": _LOG},
    "balance": {"bytes by microseconds": _LOG, "bytes by operations": _LOG},
}
"""Families of features, with the minimum deviation of each feature. All but shares are base-2 logarithms."""
FEATURES = tuple(name for family in FAMILIES.values() for name in family)


def features(table: TraceTable) -> Float64:
    """Return float64[features], the values of FEATURES for a trace."""
    nodes = max(len(table), 1)
    fan_in = np.diff(table.dep_ptr)
    deep = depth(table)
    is_compute = table.type == NodeType.COMP_NODE
    sends = _positive(table.comm_size[table.type == NodeType.COMM_SEND_NODE])
    sizes = _positive(table.comm_size)
    micros = _positive(table.duration_micros[is_compute])
    sent, took, operations = (float(values.sum()) for values in (sizes, micros, _positive(table.num_ops)))
    found = [_log(nodes), _log(len(table.group_names))]
    found += [np.count_nonzero(table.type == kind) / nodes for kind in _KINDS]
    found += [np.count_nonzero(table.is_cpu_op) / nodes]
    by_kind = [float(_positive(table.comm_size[table.comm_type == kind]).sum()) for kind in CollectiveCommType]
    of_all = max(sum(by_kind) + float(sends.sum()), 1.0)
    found += [part / of_all for part in (*by_kind, float(sends.sum()))]
    found += [*_quantiles(sizes), _log(sent)]
    found += [*_quantiles(micros), _log(took), _log(operations)]
    mean, largest, roots = fan_in.sum() / nodes, int(fan_in.max(initial=0)), int(np.count_nonzero(fan_in == 0))
    found += [_log(deep), deep / nodes, _log(mean), _log(largest), _log(roots)]
    found += [_log(sent) - _log(took) if took else 0.0, _log(sent) - _log(operations) if operations else 0.0]
    return np.array(found, np.float64)


def _positive(values: Int64) -> Float64:
    return values[values > 0].astype(np.float64)


def _log(value: float) -> float:
    return float(np.log2(1 + value))


def _quantiles(values: Float64) -> list[float]:
    return [_log(value) for value in np.quantile(values, _QUANTILES)] if len(values) else [0.0] * len(_QUANTILES)
