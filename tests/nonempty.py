"""Loops whose assertions must be reached."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def nonempty(items: Iterable[T]) -> list[T]:
    """Return items as a list, and fail if there are none: a loop over nothing would check nothing.

    Args:
        items: Items that a test is about to check one by one.
    """
    listed = list(items)
    assert listed, "nothing to check"
    return listed
