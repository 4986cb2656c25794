"""Terminal tables of `nadi collective`: rows by size, the fastest first, and the fastest algorithm by size."""

from nadi.insight.analysis.cautions import NOBODY_WAITS
from nadi.studies.collectives.microbench import SweepRow
from nadi.studies.collectives.sweep import CollectiveSweep
from nadi.terminal.readable import TimeUnit, in_unit, size_text, time_unit
from nadi.terminal.tables import AnyColumn, FittedTable, name_column

FASTEST = "fastest"


def sweep_table(sweep: CollectiveSweep) -> FittedTable:
    """Return the table of rows by size; several algorithms are sorted by time, with their factor over the fastest."""
    rows_by_size: dict[int, list[SweepRow]] = {}
    for row in sweep.rows:
        rows_by_size.setdefault(row.bytes, []).append(row)
    several = len({row.algorithm for row in sweep.rows}) > 1
    has_variants = any(row.variant for row in sweep.rows)
    columns: list[AnyColumn] = ["size", name_column("algorithm"), "time"]
    columns += ["vs fastest"] * several + [name_column("variant", 6)] * has_variants
    columns += [("algbw GB/s", 5), ("busbw GB/s", 1), ("closed form", 4), ("ratio", 2), ("bound", 3)]
    table = FittedTable(f"{sweep.kind} of {sweep.npus} NPUs on {sweep.topology}", *columns)
    bands = sweep.winners()
    for size, rows in rows_by_size.items():
        unit = time_unit(row.time_ps for row in rows)
        fastest = next(band.algorithm for band in bands if band.from_bytes <= size <= band.to_bytes)
        by_time = sorted(rows, key=lambda row: (row.time_ps, row.algorithm != fastest)) if several else rows
        for place, row in enumerate(by_time):
            factor = f"{row.time_ps / by_time[0].time_ps:.3f}" if by_time[0].time_ps else "-"
            about = "" if row.closed_form_played else "~"
            cells = [size_text(size) if place == 0 else "", row.algorithm, _time(row.time_ps, unit)]
            cells += [factor if place else FASTEST] * several + [row.variant or "-"] * has_variants
            cells += [f"{rate_Bps / 1e9:.3f}" for rate_Bps in (row.algbw_Bps, row.busbw_Bps)]
            cells += [about + _time(row.closed_form_ps, unit)]
            cells += [f"{about}{row.ratio:.4f}" if row.closed_form_ps > 0 else "-", _time(row.bound_ps, unit)]
            table.add_row(*cells, bold=several and place == 0)
        if several:
            table.end_group()
    busiest = max((row.busiest_link for row in sweep.rows), default=0.0)
    if busiest > 1 and sweep.network.congestion_aware is False:
        table.notes.append(f"links carry up to {busiest:.0%} of their capacity: {NOBODY_WAITS}")
    return table


def winners_table(sweep: CollectiveSweep) -> FittedTable:
    """Return the table of bands: consecutive sizes with the same fastest algorithm."""
    columns = name_column("algorithm"), "from size", "to size", ("speed-up over the next", 1)
    table = FittedTable("fastest", *columns)
    for band in sweep.winners():
        lead = f"{band.least_lead:.2f} to {band.most_lead:.2f}" if band.least_lead is not None else "-"
        table.add_row(band.algorithm, size_text(band.from_bytes), size_text(band.to_bytes), lead)
    return table


def _time(time_ps: float, unit: TimeUnit) -> str:
    """Return a time in ps as text in a unit."""
    return f"{in_unit(time_ps, unit)} {unit.name}"
