"""A page of what the network did in a run: utilisation, queues, completion times, pauses and how they spread.

Needs plotly, an extra.
"""

import importlib.util
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nadi.analysis.network import NetRun, most, tiers
from nadi.errors import ConfigError, OutputError
from nadi.pages.series import Style, style
from nadi.reports.network import ports
from nadi.terminal.printing import in_page
from nadi.terminal.readable import Unit, amount_text, time_text, time_unit

MOST_LINKS = 200
MOST_PORTS = 12
MOST_PAUSED = 30
MOST_POINTS = 2000
MOST_SECTORS = 500


def check_page(path: Path) -> None:
    """Find out early that a page cannot be made.

    Raises:
        ConfigError: another ending than .html, or no plotly.
    """
    if path.suffix.lower() != ".html":
        raise ConfigError(f"-o {path}: found {path.suffix or 'no ending'!r}; expected a file .html")
    if importlib.util.find_spec("plotly") is None:
        raise ConfigError(f"-o {path}: plotly is not installed; expected pip install 'nadi[plot]'")


def write_page(path: Path, run: NetRun, document: Mapping[str, Any]) -> None:
    """Write the page into a file that stands alone.

    Args:
        path: FILE.html.
        run: what the folder holds.
        document: nadi.analysis.network_findings.document of it.

    Raises:
        ConfigError: as `check_page`.
        OutputError: the file cannot be written.
    """
    check_page(path)
    drawn = figure(run, document)
    try:
        drawn.write_html(path, include_plotlyjs=True)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the page to") from None


def figure(run: NetRun, document: Mapping[str, Any]) -> Any:  # noqa: ANN401 - plotly has no types
    """The page as a plotly Figure of four pictures, the tree of pauses and a table of those they held up."""
    from plotly.subplots import make_subplots

    finish = time_unit([run.summary.get("finish_time_ps") or 0])
    took = time_unit((run.flows["finish_ps"] - run.flows["start_ps"]).tolist()) if run.flows else finish
    drawn = make_subplots(
        rows=3,
        cols=2,
        specs=[[{}, {}], [{}, {}], [{"type": "domain"}, {"type": "table"}]],
        subplot_titles=(
            "utilisation by tier, the busiest links first",
            f"queues of the {MOST_PORTS} fullest ports" if run.queues else "no queues.parquet",
            "completion times of messages, by size" if run.flows else "no flows.parquet",
            "time for which links were paused",
            _spread_title(document),
            _victims_title(document),
        ),
    )
    looks = (style(number) for number in itertools.count())
    _utilisation(drawn, run, looks)
    _queues(drawn, run, finish, looks)
    _completion(drawn, run, took, looks)
    _paused(drawn, run, finish)
    _trees(drawn, document)
    _victims(drawn, document)
    drawn.update_xaxes(title_text="link of the tier", row=1, col=1)
    drawn.update_yaxes(title_text="share of the run", range=[0, 1.02], row=1, col=1)
    drawn.update_xaxes(title_text=finish.name, row=1, col=2)
    drawn.update_yaxes(title_text="bytes", rangemode="tozero", row=1, col=2)
    drawn.update_xaxes(title_text=took.name, type="log", row=2, col=1)
    drawn.update_yaxes(title_text="share of messages", range=[0, 1.02], row=2, col=1)
    drawn.update_yaxes(title_text=finish.name, rangemode="tozero", row=2, col=2)
    title = f"{in_page(str(run.summary.get('topology', '')))}: {time_text(run.summary.get('finish_time_ps') or 0)}"
    drawn.update_layout(title=title, height=1500, plot_bgcolor="white", hovermode="closest")
    return drawn


def _utilisation(drawn: Any, run: NetRun, looks: Iterator[Style]) -> None:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    tier = np.array(tiers(run.links))
    for name in dict.fromkeys(tier.tolist()):
        here = np.flatnonzero(tier == name)
        here = here[np.argsort(-run.links["utilisation"][here], kind="stable")][:MOST_LINKS]
        drawn.add_trace(
            go.Scatter(
                x=np.arange(len(here)),
                y=run.links["utilisation"][here],
                text=[in_page(run.links["name"][link]) for link in here.tolist()],
                name=in_page(name),
                mode="lines+markers",
                legendgroup="tiers",
                **_drawn_as(next(looks)),
            ),
            row=1,
            col=1,
        )


