"""The page of `nadi net slowdown`: slow-down of messages by size class, a line per group of runs. Needs plotly."""

from collections.abc import Sequence
from typing import Any

from nadi.reports.pages import charts
from nadi.reports.pages.page import Page, PageSection, Plot
from nadi.terminal.printing import in_page
from nadi.terminal.readable import amount_text

_LEAD = "Completion time of messages over their time on an idle network, with 95 % confidence intervals over runs."


def page(rows: Sequence[dict[str, Any]]) -> Page:
    """Return the page for the rows of nadi.insight.analysis.slowdown.slowdown_by_size."""
    names = list(rows[0]["slowdown"])
    plots = [_plot(rows, name) for name in names]
    return Page("slow-down of messages by size", "Several runs.", [PageSection("slowdown", "Slow-down", _LEAD, plots)])


def _plot(rows: Sequence[dict[str, Any]], percentile: str) -> Plot:
    """Return the plot of a percentile, "p99", by size class: a line per group."""
    drawn = charts.figure("message size from", f"slow-down, {percentile}")
    groups = list(dict.fromkeys(row["group"] for row in rows))
    worst = max((row for row in rows if row["from_bytes"]), key=lambda row: row["slowdown"][percentile])
    for number, group in enumerate(groups):
        own = [row for row in rows if row["group"] == group and row["from_bytes"]]
        look = charts.style(number)
        drawn.add_scatter(
            x=[amount_text(row["from_bytes"]) for row in own],
            y=[row["slowdown"][percentile] for row in own],
            error_y={"array": [row["half_width"][percentile] if row["half_width"] else 0 for row in own]},
            mode="lines+markers",
            name=in_page(group or "all runs"),
            line={"color": look.colour, "dash": look.dash},
        )
    drawn.update_xaxes(type="category")
    drawn.update_yaxes(type="log")
    text = f"Largest: {worst['slowdown'][percentile]:,.3g} from {amount_text(worst['from_bytes'])}"
    return Plot(f"slow-down, {percentile}", drawn, f"{text}{', ' * bool(worst['group'])}{worst['group']}.")
