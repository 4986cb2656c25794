"""Unexpected errors as one line. Those of Numba's compiler have pages."""

import textwrap

_MAX_CHARACTERS = 400  # maximum length of the text


def defect_text(error: BaseException) -> str:
    """Return the type of an unexpected error and the begin of its text in one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", _MAX_CHARACTERS, placeholder=" ...")
