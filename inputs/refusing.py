"""Refusal of files that cannot be read or written, in one line."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusing(path: object, expected: str, error: type[Exception], *also: type[Exception]) -> Iterator[None]:
    """Raise an `error` with the path, the reason and what was expected in place of an OSError, or of one of `also`."""
    refused: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except refused as problem:
        if isinstance(problem, error):
            raise
        reason = getattr(problem, "strerror", None) or problem
        raise error(f"{path}: {reason}; expected {expected}") from problem
