"""The site builds without the network, and its links and files exist."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.document_reference import PAGES
from tests.docs.pages import DOCS, ROOT
from tests.nonempty import nonempty

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` builds it: links, anchors and the navigation are checked on the way."""
    pytest.importorskip("material", reason="no mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium, Debian's package, to open pages with")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.mark.parametrize("page", ["index.html", "how-to/my-model.html"])
def test_search_finds_pages_of_a_site_that_is_opened_as_a_file(site, browser, page):
    """A page of the root, and one of a folder, whose paths to the index differ."""
    errors = []
    opened = browser.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto((site / page).as_uri())
    opened.click(".md-search__input")
    opened.keyboard.type("oversubscription")
    opened.wait_for_selector(".md-search-result__item")
    found = opened.eval_on_selector_all(".md-search-result__item a", "links => links.map((link) => link.href)")
    assert any(link.startswith((site / "how-to" / "my-fabric.html").as_uri()) for link in found)
    assert errors == []
    opened.close()


def test_every_page_is_in_the_site(site):
    made = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    expected = {*(path.relative_to(DOCS) for path in DOCS.rglob("*.md")), *map(Path, PAGES)}
    assert {path.with_suffix("") for path in expected} <= made


def test_nothing_is_fetched(site):
    fetched = r"""<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+//"""
    for page in nonempty(site.rglob("*.html")):
        assert re.findall(fetched, page.read_text()) == [], page.name
    for style in nonempty(site.rglob("*.css")):
        assert "url(http" not in style.read_text(), style.name
