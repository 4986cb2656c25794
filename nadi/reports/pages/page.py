"""One look for all pages: sections of facts, tables, pictures and words, as one HTML file that needs nothing else.

A page works offline, in dark and light, on narrow screens, with a keyboard and with a screen reader: every picture says
in words what it shows, and every term that has an explanation is a button that shows it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import inputs
from nadi.errors import ConfigError, OutputError
from nadi.reports.pages.explanations import explanation_of

if TYPE_CHECKING:
    import jinja2

Plotly = Any
"""A plotly Figure; plotly has no types."""


@dataclass(frozen=True)
class Fact:
    """One figure with its unit.

    Attributes:
        name: what it is.
        value: as text, with its unit.
        why: what it means, one click away; "" = the name says it.
    """

    name: str
    value: str
    why: str = ""


@dataclass(frozen=True)
class Facts:
    """Figures beside each other."""

    facts: Sequence[Fact]


@dataclass(frozen=True)
class Heading:
    """Of a column of a table.

    Attributes:
        name: with its unit.
        why: what the column means where that is not what stands in nadi.reports.pages.explanations.
        is_text: values are text rather than numbers.
    """

    name: str
    why: str = ""
    is_text: bool = False

    @property
    def explanation(self) -> str:
        """What the column means."""
        return self.why or explanation_of(self.name)


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Attributes:
        caption: what the rows are.
        headings: of the columns.
        rows: as many cells each as there are headings.
        note: what is left out, or else must be known; "" = nothing.
        colours: by row, of a swatch before the first cell; () = none.
    """

    caption: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[str]]
    note: str = ""
    colours: Sequence[str] = ()


@dataclass(frozen=True)
class Plot:
    """A picture by plotly.

    Attributes:
        title: what it shows.
        figure: as plotly draws it; its colours of text, grid and ground are the page's.
        says: in words what is to be seen, for those who do not see it.
        height: in pixels.
    """

    title: str
    figure: Plotly
    says: str
    height: int = 420

    def json(self) -> str:
        """For the page's script; no text of it ends a script."""
        return str(self.figure.to_json()).replace("<", "\\u003c")


@dataclass(frozen=True)
class Drawing:
    """A picture as SVG that is ours: text in it is escaped already.

    Attributes:
        title: what it shows.
        svg: an <svg> element.
        says: in words what is to be seen.
    """

    title: str
    svg: str
    says: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; is_warning: something that the reader must not miss."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Listing:
    """Text as it stands in a file.

    Attributes:
        title: what it is.
        text: of several lines.
    """

    title: str
    text: str


Part = Facts | Table | Plot | Drawing | Paragraph | Listing


@dataclass(frozen=True)
class PageSection:
    """A part of a page with a heading.

    Attributes:
        id: for links to it.
        title: its heading.
        lead: what it answers, in a sentence.
        parts: what stands in it; a section without any is left out of the page.
    """

    id: str
    title: str
    lead: str
    parts: Sequence[Part] = field(default_factory=tuple)


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        title: its first heading.
        lead: what it is about, in a sentence or two.
        sections: in order.
    """

    title: str
    lead: str
    sections: Sequence[PageSection]

    def html(self) -> str:
        """The page as one HTML file; plotly's script stands in it where there is a picture of plotly's."""
        sections = [section for section in self.sections if section.parts]
        has_plots = any(isinstance(part, Plot) for section in sections for part in section.parts)
        return (
            _environment()
            .get_template("page.html.j2")
            .render(page=self, sections=sections, plotly=_plotly() if has_plots else "")
        )


def check_page(path: Path) -> None:
    """Find out early that a page cannot be made.

    Raises:
        ConfigError: another ending than .html, or no plotly.
    """
    from nadi.reports.pages import has_plotly

    if path.suffix.lower() != ".html":
        raise ConfigError(f"-o {path}: found {path.suffix or 'no ending'!r}; expected a file .html")
    if not has_plotly():
        raise ConfigError(f"-o {path}: plotly is not installed; expected pip install 'nadi[plot]'")


def write_page(path: Path, page: Page) -> None:
    """Write a page; the file is there when it is complete.

    Raises:
        ConfigError: as `check_page`.
        OutputError: the file cannot be written.
    """
    check_page(path)
    text = page.html()
    try:
        inputs.write_whole(path, text)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the page to") from None


def _environment() -> "jinja2.Environment":
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
    environment.filters["in_script"] = lambda value: json.dumps(value).replace("<", "\\u003c")
    return environment


def _plain(value: object) -> object:
    """Text of others without control characters and broken bytes; HTML of ours as it is."""
    return inputs.shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _plotly() -> str:
    """Plotly's script."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
