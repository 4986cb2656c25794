"""Names of rows that mark arrivals and tokens of requests in serving traces.

The row `arrivals/request3` ends when request 3 arrives, `iteration12/decode/request3/token128` when it has 128 tokens.
"""

import re
from collections.abc import Iterator

import numpy as np

from et import ComposedNames, NameTable, TraceTable
from workload.arrays import Int64

_WORD = re.compile(rb"request[0-9]")
_ARRIVAL = re.compile(r"arrivals/request([0-9]{1,9})")
_TOKEN = re.compile(r"iteration[0-9]+/[a-z]+/request([0-9]{1,9})/token([0-9]{1,9})")


def requests_in(trace: TraceTable) -> Iterator[tuple[int, int, int]]:
    """Yield row, request number, and the request's number of tokens at the end of the row; 0 tokens = arrival."""
    for row in _rows_with_requests(trace.names).tolist():
        name = trace.names[row]
        arrival, token = _ARRIVAL.fullmatch(name), _TOKEN.fullmatch(name)
        if arrival is not None:
            yield row, int(arrival[1]), 0
        elif token is not None:
            yield row, int(token[1]), int(token[2])


def names_requests(trace: TraceTable) -> bool:
    """Return whether a trace has rows that mark requests."""
    return next(requests_in(trace), None) is not None


def _rows_with_requests(names: NameTable | ComposedNames) -> Int64:
    """Return int64[]: rows whose names contain `request` and a digit, found without composing every name."""
    if isinstance(names, ComposedNames):
        heads, tails = (np.isin(rows, _rows_with_requests(table)) for rows, table in (
            (names.head, names.heads), (names.tail, names.tails)
        ))  # fmt: skip
        return np.flatnonzero(heads | tails)
    places = np.array([at.start() for at in _WORD.finditer(names.blob.data)], np.int64)
    rows = np.unique(np.searchsorted(names.offsets, places, "right") - 1)
    return rows[(rows >= 0) & (rows < len(names))]
