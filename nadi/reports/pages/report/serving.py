"""Serving: time to first token, time per output token, throughput, and their distributions."""

from typing import Any

import numpy as np

from nadi.insight.runs import Run
from nadi.reports.pages.page import Fact, Facts, Heading, PageSection, Part, Plot, Table
from nadi.reports.pages.series import style
from nadi.reports.text.serving import COLUMNS, MEANINGS, serving_rows
from nadi.terminal.readable import time_unit


def section(run: Run) -> PageSection | None:
    """Return the section, or None where nothing was served."""
    serving = run.summary.get("serving")
    if not serving:
        return None
    facts = [
        Fact("requests", f"{serving['requests']:,}", "Requests that got at least one token."),
        Fact("tokens", f"{serving['tokens']:,}", "Output tokens of all requests."),
        Fact(
            "throughput",
            f"{serving['tokens_per_s']:,.0f} tokens/s",
            "Output tokens, from the first arrival to the end.",
        ),
    ]
    found = {name: serving[name] for name in MEANINGS if name in serving}
    parts: list[Part] = [Facts(facts), _table(serving), *(_plot(name, each) for name, each in found.items())]
    return PageSection(
        "serving", "Serving", "How long requests waited for their first and for each further token.", parts
    )


def _table(serving: dict[str, Any]) -> Table:
    unit, rows = serving_rows(serving)
    why = {"mean": "Mean over the requests.", "maximum": "The slowest request."}
    headings = [Heading("time", "What is measured.", is_text=True)]
    headings += [
        Heading(f"{name}, {unit.name}", why.get(name, f"{name[1:]} % of the requests took no longer."))
        for name in COLUMNS
    ]
    return Table("time to first token and time per output token", headings, rows)


def _plot(name: str, found: dict[str, Any]) -> Plot:
    from plotly import graph_objects as go

    quantiles_ps = np.array(found["quantiles_ps"])
    unit = time_unit([found["p50_ps"]])
    share = np.linspace(0, 100, len(quantiles_ps))
    drawn = go.Figure(go.Scatter(x=quantiles_ps / unit.ps, y=share, mode="lines", line={"color": style(0).colour}))
    drawn.update_xaxes(title_text=f"{MEANINGS[name][0]}, {unit.name}", rangemode="tozero")
    drawn.update_yaxes(title_text="requests that took no longer, %", range=[0, 100])
    drawn.update_layout(showlegend=False)
    half, most = (f"{found[key] / unit.ps:,.4g} {unit.name}" for key in ("p50_ps", "p99_ps"))
    description = f"Cumulative distribution: {MEANINGS[name][1]}. Half take at most {half}, 99 % at most {most}."
    return Plot(f"{name.upper()}: {MEANINGS[name][0]}, cumulative distribution", drawn, description)
