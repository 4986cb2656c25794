"""Columns of tables on pages that nobody has explained."""

import re

_HEADING = re.compile(r"<th scope=.col.[^>]*>(.*?)</th>", re.DOTALL)


def unexplained(page):
    """Headings on a page, HTML, that are no buttons which open an explanation; at least one heading must be there."""
    found = _HEADING.findall(page)
    assert found
    return [heading for heading in found if 'class="term"' not in heading]
