"""Tables on a terminal or in a pipe. No digit is cut: a table that is too wide loses its least needed columns.

Where standard output is no terminal and COLUMNS is not set, all is as wide as it wants to be: one row, one line.
"""

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import inputs
from nadi.terminal.console import Terminal

_UNBOUNDED = 100_000
_MARGIN = 1
_GAP = 3
_NO_HEADINGS_GAP = 2
_LEAST_NAME = 8
_LEAST = {"number": _UNBOUNDED, "name": 40, "text": 24}
"""Cells to which a column shrinks before others are left out: a number never, names and prose onto further lines."""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        heading: above it.
        rank: 0 = always shown; of the others, the one of the highest rank is the first to be left out.
        form: numbers stand to the right, names and prose to the left.
    """

    heading: str
    rank: int = 0
    form: Literal["number", "name", "text"] = "number"


class FittedTable:
    """A table that a rich Console prints; cells are plain text, never markup."""

    def __init__(self, title: str, *columns: Column | str, headings: bool = True, whole: str = "--json") -> None:
        """Start without rows.

        Args:
            title: above the table, may be empty.
            columns: a bare text is the heading of numbers that are always shown.
            headings: whether there is a line of them.
            whole: the option with which the command shows all columns however narrow the terminal is.
        """
        self.title = title
        self.headings = headings
        self.whole = whole
        self.columns = [column if isinstance(column, Column) else Column(column) for column in columns]
        self.rows: list[tuple[str, ...]] = []
        self.notes: list[str] = []
        self._bold: set[int] = set()
        self._ends: set[int] = set()

    def add_row(self, *cells: str, bold: bool = False) -> None:
        """Append a row; bold: it stands out.

        Raises:
            ValueError: other than one cell for each column.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        if bold:
            self._bold.add(len(self.rows))
        self.rows.append(cells)

    def end_group(self) -> None:
        """Leave space below the rows so far."""
        self._ends.add(len(self.rows) - 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Title, table, notes, and which columns are left out."""
        heads = [_text(console, column.heading) for column in self.columns]
        cells = [[_text(console, inputs.shown(cell)) for cell in row] for row in self.rows]  # a line feed is of a name
        natural = [self._natural(column) for column in zip(heads, *cells, strict=True)]
        shown = self._that_fit(natural, options.max_width)
        if self.title:
            yield _text(console, self.title, style="bold")
        if self.headings:
            yield Text()
        table = self._empty([self.columns[i].form for i in shown], [heads[i] for i in shown])
        for column, width in zip(table.columns, self._widths(natural, shown, options.max_width), strict=True):
            column.width = width
        for number, row in enumerate(cells):
            style = "bold" if number in self._bold else None
            table.add_row(*(row[i] for i in shown), style=style, end_section=number in self._ends)
        yield Padding(table, (0, 0, 0, _MARGIN), expand=False)
        left_out = [column.heading for i, column in enumerate(self.columns) if i not in shown]
        wide = self._needed(range(len(natural)), natural)
        note = f"not shown: {', '.join(left_out)} (a terminal {wide} columns wide or {self.whole} has all)"
        for line in (*self.notes, *([note] if left_out else [])):
            yield _text(console, line)
        if self.headings:
            yield Text()

    def _empty(self, forms: Sequence[str], heads: Sequence[Text]) -> Table:
        """A rich Table without rows."""
        table = Table(
            box=box.SIMPLE_HEAD if self.headings else None,
            show_header=self.headings,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1) if self.headings else (0, _NO_HEADINGS_GAP, 0, 0),
        )
        for form, head in zip(forms, heads, strict=True):
            table.add_column(head, justify="right" if form == "number" else "left", overflow="fold")
        return table

    def _that_fit(self, natural: Sequence[int], max_width: int) -> list[int]:
        """Columns that are shown; natural: cells that each wants."""
        shown = list(range(len(natural)))
        least = self._least(natural)
        while self._needed(shown, least) > max_width:
            optional = [i for i in shown if self.columns[i].rank > 0]
            if not optional:
                break
            shown.remove(max(optional, key=lambda i: (self.columns[i].rank, i)))
        return shown

    def _widths(self, natural: Sequence[int], shown: Sequence[int], max_width: int) -> list[int]:
        """Of the columns shown: what each wants where there is room; where there is not, the widest give way first."""
        widths, least = list(natural), self._least(natural)
        while self._needed(shown, widths) > max_width:
            above = [i for i in shown if widths[i] > least[i]]
            words = [i for i in shown if self.columns[i].form != "number" and widths[i] > _LEAST_NAME]
            places = above or words or [i for i in shown if widths[i] > 1]
            if not places:
                break
            widths[max(places, key=lambda i: widths[i])] -= 1
        return [widths[i] for i in shown]

    def _needed(self, shown: Sequence[int], widths: Sequence[int]) -> int:
        gap = _GAP if self.headings else _NO_HEADINGS_GAP
        return _MARGIN + sum(widths[i] for i in shown) + gap * len(shown) - (1 if self.headings else 0)

    def _natural(self, column: Sequence[Text]) -> int:
        """Cells that a column wants; its heading is first."""
        texts = column if self.headings else column[1:]
        return max((cell_len(line) for text in texts for line in text.plain.split("\n")), default=0)

    def _least(self, natural: Sequence[int]) -> list[int]:
        return [min(wanted, _LEAST[column.form]) for wanted, column in zip(natural, self.columns, strict=True)]


def facts(title: str, rows: Sequence[tuple[str, str]]) -> FittedTable:
    """A table of labels and what they say, without headings."""
    table = FittedTable(title, Column("", form="name"), Column("", form="text"), headings=False)
    for row in rows:
        table.add_row(*row)
    return table


def console() -> Terminal:
    """Standard output, for plain text."""
    found = Terminal()
    bounded = found.file.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return found if bounded else Terminal(width=_UNBOUNDED)


def _text(console: Console, text: str, style: str = "") -> Text:
    """Plain text as the console shows it."""
    return console.render_str(text, style=style, markup=False, emoji=False, highlight=False)
