"""Errors that a command reports in one line; each class has the exit code of the command that it ends."""

import textwrap

_MAX_DEFECT_CHARACTERS = 400  # of an unexpected error's text: errors of Numba's compiler have pages


class ConfigError(ValueError):
    """A run file, option or argument is wrong. The message is one line: file, section, key, and what was expected."""

    exit_code = 2


class OutputError(ValueError):
    """Results cannot be written where the user requests them. The message has one line: folder or file, and reason."""

    exit_code = 2


def defect_text(error: BaseException) -> str:
    """Return the type of an unexpected error and the begin of its text in one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", _MAX_DEFECT_CHARACTERS, placeholder=" ...")
