"""Time that members of collectives waited for others, where a converter has removed it from durations.

A collective on a device is under way from the start of its own member. If a trace has `wait_micros` for it, the rest is
without the waiting: start_time_micros is when the last member arrived, and duration_micros is the transfer.
"""

import numpy as np
from numpy.typing import NDArray

from et.schema import AttributeProto, NodeType
from et.table import TraceTable

WAIT_MICROS = "wait_micros"  # name of the attribute with the waiting in microseconds, an int64


def waited_micros(table: TraceTable) -> NDArray[np.int64]:
    """Return int64[n], the waiting of nodes; 0 without the attribute, and in tables read without `keep_others`."""
    waited = np.zeros(len(table), np.int64)
    if table.other is None:
        return waited
    rows = np.flatnonzero((table.type == NodeType.COMM_COLL_NODE) & (table.other > 0))
    lists, list_of = np.unique(table.other[rows], return_inverse=True)
    waited[rows] = np.array([_waiting_in(table.other_attributes[i]) for i in lists.tolist()], np.int64)[list_of]
    return waited


def _waiting_in(messages: tuple[bytes, ...]) -> int:
    for message in messages:
        if WAIT_MICROS.encode() in message:
            attribute = AttributeProto.FromString(message)
            if attribute.name == WAIT_MICROS and attribute.WhichOneof("value") == "int64_val":
                return max(int(attribute.int64_val), 0)
    return 0
