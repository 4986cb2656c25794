"""Serving metrics on the terminal: time to first token, time per output token, throughput."""

from typing import Any

from nadi.insight.analysis.serving import PERCENTILES
from nadi.terminal.readable import TimeUnit, in_unit, time_unit
from nadi.terminal.tables import FittedTable, TableColumn

MEANINGS = {
    "ttft": ("time to first token", "from the arrival of a request until its first token, queueing included"),
    "tpot": ("time per output token", "mean time of the tokens of a request after its first"),
}


COLUMNS = ("mean", *(f"p{percent}" for percent in PERCENTILES), "maximum")


def serving_rows(serving: dict[str, Any]) -> tuple[TimeUnit, list[list[str]]]:
    """Return the unit of the times, and for each kind of time its name and the values of COLUMNS.

    Args:
        serving: Table `serving` of summary.json.
    """
    found = {name: serving[name] for name in MEANINGS if name in serving}
    unit = time_unit(each["p50_ps"] for each in found.values())
    rows = []
    for name, each in found.items():
        times_ps = (each["mean_ps"], *(each[f"p{p}_ps"] for p in PERCENTILES), each["quantiles_ps"][-1])
        rows.append([f"{name.upper()}, {MEANINGS[name][0]}", *(in_unit(time_ps, unit) for time_ps in times_ps)])
    return unit, rows


def serving_table(serving: dict[str, Any]) -> FittedTable:
    """Return the table of `serving` in summary.json."""
    unit, rows = serving_rows(serving)
    table = FittedTable(
        f"serving: {serving['requests']:,} requests, {serving['tokens']:,} tokens, "
        f"{serving['tokens_per_s']:,.0f} tokens/s ({unit.name})",
        TableColumn("time", form="name"),
        *COLUMNS,
        full_output_option="summary.json",
    )
    for row in rows:
        table.add_row(*row)
    return table
