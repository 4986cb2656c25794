"""Attributes that no column takes, in the encoding of the file."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from et.framing import read_length

Others = tuple[bytes, ...]


class OtherAttributes(Sequence[Others]):
    """Lists of AttributeProto, each as its bytes, made on demand from the fields of their nodes.

    Attributes:
        fields: uint8[bytes], attribute fields of Nodes (tag, length and message), concatenated.
        offsets: int64[lists + 1], list i is fields[offsets[i]:offsets[i+1]].
    """

    def __init__(self, fields: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
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
    """Yield the messages in fields with a tag of one byte."""
    at = 0
    while at < len(fields):
        length, begin = read_length("<memory>", fields, at + 1, 0)
        at = begin + length
        yield fields[begin:at]
