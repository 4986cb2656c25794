"""Files of `nadi compare --measured`: the JSON document and a page."""

import json
from pathlib import Path
from typing import Any

from nadi.insight.measured.timed_nodes import TimedNodes
from nadi.reports import pages

DOCUMENT = "measured.json"
PAGE = "measured.html"
FILES = (DOCUMENT, PAGE)


def write_measured(folder: Path, nodes: TimedNodes, found: dict[str, Any]) -> None:
    """Write FILES into a folder (see `staging.staged`), the page only if plotly is installed."""
    folder.mkdir(exist_ok=True)
    (folder / DOCUMENT).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if pages.has_plotly():
        from nadi.reports.pages.measured import render

        (folder / PAGE).write_text(render(nodes, found), encoding="utf-8")
