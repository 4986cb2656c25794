"""The site builds without the network, and each page says for whom it is."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.pages import DOCS, ROOT, pages


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


def test_every_page_is_in_the_site(site):
    made = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")} <= made


def test_nothing_is_fetched(site):
    fetched = r"""<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+//"""
    for page in site.rglob("*.html"):
        assert re.findall(fetched, page.read_text()) == [], page.name
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(), style.name


def test_every_page_says_for_whom_it_is():
    for page in pages():
        if page.name != "README.md":
            lines = page.read_text().splitlines()
            assert lines[0].startswith("# "), page.name
            assert any(line.startswith("For people ") for line in lines[1:5]), page.name
            assert sum(line.startswith(("For people ", "For those ")) for line in lines) == 1, page.name


def test_links_to_files_exist():
    for page in pages():
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_files_of_the_code_that_pages_name_exist():
    """But for those that a reader is to make: NAME, and the topology of the page on plug-ins."""
    roots = "nadi|pdes|et|workload|topologies|partition|inputs|scripts|tests"
    named = {
        (page.name, path.rstrip(".,"))
        for page in [*pages(), ROOT / "CONTRIBUTING.md"]
        for path in re.findall(rf"(?<![\w/.-])((?:{roots})/[\w./*-]+)", page.read_text())
        if "NAME" not in path and "dumbbell" not in path
    }
    assert len(named) > 100
    missing = [
        (page, path) for page, path in sorted(named) if not any(ROOT.glob(path)) and not (ROOT / f"{path}.py").exists()
    ]
    assert missing == []
