"""Base classes of the errors of all folders, by whose fault it is."""

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
            place: Where the value is: a file, and a line, key or node in it; or the text of an option or spec.
            found: The value, or what is wrong with it.
            expected: The values that are allowed.
        """
        return cls(f"{place}: {found}; expected {expected}")
