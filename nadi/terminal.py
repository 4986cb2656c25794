"""Output on terminals: a console that prints text literally, tables, and rounded quantities with a fitting unit.

A table that is too wide drops its least important columns and never cuts digits. If standard output is not a terminal
and COLUMNS is not set, tables have their natural width: one line per row. `inputs.units` formats exact quantities.
"""

import codecs
import html
import math
import os
import sys
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from typing import Any, Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nadi import inputs
from nadi.inputs.files import escape, shown
from nadi.inputs.units import KIB, PS_PER_MS, PS_PER_NS, PS_PER_S, PS_PER_US, format_bytes

# Replacements for the characters that Nadi prints, for terminals that lack them
_PLAIN = {"µ": "u", "→": "->", "←": "<-", "\u00d7": "x", "…": "...", "≤": "<=", "≥": ">=", "\u2013": "-", "—": "-"}
_PLAIN |= {"·": ".", "│": "|", "─": "-", "━": "-", "╶": "-", "█": "#"}
_HANDLER = "nadi.plain"


def plain(text: str, encoding: str) -> str:
    """Return the text with characters that an encoding lacks replaced by similar ones."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, _registered_handler()).decode(encoding)
    except LookupError:
        pass
    return text


def in_page(text: str) -> str:
    """Return the text escaped for a page, because plotly would interpret HTML in it."""
    return html.escape(shown(text))


def say(text: str, *, err: bool = False) -> None:
    """Print one line that contains names or paths on standard output or standard error.

    Args:
        text: The line; control characters are shown as escapes.
        err: Whether the line is for standard error.
    """
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{shown(text)}\n")
    stream.flush()


def never_fail_to_print() -> None:
    """Make standard output and error replace characters that their encoding lacks instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_registered_handler())


def _registered_handler() -> str:
    """Register the error handler with codecs and return its name."""
    codecs.register_error(_HANDLER, _replace)
    return _HANDLER


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement for the characters that the encoding lacks, and the index behind them (see codecs)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or escape(c) for c in unknown), error.end


_DIGITS = 6
_DECIMALS = 3
_RATES = (("Tb/s", 10**12), ("Gb/s", 10**9), ("Mb/s", 10**6), ("kb/s", 10**3), ("b/s", 1))
_AMOUNTS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


class TimeUnit(NamedTuple):
    """A unit of time: its name and its length in picoseconds."""

    name: str
    ps: int


NS, US, MS, S = TimeUnit("ns", PS_PER_NS), TimeUnit("µs", PS_PER_US), TimeUnit("ms", PS_PER_MS), TimeUnit("s", PS_PER_S)


