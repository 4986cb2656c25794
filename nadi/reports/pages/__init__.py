"""Pages for a browser: their common layout, and charts that several of them share. Each module makes one kind of page.

A page is sections of facts, tables, charts and text, as one self-contained HTML file. It works offline, in dark and
light mode, on narrow screens, with a keyboard and with a screen reader: every chart has a description in words, and
every term with an explanation is a button that shows it.

Charts are of plotly, with 48 styles of series: 12 colours with dashes and marks. Plotly has no types. It is an extra,
so that these functions import it when they draw.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nadi import inputs
from nadi.errors import ConfigError, OutputError
from nadi.inputs.arrays import Float64
from nadi.terminal import FittedTable, in_page

if TYPE_CHECKING:
    import jinja2

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


Plotly = Any  # a plotly Figure

# Colours at least 35 apart in CIELAB, also from the red of cut links; contrast of 3:1 on light and dark ground
COLOURS = (
    *("#1f77b4", "#ea7200", "#0ca800", "#cc6ce4", "#189c90", "#a84e36"),
    *("#909c00", "#f000fc", "#2460fc", "#908454", "#cc3c78", "#b4849c"),
)
HEAT = ((0, "rgba(128,140,155,0.08)"), (0.5, "#e46a30"), (1, "#d6202a"))  # colour scale from none to most
PANEL_HEIGHT = 78  # height in pixels of a panel with its title
_DASHES = (None, "dot", "longdash", "longdashdot")
_EXPECTED = ("dash", "dashdot", "5px,15px", "15px,5px,2px,5px")
_MARKS = ("", "-open", "-dot", "-x")


class SeriesStyle(NamedTuple):
    """The style of one series."""

    colour: str  # Colour as "#rrggbb"
    dash: str | None  # Dash of the line of measured values; None = solid
    expected_dash: str  # Dash of the line of expected values
    mark: str  # Suffix of a plotly symbol, such as "-open" for "circle-open"

    def line(self) -> dict[str, Any]:
        """Return the line of a series of measured values."""
        return {"color": self.colour, "dash": self.dash}

    def line_and_marker(self) -> dict[str, Any]:
        """Return the options of a scatter series of measured values."""
        return {"line": self.line(), "marker": {"symbol": f"circle{self.mark}"}}


def series_style(number: int) -> SeriesStyle:
    """Return the style of series `number` of a chart."""
    colour, turn = COLOURS[number % len(COLOURS)], number // len(COLOURS) % len(_DASHES)
    return SeriesStyle(colour, _DASHES[turn], _EXPECTED[turn], _MARKS[turn])


def series_style_of(colour: int, dash: int) -> SeriesStyle:
    """Return the style with these numbers of a colour and a dash."""
    return series_style(colour % len(COLOURS) + len(COLOURS) * dash)


def band_lines(x: Float64, low: Float64, high: Float64, colour: str) -> list[Plotly]:
    """Return two series whose area between `low` and `high` is filled.

    Args:
        x: Positions on the x axis.
        low: Lower edge at each position.
        high: Upper edge at each position.
        colour: Colour of the area, "#rrggbb".
    """
    from plotly import graph_objects as go

    look = {"mode": "lines", "line": {"width": 0, "shape": "hv"}, "hoverinfo": "skip", "showlegend": False}
    # plotly fills between a series and the one before it
    fill = {
        "fill": "tonexty",
        "fillcolor": f"rgba({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))}, 0.25)",
    }
    return [go.Scatter(x=x, y=low, **look), go.Scatter(x=x, y=high, **look, **fill)]


def figure_margin(x_title: str) -> dict[str, int]:
    """Return the margins of a chart in pixels; x_title: title of its x axis."""
    return {"t": 10, "b": 50 if x_title else 10, "l": 10, "r": 10}


def empty_figure(x_title: str = "", y_title: str = "") -> Plotly:
    """Return a figure without series, with the margins of all charts and titles of the axes.

    Args:
        x_title: Title of the x axis.
        y_title: Title of the y axis.
    """
    from plotly import graph_objects as go

    drawn = go.Figure()
    drawn.update_layout(margin=figure_margin(x_title), hovermode="closest")
    drawn.update_xaxes(title_text=x_title)
    drawn.update_yaxes(title_text=y_title)
    return drawn


def panel_figure(titles: Sequence[str], x_title: str, unit: str) -> Plotly:
    """Return a figure with a row per title, which share both axes.

    Args:
        titles: Titles of the panels.
        x_title: Title of the x axis.
        unit: Unit of the values, which begin at 0 and have an SI prefix.
    """
    from plotly.subplots import make_subplots

    names = [in_page(title) for title in titles]
    # plotly refuses gaps that leave no room for the panels
    gap = min(0.03, 1 / len(names) / 3)
    drawn = make_subplots(len(names), 1, True, "all", subplot_titles=names, vertical_spacing=gap)
    drawn.update_layout(margin=figure_margin(x_title) | {"t": 24}, showlegend=False, hovermode="closest")
    drawn.update_annotations(x=0, xanchor="left", font_size=11)
    drawn.update_yaxes(rangemode="tozero", exponentformat="SI", ticksuffix=unit, nticks=3)
    drawn.update_xaxes(title_text=x_title, row=len(names))
    return drawn


def height_of_panels(count: int) -> int:
    """Return the height in pixels of a figure with this number of panels.

    Args:
        count: Number of panels.
    """
    return 90 + PANEL_HEIGHT * count


def bar_chart(
    rows: Sequence[str],
    series: Mapping[str, Sequence[float] | Float64],
    colours: Sequence[str],
    unit: str,
    mode: str = "stack",
) -> Plotly:
    """Return a chart of horizontal bars.

    Args:
        rows: Names of the rows, the first at the top.
        series: Values of the rows by name of the series.
        colours: Colour of each series.
        unit: Unit of the values.
        mode: "stack" or "group".
    """
    drawn = empty_figure(unit)
    for (name, values), colour in zip(series.items(), colours, strict=True):
        drawn.add_bar(
            y=[in_page(row) for row in rows],
            x=values,
            name=in_page(name),
            orientation="h",
            marker_color=colour,
            hovertemplate=f"%{{y}}: {in_page(name)} %{{x:,.4g}} {unit}<extra></extra>",
        )
    drawn.update_layout(barmode=mode, legend={"traceorder": "normal"}, showlegend=len(series) > 1)
    drawn.update_yaxes(autorange="reversed", type="category", fixedrange=True)
    return drawn


def heat_map(x: Any, rows: Sequence[str], values: Any, x_title: str, template: str, **options: Any) -> Plotly:  # noqa: ANN401
    """Return a heat map of values[rows, x], first row at the top; `template`, `options`: plotly's hover text, rest.

    Args:
        x: Positions of the columns.
        rows: Names of the rows, the first at the top.
        values: Values by row and column.
        x_title: Title of the x axis.
        template: Plotly's template of the hover text.
        **options: Further options of Plotly's heat map.
    """
    drawn = empty_figure(x_title)
    names = [in_page(row) for row in rows]
    drawn.add_heatmap(x=x, y=names, z=values, hovertemplate=f"{template}<extra></extra>", **options)
    drawn.update_yaxes(autorange="reversed", fixedrange=True, type="category")
    return drawn
