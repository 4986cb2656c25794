"""Printing on any terminal, including those without Unicode, and into pages."""

import codecs
import html
import sys
from io import TextIOWrapper

from nadi.inputs.files import escape, shown

# Replacements for the characters that Nadi prints, for terminals that lack them
_PLAIN = {"µ": "u", "→": "->", "←": "<-", "\u00d7": "x", "…": "...", "≤": "<=", "≥": ">=", "\u2013": "-", "—": "-"}
_PLAIN |= {"·": ".", "│": "|", "─": "-", "━": "-", "╶": "-", "█": "#"}
_HANDLER = "nadi.plain"


def plain(text: str, encoding: str) -> str:
    """Return the text with characters that an encoding lacks replaced by similar ones."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, _registered_handler()).decode(encoding)
    except LookupError:
        pass
    return text


def in_page(text: str) -> str:
    """Return the text escaped for a page, because plotly would interpret HTML in it."""
    return html.escape(shown(text))


def say(text: str, *, err: bool = False) -> None:
    """Print one line that contains names or paths on standard output or standard error.

    Args:
        text: The line; control characters are shown as escapes.
        err: Whether the line is for standard error.
    """
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{shown(text)}\n")
    stream.flush()


def never_fail_to_print() -> None:
    """Make standard output and error replace characters that their encoding lacks instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_registered_handler())


def _registered_handler() -> str:
    """Register the error handler with codecs and return its name."""
    codecs.register_error(_HANDLER, _replace)
    return _HANDLER


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement for the characters that the encoding lacks, and the index behind them (see codecs)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or escape(c) for c in unknown), error.end
