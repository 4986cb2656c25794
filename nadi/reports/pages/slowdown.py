"""The page of `nadi net slowdown`: slow-down of messages by size class, a line per group of runs."""

from collections.abc import Sequence
from typing import Any

from nadi.reports.pages import charts
from nadi.reports.pages.page import Page, PageSection, Part, Plot, from_terminal
from nadi.reports.text.network import slowdown_table
from nadi.terminal import amount_text, in_page

_LEAD = "Completion time of messages over their time on an idle network, with 95 % confidence intervals over runs."

_MEANINGS = {
    "group": "Value of the key that distinguishes groups of runs.",
    "size from": "Smallest size of the messages in this row; the next row begins at ten times as many bytes.",
    "runs": "Number of runs in the group.",
    "messages": "Number of messages of all these runs.",
}


def page(rows: Sequence[dict[str, Any]]) -> Page:
    """Return the page for the rows of nadi.insight.metrics.slowdown_by_size."""
    known = {
        name: [row for row in rows if row["from_bytes"] and row["slowdown"][name] is not None]
        for name in rows[0]["slowdown"]
    }
    parts: list[Part] = [_plot(of_name, name) for name, of_name in known.items() if of_name]
    why = {name: f"Slow-down that {name[1:]} % of the messages do not exceed, mean over runs." for name in known}
    parts.append(from_terminal(slowdown_table(rows), why=_MEANINGS | why))
    return Page("slow-down of messages by size", "Several runs.", [PageSection("slowdown", "Slow-down", _LEAD, parts)])


def _plot(rows: Sequence[dict[str, Any]], percentile: str) -> Plot:
    """Return the plot of a percentile, "p99", by size class, from the rows that have it: a line per group."""
    drawn = charts.figure("message size from", f"slow-down, {percentile}")
    groups = list(dict.fromkeys(row["group"] for row in rows))
    worst = max(rows, key=lambda row: row["slowdown"][percentile])
    for number, group in enumerate(groups):
        own = [row for row in rows if row["group"] == group]
        ends = [row["interval"][percentile] or (row["slowdown"][percentile],) * 2 for row in own]
        look = charts.style(number)
        drawn.add_scatter(
            x=[amount_text(row["from_bytes"]) for row in own],
            y=[row["slowdown"][percentile] for row in own],
            # plotly takes the lengths of error bars, not their ends
            error_y={
                "array": [high - row["slowdown"][percentile] for (_, high), row in zip(ends, own, strict=True)],
                "arrayminus": [row["slowdown"][percentile] - low for (low, _), row in zip(ends, own, strict=True)],
            },
            mode="lines+markers",
            name=in_page(group or "all runs"),
            line={"color": look.colour, "dash": look.dash},
        )
    drawn.update_xaxes(type="category")
    drawn.update_yaxes(type="log")
    text = f"Largest: {worst['slowdown'][percentile]:,.3g} from {amount_text(worst['from_bytes'])}"
    return Plot(f"slow-down, {percentile}", drawn, f"{text}{', ' * bool(worst['group'])}{worst['group']}.")
