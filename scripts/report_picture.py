"""The picture of a report in README: docs/images/report.png.

    python scripts/report_picture.py          of a training step that it simulates
    python scripts/report_picture.py DIR      of a finished run

Of a training step of a GPT on a DGX SuperPOD, packet by packet, it shows the figures, where the time went, and the
timeline, as Chromium (Debian's package) draws them. Needs playwright, of the extra `dev`.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import nadi
from nadi.insight.runs import Run
from nadi.reports.pages.page import Page, write_page
from nadi.reports.pages.report import report

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.png"
STEP = {"model": "gpt3-125m", "plan": "tp2,pp4,dp2,gb16"}
SHOWN = ("overview", "step", "timeline")
WIDTH = 1200
TIMEOUT_MS = 300_000


def main() -> None:
    """Simulate, write a page of some sections, and take its picture."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium; expected Debian's package of that name")
    if len(sys.argv) > 1:
        run = Run(sys.argv[1])
    else:
        run = nadi.simulate(workload=STEP, topology={"cluster": "selene"}, network={"mtu": "16KiB"})
    whole = report(run)
    page = Page(whole.title, whole.lead, [section for section in whole.sections if section.id in SHOWN])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder, "report.html")
        write_page(file, page)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH, "height": 4000}, color_scheme="light")
        shown.set_default_timeout(TIMEOUT_MS)
        shown.goto(file.as_uri())
        shown.wait_for_function(
            "[...document.querySelectorAll('div.plot')].every((plot) => plot.querySelector('.main-svg'))"
        )
        end = shown.evaluate("document.querySelector('#timeline figure').getBoundingClientRect().bottom")
        shown.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": WIDTH, "height": end})
        browser.close()
    sys.stdout.write(f"{PICTURE}\n")


if __name__ == "__main__":
    main()
