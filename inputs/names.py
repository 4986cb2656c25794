"""Names out of files, as they may be shown: as characters, and never as commands.

A name may hold escape sequences, which move the cursor or rename the window, or characters that turn the direction of
writing; a path may hold bytes that are no UTF-8.
"""


def shown(text: str, *, lines: bool = False) -> str:
    r"""The text with what is no printable character as an escape, \x1b: control characters, directions, broken bytes.

    Args:
        text: from a file, a path, or the command line.
        lines: leave line feeds as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else escape(c) for c in text)


def escape(character: str) -> str:
    """A backslash and what follows it in Python; a byte that was no UTF-8 as this byte."""
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
