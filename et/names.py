"""Names of the nodes of a trace: as one text, or composed of heads and tails, which often repeat."""

import dataclasses
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np

from nadi.inputs.arrays import Int32, Int64, UInt8, spans


@dataclasses.dataclass(frozen=True, eq=False)
class NameTable:
    """The names of n nodes, held as one UTF-8 blob: name i is blob[offsets[i]:offsets[i+1]]."""

    blob: UInt8  # uint8[bytes], all names, concatenated
    offsets: Int64  # int64[n+1], offset in `blob` of each name, and the end

    @classmethod
    def of(cls, names: Iterable[bytes]) -> "NameTable":
        """Return a table of names. Raises UnicodeDecodeError: a name is not UTF-8.

        Args:
            names: The names in UTF-8.
        """
        parts = list(names)
        blob = b"".join(parts)
        if not blob.isascii():
            for part in parts:
                part.decode()
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        offsets.setflags(write=False)
        return cls(np.frombuffer(blob, np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        row = range(len(self))[row]
        return self.blob[self.offsets[row] : self.offsets[row + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        blob = self.blob.tobytes()
        return (blob[begin:end].decode() for begin, end in pairwise(self.offsets.tolist()))

    def pieces(self, begin: int, end: int) -> tuple[UInt8, Int64]:
        """Return consecutive names: their bytes, concatenated, uint8[bytes], and their lengths, int64[end-begin].

        Args:
            begin: The row of the first name.
            end: The row after the last name.
        """
        offsets = self.offsets[begin : end + 1]
        return self.blob[offsets[0] : offsets[-1]], np.diff(offsets)


@dataclasses.dataclass(frozen=True, eq=False)
class ComposedNames:
    """The names of n nodes: name i is heads[head[i]] + tails[tail[i]], composed on demand."""

    heads: NameTable  # beginnings of names, such as "step0/forward/mb3/layer17/"
    tails: NameTable  # ends of names, such as "attention"
    head: Int32  # int32[n], row of `heads` for each node
    tail: Int32  # int32[n], row of `tails` for each node

    def __len__(self) -> int:
        return len(self.head)

    def __getitem__(self, row: int) -> str:
        return self.heads[self.head[row]] + self.tails[self.tail[row]]

    def __iter__(self) -> Iterator[str]:
        heads, tails = list(self.heads), list(self.tails)
        return (heads[h] + tails[t] for h, t in zip(self.head.tolist(), self.tail.tolist(), strict=True))

    def pieces(self, begin: int, end: int) -> tuple[UInt8, Int64]:
        """Return consecutive names in the form of NameTable.pieces.

        Args:
            begin: The row of the first name.
            end: The row after the last name.
        """
        # Head and tail of each name alternate
        row = np.arange(2 * (end - begin)) // 2 + begin
        is_tail = np.arange(2 * (end - begin)) % 2 == 1
        place = np.where(is_tail, self.tail[row] + len(self.heads), self.head[row])
        # Rows of `_bytes` in the order head, tail, head, tail, ...: adding each two sizes gives the lengths of names
        size = np.diff(self._offsets)[place]
        return self._bytes[spans(self._offsets[place], size)[1]], size.reshape(-1, 2).sum(axis=1)

    @cached_property
    def _bytes(self) -> UInt8:
        """Bytes of all heads, then of all tails."""
        return np.concatenate([self.heads.blob, self.tails.blob])

    @cached_property
    def _offsets(self) -> Int64:
        """int64[heads + tails + 1], offset of each head and tail in `_bytes`."""
        return np.concatenate([self.heads.offsets, self.tails.offsets[1:] + len(self.heads.blob)])
