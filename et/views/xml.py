"""Text for XML, which forbids some characters."""

import re
from xml.sax.saxutils import escape

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def content(text: str) -> str:
    """Return the text for use between tags."""
    return escape(_FORBIDDEN.sub("\ufffd", text))