def _queues(drawn: Any, run: NetRun, unit: Unit, looks: Iterator[Style]) -> None:  # noqa: ANN401 - plotly has no types
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
        times, of = run.queues["time_ps"][here] / unit.ps, depth[here]
        each = -(-len(here) // MOST_POINTS)  # buckets that one point stands for, by their largest queue
        begins = np.arange(0, len(here), each)
        drawn.add_trace(
            go.Scatter(
                x=times[begins],
                y=np.maximum.reduceat(of, begins),
                name=in_page(run.links["name"][port]),
                mode="lines",
                **_drawn_as(next(looks)),
            ),
            row=1,
            col=2,
        )


def _completion(drawn: Any, run: NetRun, unit: Unit, looks: Iterator[Style]) -> None:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    if not run.flows or not len(run.flows["src"]):
        return
    took = (run.flows["finish_ps"] - run.flows["start_ps"]) / unit.ps
    decade = np.floor(np.log10(np.maximum(run.flows["bytes"], 1))).astype(np.int64)
    for of in np.unique(decade).tolist():
        times = np.sort(took[decade == of])
        points = np.unique(np.linspace(0, len(times) - 1, MOST_POINTS).astype(np.int64))
        share = (points + 1) / len(times)
        name = f"{amount_text(10**of)} and more"
        look = _drawn_as(next(looks))
        drawn.add_trace(go.Scatter(x=times[points], y=share, name=name, mode="lines+markers", **look), row=2, col=1)


def _paused(drawn: Any, run: NetRun, unit: Unit) -> None:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    rows = most(run.links, "paused_ps", MOST_PAUSED)
    if rows:
        names, times = [in_page(row["name"]) for row in rows], [row["paused_ps"] / unit.ps for row in rows]
        drawn.add_trace(go.Bar(x=names, y=times, name="paused", showlegend=False), row=2, col=2)


def _trees(drawn: Any, document: Mapping[str, Any]) -> None:  # noqa: ANN401 - plotly has no types
    """From left to right: where the congestion is, the links paused from there, those paused because of them."""
    from plotly import graph_objects as go

    labels, parents, own, says = ["all pauses"], [""], [0.0], [""]
    waiting: list[tuple[Mapping[str, Any], str]] = [(tree, "0") for tree in document["trees"]]
    ids = ["0"]
    while waiting and len(ids) < MOST_SECTORS:
        branch, parent = waiting.pop(0)  # breadth first: what is nearest to its root stays in
        ids.append(str(len(ids)))
        labels.append(in_page(branch.get("link") or f"root: {ports(dict(branch))}"))
        parents.append(parent)
        own.append(branch["paused_ps"])
        of_it = f"{branch['pauses']:,} pauses, {time_text(branch['paused_ps'])} in all"
        says.append(f"{of_it if branch['pauses'] else 'congested'}, first at {time_text(branch['first_ps'])}")
        waiting += [(further, ids[-1]) for further in branch["spread"]]
    if len(ids) > 1:
        tree = go.Icicle(
            ids=ids,
            labels=labels,
            parents=parents,
            values=own,
            text=says,
            branchvalues="remainder",
            hoverinfo="label+text",
            textinfo="label+text",
            marker={"colors": ["#eeeeee" if parent in {"", "0"} else "#c6dbef" for parent in parents]},
        )
        drawn.add_trace(tree, row=3, col=1)


def _victims(drawn: Any, document: Mapping[str, Any]) -> None:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    rows = document["victims"]
    if not rows:
        return
    columns = {
        "message": [f"npu {row['src']} → npu {row['dst']}" for row in rows],
        "size": [amount_text(row["bytes"]) for row in rows],
        "slow-down": ["-" if row["slowdown"] is None else f"{row['slowdown']:.2f}" for row in rows],
        "paused": [time_text(row["paused_ps"]) for row in rows],
        "most at": [in_page(row["link"]) for row in rows],
        "sure": ["yes" if row["sure"] else "perhaps" for row in rows],
    }
    head, cells = {"values": list(columns), "align": "left"}, {"values": list(columns.values()), "align": "left"}
    drawn.add_trace(go.Table(header=head, cells=cells), row=3, col=2)


def _spread_title(document: Mapping[str, Any]) -> str:
    if not document["trees"]:
        return "nothing was paused" if document["why_no_victims"] == "nothing was paused" else "no pauses.parquet"
    roots, shown = document["roots"], len(document["trees"])
    more = f", the {shown} largest" if roots > shown else ""
    return f"how pauses spread: {document['pauses']:,} pauses, {roots} roots{more}"


def _victims_title(document: Mapping[str, Any]) -> str:
    if document["victims"] is None:
        why = document["why_no_victims"]
        return "" if why == "nothing was paused" else f"whom pauses held up is not known: {in_page(why)}"
    found, shown = document["victims_found"], len(document["victims"])
    more = f", the {shown} slowest" if found > shown else ""
    return f"head-of-line victims: {found:,} messages on no congested link, held up by pauses{more}"


def _drawn_as(look: Style) -> dict[str, Any]:
    return {"line": {"color": look.colour, "dash": look.dash}, "marker": {"symbol": f"circle{look.mark}"}}
