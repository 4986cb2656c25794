"""Text of `nadi compare` about a run beside measured times."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from nadi.terminal import AnyColumn, FittedTable, TimeUnit, facts, in_unit, name_column, size_text, time_unit

_SIDES = ("measured", "simulated")
_ERROR_COLUMNS: tuple[AnyColumn, ...] = ("median error", ("p95", 2), ("worst", 3))
_LEFT_OUT = {
    "without_time": "without a measured time",
    "not_in_traces": "not in the traces",
    "without_trace": "of NPUs without a trace",
}
_MAX_ROWS = 16
_MAX_NPUS = 8
_MIN_RANKS = 2  # Number of ranks from which on clocks are compared
_NOTICEABLE = 0.005  # Rounding error, relative to the median measured time, above which a note reports it


def accuracy_report(accuracy: dict[str, Any]) -> RenderableType:
    """Return the document of nadi.insight.accuracy as something that a rich Console prints."""
    tables = [kinds_table(accuracy)]
    tables += [sizes_table(accuracy)] if accuracy["sizes"] else []
    tables += [groups_table(accuracy)] if len(accuracy["groups"]) > 1 else []
    tables += [pairs_table(accuracy)] if accuracy["pairs"] else []
    tables += [ranks_table(accuracy), *([worst_table(accuracy)] if accuracy["worst"] else [])]
    return Group(overview(accuracy), "", *tables)


def overview(accuracy: dict[str, Any]) -> FittedTable:
    """Return a summary of the errors.

    Args:
        accuracy: The accuracy report as a document.
    """
    nodes = accuracy["nodes"]
    left_out = [f"{nodes[key]:,} {words}" for key, words in _LEFT_OUT.items() if nodes[key]]
    rows = [("nodes compared", ", ".join([f"{nodes['compared']:,}", *left_out]))]
    rows.append(("transfers of collectives", _summary(accuracy["collectives"], "no collective has a measured time")))
    if accuracy["messages"] is not None:
        rows.append(("transfers of messages", _summary(accuracy["messages"], "")))
    rows.append(("spans of ranks", _summary(accuracy["ranks"], "the traces have no start times")))
    clocks = accuracy["clocks"]
    if clocks["ranks"] >= _MIN_RANKS:
        within_micros = clocks["residual_p95_micros"]
        agree = "95 % of the finishes of collectives agree within"
        within = "" if within_micros is None else f"; {agree} {within_micros:,.3g} µs"
        rows.append(("clocks", f"{clocks['ranks']:,} ranks aligned by their common collectives{within}"))
    table = facts(f"{accuracy['run']} against the times of {accuracy['traces']}", rows)
    if accuracy["rounding"] > _NOTICEABLE:
        table.notes.append(f"traces hold whole microseconds, {accuracy['rounding']:.1%} of the median measured time")
    return table


def kinds_table(accuracy: dict[str, Any]) -> FittedTable:
    """Return the errors of all nodes by kind; members of collectives include their waiting.

    Args:
        accuracy: The accuracy report as a document.
    """
    unit = time_unit([row["measured_ps"] for row in accuracy["kinds"]])
    title = "nodes by kind, communication including waiting"
    table = FittedTable(title, name_column("kind"), *_spread_columns(unit))
    for row in accuracy["kinds"]:
        table.add_row(row["kind"], *_spread_cells(row, unit))
    return table


def sizes_table(accuracy: dict[str, Any]) -> FittedTable:
    """Return median transfers and waits of collectives by kind and size.

    Args:
        accuracy: The accuracy report as a document.
    """
    rows = accuracy["sizes"]
    unit = time_unit([row["measured_transfer_ps"] for row in rows])
    times = f"measured ({unit.name})", f"simulated ({unit.name})"
    rates = ("measured busbw (GB/s)", 4), ("simulated busbw (GB/s)", 4)
    waits = (f"measured wait ({unit.name})", 1), (f"simulated wait ({unit.name})", 1)
    columns = "size", "members", "count", *times, *_ERROR_COLUMNS, *rates, *waits
    title = "collectives: the median transfer of each kind and size, and the median of the longest waits"
    table = FittedTable(title, name_column("kind"), *columns)
    for row in rows:
        transfers, waits_each = (
            [in_unit(row[f"{side}_{quantity}_ps"], unit) for side in _SIDES] for quantity in ("transfer", "wait")
        )
        busbw = (row[f"{side}_busbw_Bps"] for side in _SIDES)
        busbw_each = ["-" if rate is None else f"{rate / 1e9:,.2f}" for rate in busbw]
        cells = row["kind"], size_text(row["bytes"]), row["members"], row["count"]
        table.add_row(*cells, *transfers, *_error_cells(row), *busbw_each, *waits_each)
    return table


def groups_table(accuracy: dict[str, Any]) -> FittedTable:
    """Return the transfers by group, sorted by error.

    Args:
        accuracy: The accuracy report as a document.
    """
    rows = accuracy["groups"][:_MAX_ROWS]
    unit = time_unit([row["measured_ps"] for row in rows])
    columns = name_column("group"), name_column("NPUs", 4), *_spread_columns(unit)
    table = FittedTable(_first("transfers of groups", rows, accuracy["groups"]), *columns)
    for row in rows:
        more = " ..." if len(row["npus"]) > _MAX_NPUS else ""
        npus = " ".join(map(str, row["npus"][:_MAX_NPUS])) + more
        table.add_row(row["name"] or str(row["group"]), npus, *_spread_cells(row, unit))
    return table


def pairs_table(accuracy: dict[str, Any]) -> FittedTable:
    """Return the messages by pair of NPUs, sorted by error.

    Args:
        accuracy: The accuracy report as a document.
    """
    rows = accuracy["pairs"][:_MAX_ROWS]
    unit = time_unit([row["measured_ps"] for row in rows])
    columns = "from NPU", "to NPU", *_spread_columns(unit)
    table = FittedTable(_first("transfers of messages", rows, accuracy["pairs"]), *columns)
    for row in rows:
        table.add_row(str(row["src"]), str(row["dst"]), *_spread_cells(row, unit))
    return table


def ranks_table(accuracy: dict[str, Any]) -> FittedTable:
    """Return the spans of ranks and the sums of their times, sorted by error if there are many.

    Args:
        accuracy: The accuracy report as a document.
    """
    rows = accuracy["rank_rows"]
    if len(rows) > _MAX_ROWS:
        rows = sorted(rows, key=lambda row: -abs(row["error"] or 0))[:_MAX_ROWS]
    unit = time_unit([row["simulated_span_ps"] for row in rows])
    sums = ("compute", 1), ("simulated", 1), ("transfer", 2), ("simulated", 2), ("waiting", 2), ("simulated", 2)
    clocks = ("began later by (µs)", 3), ("clock ahead by (µs)", 4)
    title = _first(f"ranks, measured and simulated ({unit.name})", rows, accuracy["rank_rows"])
    table = FittedTable(title, "NPU", "span", "simulated", "error", *sums, *clocks)
    for row in rows:
        measured_ps, simulated = row["measured_span_ps"], in_unit(row["simulated_span_ps"], unit)
        span, error = ("-", "-") if measured_ps is None else (in_unit(measured_ps, unit), percent(row["error"]))
        times_ps = (row[f"{side}_{part}_ps"] for part in ("compute", "transfer", "wait") for side in _SIDES)
        clocks_us = (row[key] for key in ("measured_begin_micros", "clock_offset_micros"))
        texts = ["-" if us is None else f"{us:,.3f}" for us in clocks_us]
        table.add_row(str(row["npu"]), span, simulated, error, *(in_unit(ps, unit) for ps in times_ps), *texts)
    return table


def worst_table(accuracy: dict[str, Any]) -> FittedTable:
    """Return the nodes with the largest errors in time.

    Args:
        accuracy: The accuracy report as a document.
    """
    rows = accuracy["worst"]
    unit = time_unit([row["measured_ps"] for row in rows])
    columns = ("size", 2), f"measured ({unit.name})", f"simulated ({unit.name})", "error"
    title = "largest errors in time (for communication, of the transfer)"
    table = FittedTable(title, "NPU", "node", name_column("name", 1), name_column("kind"), *columns)
    for row in rows:
        times = in_unit(row["measured_ps"], unit), in_unit(row["simulated_ps"], unit)
        size = size_text(row["bytes"]) if row["bytes"] > 0 else "-"
        cells = str(row["npu"]), str(row["node_id"]), row["name"], row["kind"], size
        table.add_row(*cells, *times, percent(row["error"]))
    return table


def percent(error: float | None, *, signed: bool = True) -> str:
    """Return a relative error as text: +1.23 %; "-" if it is not known.

    Args:
        error: The error; None = not known.
        signed: Whether to write the sign of a positive error.
    """
    if error is None:
        return "-"
    return f"{error:+.2%}" if signed else f"{error:.2%}"


def _summary(errors: dict[str, Any] | None, text_without_errors: str) -> str:
    """Return a distribution of errors in words."""
    if errors is None:
        return text_without_errors
    bias = percent(errors["simulated_ps"] / errors["measured_ps"] - 1)
    median, p95, worst = percent(errors["median"]), percent(errors["p95"], signed=False), percent(errors["worst"])
    within = "" if errors["p95"] is None else f"95 % within {p95}, "
    return f"{errors['count']:,}: median error {median}, {within}worst {worst}, total {bias}"


def _spread_columns(unit: TimeUnit) -> tuple[AnyColumn, ...]:
    return "count", f"measured ({unit.name})", f"simulated ({unit.name})", "total error", *_ERROR_COLUMNS


def _spread_cells(row: dict[str, Any], unit: TimeUnit) -> Sequence[str | int]:
    """Return the cells below the headings of `_spread_columns`."""
    times = (in_unit(row[f"{side}_ps"], unit) for side in _SIDES)
    return row["count"], *times, percent(row["simulated_ps"] / row["measured_ps"] - 1), *_error_cells(row)


def _error_cells(row: dict[str, Any]) -> Sequence[str]:
    """Return the cells below the headings of _ERROR_COLUMNS."""
    return percent(row["median"]), percent(row["p95"], signed=False), percent(row["worst"])


def _first(title: str, rows: Sequence[object], of: Sequence[object]) -> str:
    return title if len(rows) == len(of) else f"{title}: the {len(rows)} largest errors of {len(of):,}"
