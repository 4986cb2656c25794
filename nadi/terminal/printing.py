"""Printing on any terminal, also one that lacks letters, and into pages."""

import codecs
import html
import sys
from typing import TextIO

from inputs.names import escape, shown

_PLAIN = {
    "µ": "u",
    "→": "->",
    "←": "<-",
    "\u00d7": "x",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "\u2013": "-",
    "—": "-",
    "·": ".",
    "│": "|",
    "─": "-",
    "━": "-",
    "╶": "-",
    "█": "#",
}
"""What stands for our own characters where the terminal has no others than ASCII's, or not these."""
_HANDLER = "nadi.plain"


def plain(text: str, encoding: str) -> str:
    """The text with what an encoding lacks replaced by what looks like it."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, _settled()).decode(encoding)
    except LookupError:
        pass
    return text


def in_page(text: str) -> str:
    """The text for a page, where plotly would take parts of it for HTML."""
    return html.escape(shown(text))


def say(text: str, *, err: bool = False) -> None:
    """One line that holds names or paths, on standard output or error."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{shown(text)}\n")
    stream.flush()


def never_fail_to_print() -> None:
    """Have standard output and error print what their encoding lacks as something else, in place of raising."""
    for stream in (sys.stdout, sys.stderr):
        _relax(stream)


def _relax(stream: TextIO | None) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=_settled())


def _settled() -> str:
    """The name of the error handler, known to codecs."""
    codecs.register_error(_HANDLER, _replace)
    return _HANDLER


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or escape(c) for c in wrong), error.end