def time_unit(times_ps: Iterable[float]) -> TimeUnit:
    """Return the unit for a column or table of times: the largest that the median of the nonzero times reaches.

    Args:
        times_ps: The times of the column in picoseconds.
    """
    nonzero = sorted(time_ps for time_ps in times_ps if time_ps > 0)
    return next((unit for unit in (S, MS, US) if nonzero[len(nonzero) // 2] >= unit.ps), NS) if nonzero else US


def in_unit(time_ps: float, unit: TimeUnit) -> str:
    """Return a time in a unit with three decimals, or with two significant digits if it is too small for these.

    Args:
        time_ps: The time in picoseconds.
        unit: The unit, as `time_unit` returns it.
    """
    value = time_ps / unit.ps
    small = 0 < value < 10 ** (1 - _DECIMALS)
    return f"{value:.{1 - math.floor(math.log10(value))}f}" if small else f"{value:,.{_DECIMALS}f}"


def time_text(time_ps: float) -> str:
    """Return a time in its largest unit with six digits, such as "65.9104 ms".

    Args:
        time_ps: The time in picoseconds.
    """
    unit = next((unit for unit in (S, MS, US) if time_ps >= unit.ps), NS)
    return f"{_six_digits(time_ps / unit.ps)} {unit.name}" if time_ps else "0 s"


def rate_text(rate_bps: float) -> str:
    """Return a rate with six digits, such as "25.6 Tb/s".

    Args:
        rate_bps: The rate in bits per second.
    """
    name, size = next((unit for unit in _RATES if rate_bps >= unit[1]), _RATES[-1])
    return f"{_six_digits(rate_bps / size)} {name}"


def size_text(size_bytes: int) -> str:
    """Return the exact size, such as "64 KiB", "1 GiB", "1.5 MB" or "12 B".

    Args:
        size_bytes: The size in bytes.
    """
    text = format_bytes(size_bytes)
    digits = text.rstrip("BKMGTPki")
    return f"{digits} {text[len(digits) :]}"


def buffer_text(size_bytes: int) -> str:
    """Return a buffer size in a binary unit if that is a whole number below 1,024 ("64 KiB"), else `amount_text`.

    Args:
        size_bytes: The size in bytes.
    """
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1):
        whole, rest = divmod(size_bytes, KIB**power)
        if rest == 0 and 0 < whole < KIB:
            return f"{whole} {unit}"
    return amount_text(size_bytes)


def amount_text(size_bytes: float) -> str:
    """Return an amount of data with two decimals, such as "33.58 MB".

    Args:
        size_bytes: The amount in bytes.
    """
    for unit, size in _AMOUNTS:
        if size_bytes >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def _six_digits(value: float) -> str:
    """Return a number with six digits, without an exponent and without trailing zeros."""
    if value == 0:
        return "0"
    decimals = max(0, _DIGITS - 1 - math.floor(math.log10(value)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def metric_text(form: str, value: float | None) -> str:
    """Return a metric formatted by its form (time, share, bytes, count, rate, or another number); "-" if missing.

    Args:
        value: The value in the base unit of its form; None if it is missing.
        form: The kind of quantity: time, share, bytes, count, rate, or another word for a plain number.
    """
    if value is None or math.isnan(value):
        return "-"
    whole, share = "{:,.0f}".format, "{:.1%}".format
    forms = {"time": time_text, "share": share, "bytes": amount_text, "count": whole, "rate": whole}
    return forms.get(form, "{:,.4g}".format)(value)


_UNBOUNDED = 100_000
_MARGIN = 1
_GAP = 3
_NO_HEADINGS_GAP = 2
_MIN_NAME_CELLS = 8
# Minimum width of a column by its form, in cells: numbers never shrink; names and prose wrap onto further lines
_MIN_CELLS = {"number": _UNBOUNDED, "name": 40, "text": 24}


class Terminal(Console):
    """A Console that interprets no markup, emoji codes or escape sequences, and prints on any terminal.

    The name of a file or node may be "[red]" or ":bomb:", or may contain bytes that clear a screen. This console prints
    strings literally and control characters as escapes. Use a `Text` or a style for bold text.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - the options of Console
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]  # noqa: ANN401 - same
        """Return a string as Text without characters that the terminal lacks, because tables measure the result.

        Args:
            text: The string to render.
            options: The options of rich's method.
        """
        return super().render_str(plain(inputs.shown(text, lines=True), self.encoding), **options)


class TableColumn(NamedTuple):
    """A column of a table."""

    heading: str  # Text above the column
    rank: int = 0  # Order in which columns are dropped, highest first; 0 = the column is always shown
    # Kind of cells: numbers are aligned to the right, names and prose to the left
    form: Literal["number", "name", "text"] = "number"


AnyColumn = TableColumn | tuple[str, int] | str  # a heading, or heading and rank, define a column of numbers


def name_column(heading: str, rank: int = 0) -> TableColumn:
    """Return a column of names.

    Args:
        heading: The text above the column.
        rank: The order of dropping columns on narrow terminals, highest first; 0 means never.
    """
    return TableColumn(heading, rank, "name")


def text_column(heading: str, rank: int = 0) -> TableColumn:
    """Return a column of prose.

    Args:
        heading: The text above the column.
        rank: The order of dropping columns on narrow terminals, highest first; 0 means never.
    """
    return TableColumn(heading, rank, "text")


class FittedTable:
    """A table that a rich Console prints; cells are plain text, never markup."""

    def __init__(
        self, title: str, *columns: AnyColumn, headings: bool = True, full_output_option: str = "--json"
    ) -> None:
        """Create a table without rows; full_output_option: command-line option that prints all columns."""
        self.title = title
        self.headings = headings
        self.full_output_option = full_output_option
        self.columns = [TableColumn(column) if isinstance(column, str) else TableColumn(*column) for column in columns]
        self.rows: list[tuple[str, ...]] = []
        self.notes: list[str] = []
        self._bold: set[int] = set()
        self._ends: set[int] = set()

    def add_row(self, *cells: str | int, bold: bool = False) -> None:
        """Append a row of as many cells as columns, in bold if `bold`; whole numbers get commas between thousands."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        if bold:
            self._bold.add(len(self.rows))
        self.rows.append(tuple(cell if isinstance(cell, str) else f"{cell:,}" for cell in cells))

    def end_group(self) -> None:
        """Add space after the last row."""
        self._ends.add(len(self.rows) - 1)

    def note_more(self, left_out: int, what: str) -> None:
        """Note how many rows the table leaves out, if any.

        Args:
            left_out: The number of rows that the table leaves out.
            what: A noun in the plural for the rows.
        """
        if left_out > 0:
            self.notes.append(f"and {left_out:,} more {what} ({self.full_output_option} has all)")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield title, table, notes, and the names of the columns that do not fit."""
        heads = [_text(console, column.heading) for column in self.columns]
        # A line feed can only be part of a name, so `shown` escapes it
        cells = [[_text(console, inputs.shown(cell)) for cell in row] for row in self.rows]
        natural = [self._natural(column) for column in zip(heads, *cells, strict=True)]
        fitting = self._fitting_columns(natural, options.max_width)
        if self.title:
            yield _text(console, self.title, style="bold")
        if self.headings:
            yield Text()
        table = self._empty([self.columns[i].form for i in fitting], [heads[i] for i in fitting])
        widths, minimum = list(natural), self._min_widths(natural)
        while self._total_width(fitting, widths) > options.max_width:
            above = [i for i in fitting if widths[i] > minimum[i]]
            words = [i for i in fitting if self.columns[i].form != "number" and widths[i] > _MIN_NAME_CELLS]
            shrinkable = above or words or [i for i in fitting if widths[i] > 1]
            if not shrinkable:
                break
            widths[max(shrinkable, key=lambda i: widths[i])] -= 1
        for column, width in zip(table.columns, ([widths[i] for i in fitting]), strict=True):
            column.width = width
        for number, row in enumerate(cells):
            style = "bold" if number in self._bold else None
            table.add_row(*(row[i] for i in fitting), style=style, end_section=number in self._ends)
        yield Padding(table, (0, 0, 0, _MARGIN), expand=False)
        dropped = [column.heading for i, column in enumerate(self.columns) if i not in fitting]
        wide = self._total_width(range(len(natural)), natural)
        note = f"not shown: {', '.join(dropped)} (a terminal {wide} columns wide or {self.full_output_option} has all)"
        for line in (*self.notes, *([note] if dropped else [])):
            yield _text(console, line)
        if self.headings:
            yield Text()

    def _empty(self, forms: Sequence[str], heads: Sequence[Text]) -> Table:
        """Return a rich Table without rows, with a column for each form ("number", "name" or "text") and heading."""
        style = box.SIMPLE_HEAD if self.headings else None
        padding = (0, 1) if self.headings else (0, _NO_HEADINGS_GAP, 0, 0)
        table = Table(box=style, show_header=self.headings, show_edge=False, pad_edge=False, padding=padding)
        for form, head in zip(forms, heads, strict=True):
            table.add_column(head, justify="right" if form == "number" else "left", overflow="fold")
        return table

    def _fitting_columns(self, natural_widths: Sequence[int], max_width: int) -> list[int]:
        """Return the indices of the columns that fit; natural: natural width of each column in cells."""
        fitting = list(range(len(natural_widths)))
        minimum = self._min_widths(natural_widths)
        while self._total_width(fitting, minimum) > max_width:
            optional = [i for i in fitting if self.columns[i].rank > 0]
            if not optional:
                break
            # of the columns that may be left out, the last one with the highest rank goes first
            fitting.remove(max(optional, key=lambda i: (self.columns[i].rank, i)))
        return fitting

    def _total_width(self, columns: Sequence[int], widths: Sequence[int]) -> int:
        """Return the width in cells of a table of these columns, with gaps and margin."""
        gap = _GAP if self.headings else _NO_HEADINGS_GAP
        return _MARGIN + sum(widths[i] for i in columns) + gap * len(columns) - (1 if self.headings else 0)

    def _natural(self, column: Sequence[Text]) -> int:
        """Return the width of a column's longest line in cells; the heading is its first text."""
        texts = column if self.headings else column[1:]
        return max((cell_len(line) for text in texts for line in text.plain.split("\n")), default=0)

    def _min_widths(self, natural_widths: Sequence[int]) -> list[int]:
        """Return the minimum width of each column in cells."""
        return [min(width, _MIN_CELLS[column.form]) for width, column in zip(natural_widths, self.columns, strict=True)]


def facts(title: str, rows: Sequence[tuple[str, str]]) -> FittedTable:
    """Return a table of labels and values without headings.

    Args:
        title: The text above the table.
        rows: Pairs of a label and a value.
    """
    table = FittedTable(title, TableColumn("", form="name"), TableColumn("", form="text"), headings=False)
    for row in rows:
        table.add_row(*row)
    return table


def console() -> Terminal:
    """Return a console on standard output; its width is unbounded unless it is a terminal or COLUMNS is set."""
    terminal = Terminal()
    bounded = terminal.file.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return terminal if bounded else Terminal(width=_UNBOUNDED)


def _text(console: Console, text: str, style: str = "") -> Text:
    """Return plain text as the console prints it."""
    return console.render_str(text, style=style, markup=False, emoji=False, highlight=False)
