"""Text of others on this terminal: names of nodes, groups and files, as characters and never as commands.

A name may hold escape sequences, which move the cursor or rename the window; characters that turn the direction of
writing; bytes that are no UTF-8; or letters that the terminal lacks.
"""

import codecs
import sys
from typing import TextIO

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


def shown(text: str, *, lines: bool = False) -> str:
    r"""The text with what is no printable character as an escape, \x1b: control characters, directions, broken bytes.

    Args:
        text: from a file, a path, or the command line.
        lines: leave line feeds as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escape(c) for c in text)


def plain(text: str, encoding: str) -> str:
    """The text with what an encoding lacks replaced by what looks like it."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, _settled()).decode(encoding)
    except LookupError:
        pass
    return text


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
    return "".join(_PLAIN.get(c) or _escape(c) for c in wrong), error.end


def _escape(character: str) -> str:
    """A backslash and what follows it in Python; a byte that was no UTF-8 as this byte."""
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
