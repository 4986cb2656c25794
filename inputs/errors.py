"""Base classes of the errors of all folders, by whose fault it is, and refusal of files in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self


class NadiError(Exception):
    """A failure that a command reports in one line, without a traceback.

    Attributes:
        exit_code: Exit code of the command that the error ends.
    """

    exit_code = 1


class InputError(NadiError, ValueError):
    """The user's input is wrong: one line with the place, the value found, and what was expected."""

    exit_code = 2

    @classmethod
    def at(cls, place: object, found: object, expected: str) -> Self:
        """Return the error of a wrong value.

        Args:
            place: The place of the value: a file with a line, key or node in it, or the text of an option or spec.
            found: The value, or what is wrong with it.
            expected: The values that are allowed.
        """
        return cls(f"{place}: {found}; expected {expected}")


@contextmanager
def refusing(path: object, expected: str, error: type[Exception], *also: type[Exception]) -> Iterator[None]:
    """Raise an `error` with the path, the reason and what was expected in place of an OSError, or of one of `also`.

    Args:
        path: The file, or a phrase that names it.
        expected: A noun phrase for what is allowed.
        error: The class of the error that is raised.
        also: Further classes of errors that are replaced.
    """
    refused: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except refused as problem:
        if isinstance(problem, error):
            raise
        reason = getattr(problem, "strerror", None) or problem
        raise error(f"{path}: {reason}; expected {expected}") from problem
