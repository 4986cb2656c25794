"""How long members of collectives waited for others before these came, where a converter has taken that out.

A collective that a device carries out is under way from when its own member begins. A trace that says `wait_micros` of
it has the rest only: its start_time_micros is when the last member had come, and its duration_micros the transfer.
"""

import numpy as np
from numpy.typing import NDArray

from et.schema import AttributeProto, NodeType
from et.table import TraceTable

WAIT_MICROS = "wait_micros"
"""The attribute, an int64."""


def waited_micros(table: TraceTable) -> NDArray[np.int64]:
    """int64[n]: what nodes say; 0 where they say nothing, and of a table that was read without `keep_others`."""
    waited = np.zeros(len(table), np.int64)
    if table.other is None:
        return waited
    rows = np.flatnonzero((table.type == NodeType.COMM_COLL_NODE) & (table.other > 0))
    lists, list_of = np.unique(table.other[rows], return_inverse=True)
    waited[rows] = np.array([_said(table.other_attributes[i]) for i in lists.tolist()], np.int64)[list_of]
    return waited


def _said(messages: tuple[bytes, ...]) -> int:
    for message in messages:
        if WAIT_MICROS.encode() in message:
            attribute = AttributeProto.FromString(message)
            if attribute.name == WAIT_MICROS and attribute.WhichOneof("value") == "int64_val":
                return max(int(attribute.int64_val), 0)
    return 0
