"""What `nadi diagnose` prints: the verdict, rows beside the band of healthy times, causes, and the next measurement."""

from typing import TYPE_CHECKING

from nadi.studies.diagnosis.diagnosing import Diagnosis
from nadi.studies.diagnosis.hypotheses import HEALTHY_NAME, UNKNOWN_NAME
from nadi.studies.diagnosis.next_measurement import NextMeasurement
from nadi.terminal import FittedTable, name_column, size_text, text_column

if TYPE_CHECKING:
    from rich.console import Group

_MAX_CAUSES = 5  # hypotheses in the table
_SMALLEST_SHOWN = 0.005  # probability from which a further hypothesis is shown


def verdict_text(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as a sentence.

    Args:
        diagnosis: Diagnosis that is shown.
    """
    best = diagnosis.hypotheses[0]
    slow = sum(not row.is_healthy for row in diagnosis.rows)
    rows = f"{slow:,} of {len(diagnosis.rows):,} rows are slower than the band of healthy times"
    if best.name == HEALTHY_NAME:
        return f"healthy: {rows}"
    if best.name == UNKNOWN_NAME:
        return f"not healthy, and no cause of the list explains it: {rows}"
    return f"not healthy: {best.title} ({best.probability:.0%}); {rows}"


def measurement_text(measurement: NextMeasurement) -> str:
    """Return the next measurement as a sentence.

    Args:
        measurement: Measurement that would separate the two most probable hypotheses.
    """
    (first, second), (first_us, second_us) = measurement.names, measurement.times_us
    setting = f" with {measurement.settings}" if measurement.settings else ""
    where = f" on hosts without {measurement.elsewhere}" if measurement.elsewhere else ""
    gpus = f"{measurement.gpus:,} GPUs of {measurement.hosts:,} host{'s' * (measurement.hosts > 1)}"
    what = f"{measurement.kind} of {gpus}{where}, {size_text(measurement.size_bytes)}{setting}"
    times = f"{first_us:,.1f} us, {second} {second_us:,.1f} us"
    return f"measure next: {what}; {first} would take {times} ({measurement.sds:.0f} standard deviations of the noise)"


def diagnosis_tables(diagnosis: Diagnosis) -> "Group":
    """Return the tables of rows and of hypotheses, with notes.

    Args:
        diagnosis: Diagnosis that is shown.
    """
    from rich.console import Group

    causes = causes_table(diagnosis)
    if diagnosis.measurement is not None:
        causes.notes.insert(0, measurement_text(diagnosis.measurement))
    return Group(rows_table(diagnosis), causes)


def rows_table(diagnosis: Diagnosis) -> FittedTable:
    """Return the table of all rows beside the band of healthy times.

    Args:
        diagnosis: Diagnosis that is shown.
    """
    rows = FittedTable(
        f"{diagnosis.cluster}: {verdict_text(diagnosis)}",
        name_column("collective"),
        ("GPUs", 3),
        "size",
        ("measured us", 4),
        ("expected us", 5),
        "busbw GB/s",
        ("expected", 2),
        ("healthy up to us", 6),
        text_column("row", 1),
    )
    for row in diagnosis.rows:
        rates = (row.bus_bandwidth_Bps(time) / 1e9 for time in (row.row.best_time_us, row.expected_us))
        times = (f"{time:,.1f}" for time in (row.row.best_time_us, row.expected_us))
        cells: list[str | int] = [
            row.log.collective,
            row.log.gpus,
            size_text(row.row.size_bytes),
            *times,
            *(f"{r:,.2f}" for r in rates),
        ]
        rows.add_row(
            *cells, f"{row.longest_healthy_us:,.1f}", "healthy" if row.is_healthy else f"{row.ratio:.2f} x expected"
        )
    return rows


def causes_table(diagnosis: Diagnosis) -> FittedTable:
    """Return the table of hypotheses, with notes about what these rows do not show.

    Args:
        diagnosis: Diagnosis that is shown.
    """
    causes = FittedTable(
        "hypotheses", ("probability", 2), name_column("name"), text_column("what"), text_column("look at", 1)
    )
    shown = [each for each in diagnosis.hypotheses[:_MAX_CAUSES] if each.probability >= _SMALLEST_SHOWN]
    for each in shown or diagnosis.hypotheses[:1]:
        told = " (the log says so)" if each.told else ""
        causes.add_row(f"{each.probability:.0%}", each.name, each.title + told, each.look)
    best = diagnosis.hypotheses[0]
    if best.alike:
        causes.notes.append(f"these rows do not separate {best.name} from {' or '.join(best.alike)}")
    if diagnosis.unseen:
        causes.notes.append(f"these rows cannot show: {', '.join(diagnosis.unseen)}")
    causes.notes += [bar.text() for bar in diagnosis.error_bars]
    return causes
