"""A page of what the network did in a run: utilisation, queues, completion times, pauses. Needs plotly, an extra."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from nadi.errors import ConfigError, OutputError
from nadi.net_analysis import NetRun, most, tiers

MOST_LINKS = 200
MOST_PORTS = 12
MOST_PAUSED = 30
MOST_POINTS = 2000
_PS_PER_US = 1e6


def check_page(path: Path) -> None:
    """Find out early that a page cannot be made.

    Raises:
        ConfigError: another ending than .html, or no plotly.
    """
    if path.suffix.lower() != ".html":
        raise ConfigError(f"-o {path}: found {path.suffix or 'no ending'!r}; expected a file .html")
    if importlib.util.find_spec("plotly") is None:
        raise ConfigError(f"-o {path}: plotly is not installed; expected pip install 'nadi[plot]'")


def write_page(path: Path, run: NetRun) -> None:
    """Write the page into a file that stands alone.

    Raises:
        ConfigError: as `check_page`.
        OutputError: the file cannot be written.
    """
    check_page(path)
    drawn = figure(run)
    try:
        drawn.write_html(path, include_plotlyjs=True)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the page to") from None


def figure(run: NetRun) -> Any:  # noqa: ANN401 - plotly has no types
    """The page as a plotly Figure of four pictures."""
    from plotly.subplots import make_subplots

    drawn = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=(
            "utilisation by tier, the busiest links first",
            f"queues of the {MOST_PORTS} fullest ports" if run.queues else "no queues.parquet",
            "completion times of messages, by size" if run.flows else "no flows.parquet",
            "time for which links were paused",
        ),
    )
    _utilisation(drawn, run)
    _queues(drawn, run)
    _completion(drawn, run)
    _paused(drawn, run)
    drawn.update_xaxes(title_text="link of the tier", row=1, col=1)
    drawn.update_yaxes(title_text="share of the run", range=[0, 1.02], row=1, col=1)
    drawn.update_xaxes(title_text="µs", row=1, col=2)
    drawn.update_yaxes(title_text="bytes", rangemode="tozero", row=1, col=2)
    drawn.update_xaxes(title_text="µs", type="log", row=2, col=1)
    drawn.update_yaxes(title_text="share of messages", range=[0, 1.02], row=2, col=1)
    drawn.update_yaxes(title_text="µs", rangemode="tozero", row=2, col=2)
    title = f"{run.summary.get('topology', '')}: {run.summary.get('finish_time_ps', 0) / _PS_PER_US:,.3f} µs"
    drawn.update_layout(title=title, height=1000, plot_bgcolor="white", hovermode="closest")
    return drawn


def _utilisation(drawn: Any, run: NetRun) -> None:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    tier = np.array(tiers(run.links))
    for name in dict.fromkeys(tier.tolist()):
        here = np.flatnonzero(tier == name)
        here = here[np.argsort(-run.links["utilisation"][here], kind="stable")][:MOST_LINKS]
        drawn.add_trace(
            go.Scatter(
                x=np.arange(len(here)),
                y=run.links["utilisation"][here],
                text=[run.links["name"][link] for link in here.tolist()],
                name=name,
                mode="lines+markers",
                legendgroup="tiers",
            ),
            row=1,
            col=1,
        )


def _queues(drawn: Any, run: NetRun) -> None:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    if not run.queues:
        return
    link, depth = run.queues["link"], run.queues["bytes"]
    fullest = np.zeros(len(run.links["name"]), np.int64)
    np.maximum.at(fullest, link, depth)
    for port in np.argsort(-fullest, kind="stable")[:MOST_PORTS].tolist():
        here = np.flatnonzero(link == port)
        if fullest[port] == 0:
            break
        here = here[np.argsort(run.queues["time_ps"][here], kind="stable")]
        time_us, of = run.queues["time_ps"][here] / _PS_PER_US, depth[here]
        each = -(-len(here) // MOST_POINTS)  # buckets that one point stands for, by their largest queue
        begins = np.arange(0, len(here), each)
        drawn.add_trace(
            go.Scatter(
                x=time_us[begins], y=np.maximum.reduceat(of, begins), name=run.links["name"][port], mode="lines"
            ),
            row=1,
            col=2,
        )


def _completion(drawn: Any, run: NetRun) -> None:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    if not run.flows or not len(run.flows["src"]):
        return
    time_us = (run.flows["finish_ps"] - run.flows["start_ps"]) / _PS_PER_US
    decade = np.floor(np.log10(np.maximum(run.flows["bytes"], 1))).astype(np.int64)
    for of in np.unique(decade).tolist():
        times = np.sort(time_us[decade == of])
        points = np.unique(np.linspace(0, len(times) - 1, MOST_POINTS).astype(np.int64))
        share = (points + 1) / len(times)
        name = f"10^{of} B and more"
        drawn.add_trace(go.Scatter(x=times[points], y=share, name=name, mode="lines+markers"), row=2, col=1)


def _paused(drawn: Any, run: NetRun) -> None:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    rows = most(run.links, "paused_ps", MOST_PAUSED)
    if rows:
        names, times = [row["name"] for row in rows], [row["paused_ps"] / _PS_PER_US for row in rows]
        drawn.add_trace(go.Bar(x=names, y=times, name="paused", showlegend=False), row=2, col=2)
