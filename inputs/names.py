"""Display of names from files: as characters, never as terminal commands.

A name may hold escape sequences, which move the cursor or rename the window, or characters that turn the direction of
writing; a path may hold bytes that are not UTF-8.
"""


def shown(text: str, *, lines: bool = False) -> str:
    r"""Return the text with unprintable characters as escapes, \x1b: control characters, directions, broken bytes.

    `lines` keeps line feeds.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else escape(c) for c in text)


def escape(character: str) -> str:
    """Return a character as a Python escape sequence; a byte that was not UTF-8 as this byte."""
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
