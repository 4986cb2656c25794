"""Serving metrics on the terminal: time to first token, time per output token, throughput."""

from typing import Any

from nadi.insight.analysis.serving import PERCENTILES
from nadi.terminal.readable import in_unit, time_unit
from nadi.terminal.tables import FittedTable, name_column

MEANINGS = {
    "ttft": ("time to first token", "from the arrival of a request until its first token, queueing included"),
    "tpot": ("time per output token", "mean time of the tokens of a request after its first"),
}
COLUMNS = ("mean", *(f"p{percent}" for percent in PERCENTILES), "maximum")


def serving_table(serving: dict[str, Any]) -> FittedTable:
    """Return the table of `serving` in summary.json, a row per kind of time."""
    known = {name: serving[name] for name in MEANINGS if name in serving}
    unit = time_unit(times["p50_ps"] for times in known.values())
    counts = f"{serving['requests']:,} requests, {serving['tokens']:,} tokens, {serving['tokens_per_s']:,.0f} tokens/s"
    title = f"serving: {counts} ({unit.name})"
    table = FittedTable(title, name_column("time"), *COLUMNS, full_output_option="summary.json")
    for name, times in known.items():
        times_ps = (times["mean_ps"], *(times[f"p{p}_ps"] for p in PERCENTILES), times["quantiles_ps"][-1])
        table.add_row(f"{name.upper()}, {MEANINGS[name][0]}", *(in_unit(time_ps, unit) for time_ps in times_ps))
    return table
