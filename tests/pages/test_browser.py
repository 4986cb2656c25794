"""The reports of three different runs in a headless browser."""

import itertools
import shutil

import pytest

import nadi
from nadi import et
from nadi.reports.pages import COLOURS, HEAT, report_times, write_page
from nadi.reports.pages.fabric import _COLOURS
from nadi.reports.pages.report import report
from tests.headings import unexplained
from tests.nonempty import nonempty

sync_api = pytest.importorskip("playwright.sync_api")
browser_module = pytest.importorskip("tests.pages.browser")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, Debian's package, to open pages with")

RUNS = ("step", "incast", "fault")
FABRIC = "leaf-spine:npus={npus},hosts_per_leaf=4,spines=2,rate=100Gbps,uplink_rate=100Gbps,delay=1us"
MODEL = {"model": "gpt3-125m", "plan": "tp2,pp2,dp2,gb4"}
TIMEOUT_MS = 60_000
WIDE, NARROW = ("light", 1280), ("dark", 380)
"""How a page is looked at: scheme of colours, and pixels of the window's width, on which no colour depends."""
LEAST_CONTRAST, LEAST_OF_MARKS = 4.5, 3.0
"""Of text, and of what else must be seen, by WCAG 2.1 AA."""


def _incast(folder):
    nodes = [[] for _ in range(12)]
    for src in range(1, 12):
        nodes[src].append(et.send_node(1, "s", src, 0, 600_000))
        nodes[0].append(et.recv_node(len(nodes[0]) + 1, "r", src, 0, 600_000))
    for npu, own in enumerate(nodes):
        et.write_trace(folder / f"incast.{npu}.et", et.metadata(), own)
    return nadi.simulate(
        workload={"traces": str(folder / "incast")},
        topology={"spec": FABRIC.format(npus=12)},
        network={"buffer": "500kB", "congestion_control": "dctcp", "ecn_kmin": "10kB", "ecn_kmax": "40kB"},
    )


def _fault(folder):
    for npu in range(8):
        grads = et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, 1 << 22)
        et.write_trace(folder / f"fault.{npu}.et", et.metadata(), [grads])
    return nadi.simulate(
        workload={"traces": str(folder / "fault")},
        topology={"spec": FABRIC.format(npus=8)},
        network={"detection_time": "100us"},
        faults=[{"at": "100us", "until": "2ms", "link": "leaf 0 - spine 1", "state": "down"}],
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    two = {"workers": 2, "partitioner": "blocks"}
    step = nadi.simulate(workload=MODEL, topology={"cluster": "selene"}, network={"mtu": "16KiB"}, engine=two)
    for name, run in zip(RUNS, (step, _incast(folder), _fault(folder)), strict=True):
        write_page(folder / f"{name}.html", report(run))
    return folder


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class Opened:
    """Reports that are open: each run's once for each look, since a browser needs seconds to open and draw one."""

    def __init__(self, folder, browser):
        self.folder, self.browser, self.pages, self.said = folder, browser, {}, []

    def anew(self, name, look=WIDE):
        """A page that nobody else sees; its plots are drawn once they are scrolled to."""
        scheme, width = look
        page = self.browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.said.append(request.url) if request.url.startswith("http") else None)
        page.goto((self.folder / f"{name}.html").as_uri())
        return page

    def drawn(self, name, look=WIDE):
        """A page with all its plots, for tests that do not change it."""
        if (name, look) not in self.pages:
            self.pages[name, look] = self.anew(name, look)
            browser_module.draw_all(self.pages[name, look])
        return self.pages[name, look]


@pytest.fixture(scope="module")
def all_opened(pages, browser):
    """One for all tests."""
    return Opened(pages, browser)


@pytest.fixture
def opened(all_opened):
    """Reports in the browser; whatever one says on the console meanwhile fails."""
    yield all_opened
    said, all_opened.said = all_opened.said, []
    assert said == []


