"""Results of functions that several programs on one fabric need, as schedules and shapes of groups."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")
_MAX_BYTES = 64 << 20  # a search of plans for 512 GPUs keeps a tenth of it
MEMBER_BYTES = 512  # upper bound of the memory in bytes of a group's member in a GroupShape, aggregation trees included


class KeptResults:
    """The results that were used last, each of a function that returns the same whenever its key is the same."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        """Begin without results; max_bytes: the memory in bytes that results and keys may take."""
        self._max_bytes, self.bytes = max_bytes, 0
        self._kept: dict[object, tuple[Any, int]] = {}

    def get(self, key: object, make: Callable[[], T], bytes_of: Callable[[T], int]) -> T:
        """Return the result of a key, made now if it is not kept.

        Args:
            key: All that the result depends on.
            make: A function that returns the result.
            bytes_of: A function that returns an upper bound of the memory in bytes of the result and its key.
        """
        known = self._kept.pop(key, None)
        if known is None:
            result = make()
            known = result, bytes_of(result)
            if known[1] > self._max_bytes:
                return result
            self.bytes += known[1]
        self._kept[key] = known  # behind all others: the last to leave
        while self.bytes > self._max_bytes:
            self.bytes -= self._kept.pop(next(iter(self._kept)))[1]
        return cast("T", known[0])
