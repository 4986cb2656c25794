"""Text of `nadi compare`: runs beside each other, and a run beside measured times."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType

from nadi import terminal
from nadi.insight.comparison import by_load
from nadi.terminal import (
    AnyColumn,
    FittedTable,
    TimeUnit,
    facts,
    in_unit,
    name_column,
    size_text,
    text_column,
    time_unit,
)

MAX_ROWS = 20  # Number of rows per table
_SHOWN_JOBS = 2  # other jobs named in a row
_MIN_CHANGE = 5e-7  # Smallest relative change that is not shown as "="


def comparison_report(document: dict[str, Any]) -> RenderableType:
    """Return the document of nadi.insight.comparison as something that a rich Console prints."""
    parts: list[RenderableType] = [runs_table(document), *document["notes"], ""]
    tables = [
        settings_table,
        metrics_table,
        jobs_table,
        losses_table,
        times_table,
        groups_table,
        collectives_table,
        tiers_table,
        links_table,
    ]
    parts += [table for table in (make(document) for make in tables) if table.rows]
    return Group(*parts)


def runs_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of the compared runs.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    columns = "NPUs", name_column("network", 2), "simulated time", name_column("digest", 3)
    table = FittedTable("runs", name_column("run"), name_column("topology"), *columns)
    for run in document["runs"]:
        names, time = (run["name"], run["topology"] or "-"), terminal.time_text(run["finish_time_ps"])
        table.add_row(*names, run["npus"] or 0, run["network"] or "-", time, run["digest"][:12])
    return table


def settings_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of settings that differ.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    table = FittedTable("settings that differ", *map(name_column, ("key", *_names(document))))
    for row in document["settings"]:
        if not row["is_derived"]:
            table.add_row(row["key"], *map(setting_text, row["values"]))
    derived = [row["key"] for row in document["settings"] if row["is_derived"]]
    if derived:
        follow = f"{len(derived)} more settings follow from these: {', '.join(derived)}"
        table.notes.append(f"{follow} (--json has their values)")
    return table


def metrics_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of metrics with their changes from the first run.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    table = FittedTable("metrics", name_column("metric"), *_beside(document))
    for row in document["figures"]:
        values = [terminal.metric_text(row["form"], value) for value in row["values"]]
        is_share = row["form"] == "share"
        table.add_row(label(row["name"]), *_pairs(values, [change_text(each, is_share) for each in row["change"]]))
    return table


def jobs_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of the times of jobs.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    rows = document["jobs"][:MAX_ROWS]
    unit = terminal.time_unit(time for row in rows for time in row["time_ps"] if time)
    table = FittedTable(f"time of jobs ({unit.name})", name_column("job"), *_beside(document))
    for row in rows:
        values = ["-" if time is None else terminal.in_unit(time, unit) for time in row["time_ps"]]
        table.add_row(row["job"], *_pairs(values, [change_text(each) for each in row["change"]]))
    if len(document["jobs"]) > MAX_ROWS:
        table.notes.append(f"and {len(document['jobs']) - MAX_ROWS:,} more (--json has all)")
    return table


def losses_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of what jobs lose to others in each run: their time alone, and with whom they share links.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    columns = name_column("run"), "alone", "slow-down", text_column("shares links with", 1)
    table = FittedTable("jobs beside others", name_column("job"), *columns)
    for row in document["jobs"]:
        for run, name in enumerate(_names(document)):
            alone_ps, shares = row["alone_ps"][run], row["shares"][run]
            if (alone_ps is not None or shares) and len(table.rows) < MAX_ROWS:
                slow = row["slowdown"][run]
                texts = [terminal.time_text(alone_ps or 0) if alone_ps else "-", f"{slow:.3f}" if slow else "-"]
                table.add_row(row["job"], name, *texts, shares_text(shares or ()))
    return table


def times_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of time by category.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    rows = document["times"]["rows"]
    unit = terminal.time_unit(time for row in rows for time in row["time_ps"])
    title = f"time of the NPUs by category, mean ({unit.name})"
    table = FittedTable(title, name_column("category"), *_beside(document))
    for row in rows:
        values = [terminal.in_unit(time, unit) for time in row["time_ps"]]
        table.add_row(row["what"], *_pairs(values, [_added(change, unit) for change in row["change_ps"]]))
    return table


def groups_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of collectives by group and kind, summed over sizes.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    rows = document["groups"]
    unit = terminal.time_unit(time for row in rows for time in row["time_ps"])
    title = f"collectives by group and kind: their summed time ({unit.name})"
    columns = name_column("group"), name_column("kind"), ("count", 1), ("buffers", 2)
    table = FittedTable(title, *columns, *_beside(document))
    for row in rows[:MAX_ROWS]:
        count, sizes = (_either(row["count"], "{:,}".format), _either(row["bytes"], terminal.amount_text))
        values = [terminal.in_unit(time, unit) for time in row["time_ps"]]
        changes = [change_text(each) for each in row["change"]]
        table.add_row(row["group"] or "all", row["kind"], count, sizes, *_pairs(values, changes))
    table.note_more(len(rows) - MAX_ROWS, "with smaller changes")
    return table


def collectives_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of collectives by group, kind and size, sorted by change.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    rows = document["collectives"]
    shown = rows[:MAX_ROWS]
    unit = terminal.time_unit(time for row in shown for time in row["median_ps"] if time)
    columns = name_column("group"), name_column("kind"), ("n", 3), "size", ("count", 2)
    title = f"collectives: median time ({unit.name}), and change of the summed time from the first run"
    table = FittedTable(title, *columns, *_beside(document))
    for row in shown:
        count = _either(row["count"], "{:,}".format)
        cells = row["group"] or "all", row["kind"], row["members"], terminal.buffer_text(row["size_bytes"]), count
        values = ["-" if each is None else terminal.in_unit(each, unit) for each in row["median_ps"]]
        table.add_row(*cells, *_pairs(values, [change_text(each) for each in row["change"]]))
    table.note_more(len(rows) - MAX_ROWS, "with smaller changes")
    return table


def tiers_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of tiers: utilisation of their links, bytes sent, and events.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    table = FittedTable("tiers of links", name_column("tier"), name_column("quantity"), *_names(document))
    for row in by_load([row for row in document["tiers"] if any(row["tx_bytes"])]):
        for name, what, show in TIER_ROWS:
            if name in _ALWAYS or any(row[name]):
                tier = row["tier"] if name == "rate_bps" else ""
                table.add_row(tier, what, *("-" if each is None else show(each) for each in row[name]))
        table.end_group()
    unused = [row["tier"] for row in document["tiers"] if not any(row["tx_bytes"])]
    if unused:
        table.notes.append(f"not used in any run: {', '.join(unused)}")
    return table


def links_table(document: dict[str, Any]) -> FittedTable:
    """Return the links whose utilisation changes most.

    Args:
        document: The comparison as a document (nadi.insight.comparison).
    """
    found = document["links"]
    table = FittedTable("utilisation of links", name_column("link"), *_beside(document))
    moved = [row for row in found["rows"] if len(set(row["utilisation"])) > 1][:MAX_ROWS]
    for row in moved:
        busy = row["utilisation"]
        table.add_row(row["link"], *_pairs([f"{each:.1%}" for each in busy], [points(each - busy[0]) for each in busy]))
    more = found["left_out"] + len(found["rows"]) - len(moved)
    if more:
        table.notes.append(f"and {more:,} more links that differ")
    return table


# Quantities of a tier: key, label and format
TIER_ROWS = (
    ("rate_bps", "mean rate", terminal.rate_text),
    ("links", "links", "{:,}".format),
    ("max_utilisation", "maximum utilisation", "{:.1%}".format),
    ("mean_utilisation", "mean utilisation", "{:.1%}".format),
    ("tx_bytes", "sent", terminal.amount_text),
    ("max_queue_bytes", "longest queue", terminal.amount_text),
    ("dropped_packets", "packets dropped", "{:,.0f}".format),
    ("marked_packets", "packets marked", "{:,.0f}".format),
    ("pause_frames", "pauses", "{:,.0f}".format),
    ("paused_ps", "time paused", terminal.time_text),
)
# Quantities that are shown even if all values are 0
_ALWAYS = ("rate_bps", "links", "max_utilisation", "mean_utilisation", "tx_bytes")


def label(metric: str) -> str:
    """Return the label of a metric, without the unit if its values include one."""
    for end, unit in (("_ps", ""), ("_bytes", ""), ("_J", " (J)"), ("_usd", " ($)"), ("_s", " (s)")):
        if metric.endswith(end) and not metric.endswith("_per_s"):
            metric = metric.removesuffix(end) + unit
    return metric.replace("_", " ")


def change_text(change: float | None, is_share: bool = False) -> str:
    """Return a change as text: in percent; for shares, in percentage points.

    Args:
        change: Relative change; None = not known.
        is_share: Whether the values are shares, whose change is a difference.
    """
    if change is None:
        return "-"
    if is_share:
        return points(change)
    return f"{change:+.2%}" if abs(change) >= _MIN_CHANGE else "="


def points(change: float) -> str:
    """Return the difference of two shares in percentage points.

    Args:
        change: Difference of the shares.
    """
    return f"{100 * change:+.1f} pt" if abs(change) >= _MIN_CHANGE else "="


def setting_text(value: object) -> str:
    """Return the value of a setting as a run file writes it."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _either(values: Sequence[Any], show: Callable[[Any], str]) -> str:
    """Return the values of all runs in one cell, without repetitions."""
    return " / ".join(dict.fromkeys("-" if each is None else show(each) for each in values))


