"""The answer of `nadi expect` as tables on the terminal, a page, CSV, and thresholds for acceptance tests."""

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from nadi import inputs
from nadi.errors import OutputError
from nadi.inputs.units import PS_PER_US
from nadi.insight.nccl_tests_command import NcclTestsCommand
from nadi.reports import pages
from nadi.reports.pages.bandwidths import BandwidthSeries, bandwidth_chart
from nadi.studies.expectation.rows import Expectation, ExpectedRow, counted
from nadi.terminal import AnyColumn, FittedTable, name_column, size_text

_UNKNOWN = "-"  # cell of a value that is not known
_NOT_MEASURED = "none measured"  # cell of the cases of a kind of collective that was not measured in its class
_THRESHOLD_COLUMNS = ("collective", "bytes", "hosts", "gpus", "threshold_busbw_GB_per_s")
_MANY_SCALES = 6  # number of scales up to which a chart has a line for each


def expectation_table(expectation: Expectation) -> FittedTable:
    """Return the table of all rows; of a command line of nccl-tests with the columns that it prints.

    Args:
        expectation: The answer.
    """
    of_command = expectation.command is not None
    columns: list[AnyColumn] = ["size", ("count", 12), ("type", 11), ("redop", 10), ("root", 9)]
    if not of_command:
        columns = [name_column("collective"), "hosts", "size"]
    columns += ["time us", ("algbw", 8), "busbw", ("best", 6), "threshold", name_column("choice", 2)]
    columns += [name_column("limit", 1), name_column("source", 4), ("cases", 5)]
    title = f"{expectation.cluster}, {expectation.gpus:,} GPUs of {counted(expectation.hosts, 'host')}"
    if expectation.command and expectation.rows:
        first = expectation.rows[0]
        of_hosts = f"{counted(first.hosts, 'host')} of {expectation.cluster}"
        title = f"{expectation.command.program} of {first.gpus:,} GPUs on {of_hosts}"
    table = FittedTable(title, *columns)
    last: tuple[object, ...] = ()
    for number, row in enumerate(expectation.rows):
        own: tuple[str, ...] = (row.kind, f"{row.hosts:,}", size_text(row.bytes))
        if expectation.command:
            own = _nccl_tests_cells(expectation, expectation.command, number)
        elif last[:2] == (row.kind, row.hosts):
            own = ("", "", own[2])
        elif last[:1] == (row.kind,):
            own = ("", *own[1:])
        if last and last[:1] != (row.kind,):
            table.end_group()
        last = row.kind, row.hosts
        table.add_row(*own, *_cells(row))
    table.notes.extend(_notes(expectation))
    return table


def _nccl_tests_cells(expectation: Expectation, command: NcclTestsCommand, number: int) -> tuple[str, ...]:
    """Return size, count, type, redop and root of a row, as nccl-tests prints them."""
    row = expectation.rows[number]
    return str(row.bytes), str(expectation.counts[number]), command.datatype, command.operation, str(command.root)


def _cells(row: ExpectedRow) -> list[str]:
    """Return the cells of a row from the time on."""
    share = "" if row.limit_share is None else f" {row.limit_share:.0%}"
    return [
        _digits(row.time_ps / PS_PER_US),
        f"{row.algbw_gb_per_s:.2f}",
        f"{row.busbw_gb_per_s:.2f}",
        _gb_per_s(row.best_gb_per_s),
        _gb_per_s(row.threshold_gb_per_s),
        row.choice or _UNKNOWN,
        f"{row.limit}{share}" if row.limit else _UNKNOWN,
        row.source,
        str(row.cases or _UNKNOWN) if row.measured else _NOT_MEASURED,
    ]


def _digits(value: float) -> str:
    """Return a time in microseconds with as many digits as nccl-tests has."""
    return f"{value:.2f}" if value < 1000 else f"{value:.1f}" if value < 10_000 else f"{value:.0f}"


def _gb_per_s(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2f}"


