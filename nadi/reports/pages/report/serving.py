"""Serving: time to first token, time per output token, throughput, and their distributions."""

from typing import Any

import numpy as np

from nadi.insight.runs import Run
from nadi.reports.pages.charts import figure, style
from nadi.reports.pages.page import Fact, Facts, PageSection, Part, Plot, from_terminal
from nadi.reports.text.run import COLUMNS, MEANINGS, serving_table
from nadi.terminal import time_unit


def section(run: Run) -> PageSection | None:
    """Return the section about serving, or None where nothing was served.

    Args:
        run: Finished run that the page shows.
    """
    serving = run.summary.get("serving")
    if not serving:
        return None
    rate = f"{serving['tokens_per_s']:,.0f} tokens/s"
    facts = [
        Fact("requests", f"{serving['requests']:,}", "Requests that got at least one token."),
        Fact("tokens", f"{serving['tokens']:,}", "Output tokens of all requests."),
        Fact("throughput", rate, "Output tokens, from the first arrival to the end."),
    ]
    why = {name: f"{name[1:]} % of the requests took no longer." for name in COLUMNS}
    why |= {"time": "Measured time.", "mean": "Mean over the requests.", "maximum": "The slowest request."}
    plots = [_plot(name, serving[name]) for name in MEANINGS if name in serving]
    parts: list[Part] = [Facts(facts), from_terminal(serving_table(serving), why=why), *plots]
    lead = "How long requests waited for their first and for each further token."
    return PageSection("serving", "Serving", lead, parts)


def _plot(metric: str, times: dict[str, Any]) -> Plot:
    """Return the cumulative distribution of one kind of time of all requests."""
    quantiles_ps = np.array(times["quantiles_ps"])
    unit = time_unit([times["p50_ps"]])
    share = np.linspace(0, 100, len(quantiles_ps))
    drawn = figure(f"{MEANINGS[metric][0]}, {unit.name}", "requests that took no longer, %")
    drawn.add_scatter(x=quantiles_ps / unit.ps, y=share, mode="lines", line={"color": style(0).colour})
    drawn.update_xaxes(rangemode="tozero")
    drawn.update_yaxes(range=[0, 100])
    known = {share: times[key] for share, key in (("half", "p50_ps"), ("99 %", "p99_ps")) if times[key] is not None}
    most = ", ".join(f"{share} take at most {time_ps / unit.ps:,.4g} {unit.name}" for share, time_ps in known.items())
    description = f"Cumulative distribution: {MEANINGS[metric][1]}; {most}."
    return Plot(f"{metric.upper()}: {MEANINGS[metric][0]}, cumulative distribution", drawn, description)