def _added(change_ps: float | None, unit: terminal.TimeUnit) -> str:
    """Return a change of a time with its sign."""
    if change_ps is None:
        return "-"
    return f"{'+' if change_ps > 0 else '-'}{terminal.in_unit(abs(change_ps), unit)}" if abs(change_ps) >= 1 else "="


def _names(document: dict[str, Any]) -> list[str]:
    return [run["name"] for run in document["runs"]]


def _beside(document: dict[str, Any]) -> list[str]:
    """Return the headings: the values of each run, and for all but the first their changes."""
    first, *others = _names(document)
    return [first, *(heading for name in others for heading in (name, f"to {first}"))]


def _pairs(values_of_run: Sequence[str], changes_of_run: Sequence[str]) -> list[str]:
    """Return the cells below the headings of `_beside`."""
    first, *others = values_of_run
    return [first, *(cell for pair in zip(others, changes_of_run[1:], strict=True) for cell in pair)]


def shares_text(shares: Sequence[dict[str, Any]]) -> str:
    """Return the jobs with which a job shares links: "b (8 links, 1.2 GB of b)"."""
    texts = [
        f"{each['job']} ({each['links']:,} links, {terminal.amount_text(each['other_bytes'])})"
        for each in shares[:_SHOWN_JOBS]
    ]
    more = [f"{len(shares) - _SHOWN_JOBS} more"] if len(shares) > _SHOWN_JOBS else []
    return ", ".join(texts + more) or "-"


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
    tables += [measured_groups_table(accuracy)] if len(accuracy["groups"]) > 1 else []
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


def measured_groups_table(accuracy: dict[str, Any]) -> FittedTable:
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