def _notes(expectation: Expectation) -> list[str]:
    """Return sentences about units, bands and classes."""
    notes = ["bandwidths in GB/s as nccl-tests has them; threshold: lower end of the band of busbw, best: upper end"]
    classes: dict[str, set[tuple[int, float]]] = {}
    for row in expectation.rows:
        found = classes.setdefault(row.class_name, set())
        if row.coverage is not None:
            found.add((row.cases, row.coverage))
    for name, bands in classes.items():
        texts = (f"{coverage:.0%} of {cases} measured cases" for cases, coverage in sorted(bands))
        notes.append(f"band of the class {name}: {' or '.join(texts) or 'none, as too few cases were measured'}")
    unmeasured = dict.fromkeys(
        f"{row.kind} ({row.class_name})" for row in expectation.rows if row.cases > 0 == row.measured
    )
    if unmeasured:
        notes.append(f"no measured rows behind {', '.join(unmeasured)}: bands are those of other collectives")
    if any(row.paths for row in expectation.rows):
        draws = max(row.paths for row in expectation.rows)
        notes.append(f"paths are hashed: times are the median of {draws} draws, bands contain all of them")
    return [*notes, *expectation.notes]


def written(expectation: Expectation, csv_file: Path | None, thresholds: Path | None, page: Path | None) -> None:
    """Write the files that a user asks for; OutputError, in one line: one cannot be written.

    Args:
        expectation: The answer.
        csv_file: File of all rows; None = none.
        thresholds: File of the thresholds alone; None = none.
        page: File of the page; None = none.
    """
    rows = expectation.document()["rows"]
    if csv_file:
        _write(csv_file, _csv(list(rows[0]) if rows else list(_THRESHOLD_COLUMNS), rows))
    if thresholds:
        known = [row for row in rows if row["threshold_busbw_GB_per_s"] is not None]
        _write(thresholds, _csv(_THRESHOLD_COLUMNS, known))
    if page:
        pages.write_page(page, expectation_page(expectation))


def _csv(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """Return rows as CSV, numbers with six digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = [row[column] for column in columns]
        writer.writerow(f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else cell for cell in cells)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    try:
        with inputs.whole_file(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from error


def expectation_page(expectation: Expectation) -> pages.Page:
    """Return the page: a chart of bus bandwidths with bands for each collective, and the table of all rows.

    Args:
        expectation: The answer.
    """
    sections = []
    for kind, of_kind in groupby(expectation.rows, lambda row: row.kind):
        rows = list(of_kind)
        caption = "Lines: expected bus bandwidth. Areas: bands. Below an area a measured figure fails the test."
        plot = pages.Plot(f"bus bandwidth of {kind}", _figure(rows), caption, 420)
        sections.append(pages.PageSection(kind, kind.capitalize(), "Bus bandwidth over size, by hosts.", [plot]))
    table = pages.from_terminal(expectation_table(expectation))
    about = "Expected times and bandwidths, thresholds, and how each row was obtained."
    sections.append(pages.PageSection("rows", "All rows", about, [table]))
    lead = "What nccl-tests should show on an idle, healthy cluster, and which figures to accept."
    return pages.Page(f"What to expect of {expectation.cluster}", lead, sections)


def _figure(rows: Sequence[ExpectedRow]) -> Any:  # noqa: ANN401 - plotly has no types
    """Return a plotly Figure of bus bandwidth over size: a line and a band for each number of hosts."""
    scales = list(dict.fromkeys(row.hosts for row in rows))
    shown = scales if len(scales) <= _MANY_SCALES else [*scales[: _MANY_SCALES - 1], scales[-1]]
    series = []
    for hosts in shown:
        own = [row for row in rows if row.hosts == hosts]
        edges = [(row.threshold_gb_per_s, row.best_gb_per_s) for row in own if row.slowest_ps is not None]
        low, high = zip(*edges, strict=True) if len(edges) == len(own) else ((), ())
        sizes, values = [row.bytes for row in own], [row.busbw_gb_per_s for row in own]
        series.append(BandwidthSeries(counted(hosts, "host"), sizes, values, low, high))
    return bandwidth_chart(series)