@pytest.mark.parametrize("name", RUNS)
def test_plots_are_drawn_and_links_lead_somewhere(opened, name):
    page = opened.drawn(name)
    plots = page.query_selector_all("div.plot")
    assert len(plots) >= 5
    assert all(plot.query_selector(".main-svg") for plot in plots)
    for link in nonempty(page.query_selector_all("nav a")):
        target = link.get_attribute("href")
        page.evaluate("link => link.click()", link)
        assert page.evaluate("decodeURIComponent(location.hash)") == target
        below = page.evaluate("id => document.querySelector(id).getBoundingClientRect().top", target)
        assert -1 <= below < 900


@pytest.mark.parametrize("look", [WIDE, NARROW], ids=["light and wide", "dark and narrow"])
@pytest.mark.parametrize("name", RUNS)
def test_the_tool_bar_covers_no_legend(opened, name, look):
    page = opened.drawn(name, look)
    assert page.locator(".modebar").count() == (0 if look == NARROW else page.locator("div.plot").count())
    assert page.evaluate(browser_module.COVERED) == []


def test_pauses_and_queues_of_an_incast_are_there(opened):
    page = opened.drawn("incast")
    titles = [each.inner_text() for each in page.query_selector_all("figcaption")]
    assert any("paused by PFC over time" in title for title in titles)
    assert any("fullest ports over time" in title for title in titles)
    assert any("marked by ECN over time" in title for title in titles)
    assert page.locator(".plot", has_text="leaf 0 → npu 0").count() >= 1


@pytest.mark.parametrize("look", [WIDE, NARROW], ids=["light and wide", "dark and narrow"])
@pytest.mark.parametrize("name", RUNS)
def test_text_stands_out(opened, name, look):
    found = opened.drawn(name, look).evaluate(browser_module.CONTRAST)
    assert len(found) > 100
    assert [row for row in found if row[0] < LEAST_CONTRAST] == []


@pytest.mark.parametrize("name", RUNS)
def test_every_column_is_explained(pages, name):
    assert unexplained((pages / f"{name}.html").read_text()) == []


@pytest.mark.parametrize("look", [WIDE, NARROW], ids=["light and wide", "dark and narrow"])
def test_what_is_drawn_stands_out(opened, look):
    """Series, parts of bars, links by load, pauses and marks, against the ground of the page."""
    colours = {*COLOURS, *report_times.CATEGORY_COLOURS.values(), *_COLOURS, HEAT[-1][1]}
    found = opened.drawn("step", look).evaluate(browser_module.CONTRAST_OF, sorted(colours))
    assert [row for row in found if row[0] < LEAST_OF_MARKS] == []
    assert {colour for _, colour in found} == colours


@pytest.mark.parametrize("name", RUNS)
def test_headings_and_names(opened, name):
    page = opened.drawn(name)
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((each) => +each.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in nonempty(itertools.pairwise(levels)))
    assert page.evaluate(browser_module.NAMELESS) == []
    assert page.evaluate("document.documentElement.lang") == "en"


@pytest.mark.parametrize("name", RUNS)
def test_a_narrow_screen_scrolls_one_way(opened, name):
    page = opened.drawn(name, NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_a_page_answers_the_keyboard(opened):
    """Explanations open and close, and the colours of text and plots change."""
    page = opened.anew("step")
    shown = "[...document.querySelectorAll('.why')].filter((each) => each.matches(':popover-open')).length"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('term')"):
            break
    term = page.evaluate("document.activeElement.textContent")
    assert term == "simulated time"
    page.keyboard.press("Enter")
    assert page.evaluate(shown) == 1
    page.keyboard.press("Escape")
    assert page.evaluate(shown) == 0
    assert page.evaluate("document.activeElement.textContent") == term

    colour = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('.xtick text')).fill"
    page.wait_for_selector(".xtick text", state="attached")
    before = page.evaluate(colour), page.evaluate(text)
    page.focus("#theme")
    page.keyboard.press("Enter")
    assert page.evaluate(colour) != before[0]
    page.wait_for_function(f"{text} !== {before[1]!r}")
    page.close()
