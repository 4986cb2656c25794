"""The settings of the run, defaults included: everything that is needed to repeat it."""

import json

from nadi.insight.runs import Run
from nadi.reports.pages.page import Listing, PageSection, Part


def section(run: Run) -> PageSection:
    """Return the section about settings: the settled configuration, and the values derived from the fabric.

    Args:
        run: Finished run that the page shows.
    """
    parts: list[Part] = []
    for title, key in (("configuration", "config"), ("settled from fabric and traces", "settled")):
        if run.summary.get(key):
            parts.append(Listing(title, json.dumps(run.summary[key], indent=2, ensure_ascii=False)))
    parts.append(Listing("folders", f"{run.folder.absolute()}\nrun from {run.summary.get('working_folder', '?')}"))
    lead = "Every key of the run file with its value; docs/reference/run-file.md explains them."
    return PageSection("settings", "Settings", lead, parts)
