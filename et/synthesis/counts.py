"""The baseline, and what there is without PyTorch: an n-gram of tokens, smoothed as Witten and Bell do.

Probabilities of a token after the last tokens are mixed with those after one token less, by how many different ones
have been seen there (Witten and Bell, IEEE Trans. Information Theory 37, 1991, method C), down to all tokens alike.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from et.synthesis.conditions import Wanted

Floats = NDArray[np.float64]
Int32 = NDArray[np.int32]
Context = tuple[int, ...]


class Counts:
    """How often tokens followed others.

    Attributes:
        order: tokens of the longest context.
        sizes: how many tokens each of the three fields has.
    """

    def __init__(self, order: int, sizes: Sequence[int]) -> None:
        self.order = order
        self.sizes = tuple(sizes)
        self._seen: list[dict[Context, dict[int, int]]] = [defaultdict(lambda: defaultdict(int)) for _ in sizes]

    def learn(self, streams: Sequence[Int32]) -> None:
        """Count the tokens of streams, int32[events, 3] each."""
        for rows in streams:
            flat = [*([-1] * self.order), *rows.reshape(-1).tolist()]
            for at in range(self.order, len(flat)):
                seen = self._seen[(at - self.order) % 3]
                for reach in range(self.order + 1):
                    seen[tuple(flat[at - reach : at])][flat[at]] += 1

    def start(self, wanted: Wanted) -> "CountsState":  # noqa: ARG002 - what it is told it cannot use
        """Before the first event of a stream that is to be made."""
        return CountsState(self, [-1] * self.order)

    def probability(self, field: int, before: Sequence[int], token: int) -> float:
        """Of one token after others."""
        found = 1 / self.sizes[field]
        for reach in range(self.order + 1):
            counts = self._seen[field].get(tuple(before[len(before) - reach :]))
            if counts is None:
                break
            total, kinds = sum(counts.values()), len(counts)
            found = (counts.get(token, 0) + kinds * found) / (total + kinds)
        return found

    def bits(self, rows: Int32, wanted: Wanted) -> Floats:  # noqa: ARG002 - what it is told it cannot use
        """float64[3]: bits of all tokens of a stream, by field."""
        flat = [*([-1] * self.order), *rows.reshape(-1).tolist()]
        found = np.zeros(3)
        for at in range(self.order, len(flat)):
            field = (at - self.order) % 3
            found[field] -= np.log2(self.probability(field, flat[at - self.order : at], flat[at]))
        return found

    def distribution(self, field: int, before: Sequence[int]) -> Floats:
        """Of all tokens of a field."""
        found = np.full(self.sizes[field], 1 / self.sizes[field])
        for reach in range(self.order + 1):
            counts = self._seen[field].get(tuple(before[len(before) - reach :]))
            if counts is None:
                break
            total, kinds = sum(counts.values()), len(counts)
            found *= kinds / (total + kinds)
            found[list(counts)] += np.array(list(counts.values())) / (total + kinds)
        return found


class CountsState:
    """A stream as far as it has come; see et.synthesis.sampling.StreamModel."""

    def __init__(self, counts: Counts, before: list[int]) -> None:
        self._counts = counts
        self._before = before

    def probabilities(self, field: int, event: Sequence[int]) -> Floats:
        """Of the tokens of the next event's next field, after those of its fields that stand already."""
        before = [*self._before, *event]
        return self._counts.distribution(field, before[len(before) - self._counts.order :])

    def copy(self) -> "CountsState":
        """One that goes on by itself."""
        return CountsState(self._counts, self._before)

    def push(self, event: Sequence[int]) -> None:
        """Take in the next event."""
        self._before = [*self._before, *event][-max(self._counts.order, 1) :]
