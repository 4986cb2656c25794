"""The page of `nadi diagnose`: measured and expected bandwidths with the band, causes, and the next measurement."""

import math
from itertools import groupby
from pathlib import Path

from nadi.reports import pages
from nadi.reports.pages.bandwidths import BandwidthSeries, bandwidth_chart
from nadi.studies.diagnosis.diagnosing import Diagnosis
from nadi.studies.diagnosis.report import causes_table, measurement_text, rows_table, verdict_text
from nadi.studies.diagnosis.rows import TimedRow


def write_page(diagnosis: Diagnosis, path: Path) -> None:
    """Write the page; OutputError, in one line: it cannot be written.

    Args:
        diagnosis: Diagnosis that is shown.
        path: File of the page, whose name ends in .html.
    """
    pages.write_page(path, diagnosis_page(diagnosis))


def diagnosis_page(diagnosis: Diagnosis) -> pages.Page:
    """Return the page: causes and the next measurement, a chart for each collective, and the table of all rows.

    Args:
        diagnosis: Diagnosis that is shown.
    """
    causes: list[pages.Part] = [pages.from_terminal(causes_table(diagnosis))]
    if diagnosis.measurement is not None:
        causes.insert(0, pages.Paragraph(measurement_text(diagnosis.measurement)))
    about = "How well each cause explains the rows, and what separates the first two."
    sections = [pages.PageSection("causes", "Causes", about, causes)]
    in_order = sorted(diagnosis.rows, key=lambda row: row.log.collective)
    for kind, of_kind in groupby(in_order, lambda row: row.log.collective):
        caption = "Lines: expected bus bandwidth. Areas: healthy rows. Points: measured."
        plot = pages.Plot(f"bus bandwidth of {kind}", bandwidth_chart(_series(list(of_kind))), caption, 420)
        sections.append(pages.PageSection(kind, kind.capitalize(), "Bus bandwidth over size, by test.", [plot]))
    table = pages.from_terminal(rows_table(diagnosis))
    sections.append(pages.PageSection("rows", "All rows", "Measured and expected times and bandwidths.", [table]))
    verdict = verdict_text(diagnosis)
    lead = f"{verdict[:1].upper()}{verdict[1:]}."
    page = pages.Page(f"Diagnosis of {diagnosis.cluster}", lead, sections)
    return page.with_error_bars(bar.document() for bar in diagnosis.error_bars)


def _series(rows: list[TimedRow]) -> list[BandwidthSeries]:
    """Return the series of a collective, one for each test."""
    found = []
    for number, (_, of_test) in enumerate(groupby(rows, lambda row: id(row.log)), 1):
        own = sorted(of_test, key=lambda row: row.row.size_bytes)
        log = own[0].log
        hosts = sorted({host for host, _ in log.members})
        where = f", {hosts[0]}" if len(hosts) == 1 else ""
        found.append(
            BandwidthSeries(
                f"test {number}: {log.gpus:,} GPUs{where}",
                [row.row.size_bytes for row in own],
                [_gb_per_s(row, row.expected_us) for row in own],
                [_gb_per_s(row, row.longest_healthy_us) for row in own],
                [_gb_per_s(row, row.expected_us**2 / row.longest_healthy_us) for row in own],
                [_gb_per_s(row, row.row.best_time_us) for row in own],
            )
        )
    return found


def _gb_per_s(row: TimedRow, time_us: float) -> float:
    """Return the bus bandwidth that a time of a row means, in GB/s; 0 = it is not finite."""
    rate = row.bus_bandwidth_Bps(time_us) / 1e9
    return rate if math.isfinite(rate) else 0.0
