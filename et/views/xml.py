"""Text for XML, in which some characters may not stand at all."""

import re
from xml.sax.saxutils import escape, quoteattr

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def content(text: str) -> str:
    """The text between tags."""
    return escape(_FORBIDDEN.sub("\ufffd", text))


def attribute(text: str) -> str:
    """The text as the value of an attribute, in quotes."""
    return quoteattr(_FORBIDDEN.sub("\ufffd", text))
