"""Attributes that no column takes, in the encoding of the file, and the numbers in two of them.

A collective on a device is under way from the start of its own member. If a trace has `wait_micros` for it, the rest is
without the waiting for other members: start_time_micros is when the last member arrived, and duration_micros is the
transfer. `duration_nanos` is the time of a computation of a GOAL schedule that is no whole number of microseconds,
`cpu` and `nic` are the numbers of where a schedule puts an operation.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from nadi.et.framing import read_length
from nadi.et.schema import AttributeProto
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int64, UInt8

Others = tuple[bytes, ...]
WAIT_MICROS, NANOS = "wait_micros", "duration_nanos"
CPU, NIC = "cpu", "nic"


class OtherAttributes(Sequence[Others]):
    """Lists of AttributeProto, each as its bytes, made on demand from the fields of their nodes.

    The fields are attribute fields of Nodes (tag, length and message); list i is fields[offsets[i]:offsets[i+1]].
    """

    def __init__(self, fields: UInt8, offsets: Int64) -> None:
        self.fields, self.offsets = fields, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, row: int) -> Others: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[Others, ...]: ...
    def __getitem__(self, row: int | slice) -> Others | tuple[Others, ...]:
        if isinstance(row, slice):
            return tuple(self[i] for i in range(*row.indices(len(self))))
        row = range(len(self))[row]
        return tuple(_messages(self.fields[self.offsets[row] : self.offsets[row + 1]].tobytes()))

    def __iter__(self) -> Iterator[Others]:
        return (tuple(_messages(self.fields[begin:end].tobytes())) for begin, end in pairwise(self.offsets.tolist()))


def _messages(fields: bytes) -> Iterator[bytes]:
    """Yield the messages in protobuf fields, one after the other, each with a tag of one byte."""
    at = 0
    while at < len(fields):
        length, begin = read_length("<memory>", fields, at + 1, 0)
        at = begin + length
        yield fields[begin:at]


def waited_micros(table: TraceTable) -> Int64:
    """Return int64[n], the waiting of collectives, 0 without the attribute and in tables without `keep_others`.

    Args:
        table: The trace as a table of columns.
    """
    waited = np.zeros(len(table), np.int64)
    for row, micros in other_numbers(table, WAIT_MICROS, np.flatnonzero(table.comm_type >= 0)).items():
        waited[row] = max(micros, 0)
    return waited


def other_numbers(table: TraceTable, name: str, rows: NDArray[np.integer]) -> dict[int, int]:
    """Return the values of a 64-bit integer attribute that no column takes, by row; rows without it are left out.

    Args:
        table: The trace as a table of columns.
        name: The name of the attribute.
        rows: The rows to search, int[].
    """
    if table.other is None:
        return {}
    numbers: dict[int, int] = {}
    # Nodes share lists of attributes: decode each distinct list once
    for i in np.unique(table.other[rows]).tolist():
        for message in table.other_attributes[i]:
            # Search the bytes first: most attributes have another name, and decoding is slow
            if name.encode() in message:
                attribute = AttributeProto.FromString(message)
                if attribute.name == name and attribute.WhichOneof("value") in {"int64_val", "uint64_val"}:
                    numbers[i] = int(attribute.int64_val or attribute.uint64_val)
    return {row: numbers[i] for row, i in zip(rows.tolist(), table.other[rows].tolist(), strict=True) if i in numbers}
