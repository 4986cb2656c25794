"""Create the screenshot of a report for the README: docs/images/report.png.

    python scripts/report_picture.py          simulates a training step
    python scripts/report_picture.py DIR      uses the results of a finished run

The screenshot shows the figures, the time breakdown and the timeline of a packet-level training step of a GPT on a DGX
SuperPOD, rendered by Chromium (Debian's package). The script needs playwright, which the extra `dev` installs.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import nadi
from nadi.insight.runs import Run
from nadi.reports.pages import Page, write_page
from nadi.reports.pages.report import report

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.png"
STEP = {"model": "gpt3-125m", "plan": "tp2,pp4,dp2,gb16"}
SHOWN = ("overview", "step", "timeline")
WIDTH = 1200
TIMEOUT_MS = 300_000


def main() -> None:
    """Simulate (or read the run folder named on the command line), write a page of some sections, take a screenshot."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium: not found; expected Debian's package chromium")
    if len(sys.argv) > 1:
        run = Run(sys.argv[1])
    else:
        run = nadi.simulate(workload=STEP, topology={"cluster": "selene"}, network={"mtu": "16KiB"})
    full_report = report(run)
    page = Page(full_report.title, full_report.lead, [each for each in full_report.sections if each.id in SHOWN])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder, "report.html")
        write_page(file, page)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": 4000}, color_scheme="light")
        tab.set_default_timeout(TIMEOUT_MS)
        tab.goto(file.as_uri())
        tab.wait_for_function(
            "[...document.querySelectorAll('div.plot')].every((plot) => plot.querySelector('.main-svg'))"
        )
        end = tab.evaluate("document.querySelector('#timeline figure').getBoundingClientRect().bottom")
        tab.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": WIDTH, "height": end})
        browser.close()
    sys.stdout.write(f"{PICTURE}\n")


if __name__ == "__main__":
    main()
