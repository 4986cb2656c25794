"""The common layout of all pages: sections of facts, tables, charts and text, as one self-contained HTML file.

A page works offline, in dark and light mode, on narrow screens, with a keyboard and with a screen reader: every chart
has a description in words, and every term with an explanation is a button that shows it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nadi import inputs
from nadi.errors import ConfigError, OutputError
from nadi.terminal import FittedTable

if TYPE_CHECKING:
    import jinja2

    from nadi.reports.pages.charts import Plotly


_EXPLANATIONS = Path(__file__).with_name("explanations.toml")


@dataclass(frozen=True)
class Fact:
    """One value with its unit."""

    name: str  # Name of the quantity
    value: str  # Value as text, with its unit
    why: str = ""  # Explanation that a click shows; "" for a self-explanatory name


@dataclass(frozen=True)
class Facts:
    """A group of facts, shown side by side."""

    facts: Sequence[Fact]


@cache
def explanations() -> dict[str, str]:
    """Return the explanations of the columns of all pages' tables, by heading without its unit."""
    return inputs.parse_toml(_EXPLANATIONS.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Heading:
    """The heading of a table column."""

    name: str  # Name of the column, with its unit
    why: str = ""  # Explanation that replaces the one in explanations.toml; "" = keep that one
    is_text: bool = False  # Whether values are text rather than numbers

    @property
    def explanation(self) -> str:
        """Explanation of the column; "" without one."""
        known = explanations()
        return self.why or known.get(self.name) or known.get(self.name.rpartition(" (")[0], "")


@dataclass(frozen=True)
class Table:
    """A table of text cells."""

    caption: str  # Title of the table
    headings: Sequence[Heading]  # Headings of the columns
    rows: Sequence[Sequence[str]]  # Rows with one cell per heading
    note: str = ""  # Text below the table, such as the number of omitted rows; "" = none
    colours: Sequence[str] = ()  # Colour of the swatch before the first cell, by row; () = no swatches


def from_terminal(table: FittedTable, note: str = "", why: Mapping[str, str] | None = None) -> Table:
    """Return a table of the terminal as one of a page.

    Args:
        table: Table as printed on the terminal.
        note: Text below the table.
        why: Explanations of columns by heading, in place of the general ones; None = no explanations.
    """
    own = why or {}
    headings = [
        Heading(column.heading, own.get(column.heading, ""), is_text=column.form != "number")
        for column in table.columns
    ]
    return Table(table.title, headings, table.rows, " ".join([note, *table.notes]).strip())


@dataclass(frozen=True)
class Plot:
    """A chart by plotly."""

    title: str  # Title of the chart
    figure: "Plotly"  # Figure of plotly; the page sets the colours of text, grid and background
    description: str  # Description of the chart in words, for readers who cannot see it
    height: int = 420  # Height in pixels

    def json(self) -> str:
        """Return the figure for the page's script, without text that could end a script element."""
        return str(self.figure.to_json()).replace("<", "\\u003c")


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; is_warning: whether the paragraph is highlighted."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Listing:
    """Preformatted text."""

    title: str  # Title of the listing
    text: str  # Text with several lines


Part = Facts | Table | Plot | Paragraph | Listing


@dataclass(frozen=True)
class PageSection:
    """A section of a page."""

    id: str  # Anchor for links
    title: str  # Heading of the section
    lead: str  # Introductory sentence
    parts: Sequence[Part] = field(default_factory=tuple)  # Contents; the page omits a section without parts


@dataclass(frozen=True)
class Page:
    """A complete page."""

    title: str  # Main heading of the page
    lead: str  # Introduction in a sentence or two
    sections: Sequence[PageSection]  # Sections in their order on the page
    error_bars: Sequence[str] = ()  # Sentences about how far the answers may be trusted, below the introduction

    def with_error_bars(self, bars: Iterable[Mapping[str, Any]]) -> "Page":
        """Return the page with error bars as results hold them (`error_bars` of their documents), equal ones once."""
        return replace(self, error_bars=list(dict.fromkeys(bar["text"] for bar in bars)))

    def html(self) -> str:
        """Return the page as one HTML file; it includes plotly's script if it has a plotly chart."""
        sections = [section for section in self.sections if section.parts]
        plotly = ""
        if any(isinstance(part, Plot) for section in sections for part in section.parts):
            from plotly.offline import get_plotlyjs

            plotly = get_plotlyjs()
        return _environment().get_template("page.html.j2").render(page=self, sections=sections, plotly=plotly)


def check_page(path: Path) -> None:
    """Check before the work whether a page can be written; the file name must end in .html.

    Args:
        path: File to write.
    """
    if path.suffix.lower() != ".html":
        raise ConfigError(f"-o {path}: found {path.suffix or 'no ending'!r}; expected a file .html")


def write_page(path: Path, page: Page) -> None:
    """Write a page; the file appears when it is complete.

    Args:
        path: File to write.
        page: Page to write.
    """
    check_page(path)
    text = page.html()
    with inputs.refusing(path, "a file to write the page to", OutputError):
        inputs.write_whole(path, text)


def _environment() -> "jinja2.Environment":
    """Return the templates of pages."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nadi.reports", "templates/page"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["kind"] = lambda part, name: type(part).__name__ == name
    return environment


def _plain(value: object) -> object:
    """Return text without control characters and invalid bytes; HTML from Nadi is returned unchanged."""
    return inputs.shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
