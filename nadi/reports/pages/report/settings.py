"""All that was set, defaults too: what must be given to run the same again."""

import json

from nadi.insight.runs import Run
from nadi.reports.pages.page import Listing, PageSection, Part


def section(run: Run) -> PageSection:
    """The settled configuration, and what was settled from the fabric."""
    parts: list[Part] = []
    for title, key in (("configuration", "config"), ("settled from fabric and traces", "settled")):
        if run.summary.get(key):
            parts.append(Listing(title, json.dumps(run.summary[key], indent=2, ensure_ascii=False)))
    parts.append(Listing("where it is", f"{run.folder.absolute()}\nrun from {run.summary.get('working_folder', '?')}"))
    return PageSection(
        "settings", "Settings", "Every key of the run file as it was used; docs/reference/run-file.md says more.", parts
    )
