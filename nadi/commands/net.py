"""`nadi net`: what the network did in a run, and what congestion controls there are."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from nadi.net_analysis import Branch, NetRun, Pauses

MOST_LINKS = 10
MOST_TREES = 5
MOST_BRANCHES = 40
MOST_VICTIMS = 20
_US = 1e6
_COLUMNS = {
    "utilisation": "busiest links",
    "marked_packets": "most marked",
    "paused_ps": "most paused",
    "dropped_packets": "most dropped",
    "trimmed_packets": "most trimmed",
}


class _Group(TyperGroup):
    """Commands; what is none of them is a folder to show."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer has its own click
        """Put the command `show` before a folder."""
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args.insert(0, "show")
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(cls=_Group, help="The network of a run (nadi net DIR), and congestion controls.")
    group.command()(show)
    group.command()(controls)
    app.add_typer(group, name="net")


def show(
    folder: Path = typer.Argument(metavar="DIR", help="Results of `nadi run --out DIR`."),
    out: Path | None = typer.Option(None, "-o", "--out", metavar="FILE", help="Write a page, FILE.html."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Busy, marked, paused and dropping links, completion times, how pauses spread and whom they held up."""
    from nadi.net_analysis import completion, most, read_run
    from nadi.net_page import check_page, write_page

    if out:
        check_page(out)
    run = read_run(folder)
    document: dict[str, Any] = {
        "topology": run.summary.get("topology"),
        "finish_time_ps": run.summary.get("finish_time_ps"),
        "links": {column: most(run.links, column, MOST_LINKS) for column in _COLUMNS},
        "messages": completion(run.flows) if run.flows else None,
        **_pauses(run),
    }
    if out:
        write_page(out, run)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _print(document)
    if out:
        typer.echo(f"page: {out}", err=as_json)


def controls(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """All congestion controls and their parameters."""
    from rich.markup import escape
    from rich.table import Table

    from nadi.fabric import controls as known
    from nadi.report import wide_console

    found = known()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = wide_console()
    for control in found:
        signals = f"; needs {', '.join(control['signals'])}" if control["signals"] else ""
        console.print(f"[bold]{control['name']}[/bold]: {escape(control['title'] + signals)}", highlight=False)
        table = Table(show_header=False, box=None, padding=(0, 2))
        for parameter in control["parameters"]:
            aliases = ", ".join(f"{name} x{factor:g}" for name, factor in parameter["aliases"].items())
            table.add_row(parameter["name"], f"default {parameter['default']:g}", escape(parameter["doc"]), aliases)
        if control["parameters"]:
            console.print(table)


def _pauses(run: "NetRun") -> dict[str, Any]:
    """How pauses spread, and whom they held up; why that is not known."""
    from nadi.net_analysis import MOST_PAUSES, Pauses, causes, find_pauses, root_links, spread

    if run.pauses is None:
        paused = run.links.get("paused_ps")
        why = "no pauses.parquet" if paused is not None and paused.any() else "nothing was paused"
        return {"pauses": 0, "trees": [], "victims": None, "why_no_victims": why}
    pauses = find_pauses(run.pauses, int(run.summary.get("finish_time_ps", 0)))
    found = len(pauses.link)
    pauses = Pauses(*(column[:MOST_PAUSES] for column in pauses))
    roots = spread(pauses, causes(pauses, run.links), run.links)
    congested = root_links(roots, run.links)
    return {
        "pauses": found,
        "pauses_looked_at": len(pauses.link),
        "roots": len(roots),
        "trees": [_tree(root) for root in roots[:MOST_TREES]],
        "congested_links": [run.links["name"][link] for link in congested.tolist()],
        **_victims(run, pauses, congested),
    }


def _tree(root: "Branch") -> dict[str, Any]:
    return {"links": root.size(), "whole_paused_ps": root.whole_ps(), **root.as_dict()}


def _victims(run: "NetRun", pauses: "Pauses", congested: Any) -> dict[str, Any]:  # noqa: ANN401 - NumPy is heavy
    from nadi.net_analysis import victims

    why = run.why_no_graph if run.graph is None else "no flows.parquet" if run.flows is None else ""
    if run.graph is None or run.flows is None:
        return {"victims": None, "why_no_victims": why}
    found = victims(run.graph, run.flows, pauses, congested)
    rows = [
        {
            "src": int(run.flows["src"][victim.row]),
            "dst": int(run.flows["dst"][victim.row]),
            "bytes": int(run.flows["bytes"][victim.row]),
            "start_ps": int(run.flows["start_ps"][victim.row]),
            "slowdown": None if math.isnan(victim.slowdown) else victim.slowdown,
            "paused_ps": victim.paused_ps,
            "link": run.links["name"][victim.link],
            "sure": victim.is_sure,
        }
        for victim in found[:MOST_VICTIMS]
    ]
    return {"victims_found": len(found), "victims": rows}


def _print(document: dict[str, Any]) -> None:
    from nadi.report import plain_table, wide_console
    from topologies.units import format_rate

    console = wide_console()
    finish_us = (document["finish_time_ps"] or 0) / _US
    console.print(f"{document['topology']}\n{finish_us:,.3f} µs", highlight=False, markup=False)
    for column, title in _COLUMNS.items():
        rows = document["links"][column]
        if not rows:
            continue
        extra = () if column == "utilisation" else (column.replace("_ps", " µs").replace("_", " "),)
        table = plain_table(title, "link", "rate", "busy", *extra)
        for row in rows:
            value = f"{row[column] / _US:,.3f}" if column.endswith("_ps") else f"{row[column]:,}"
            table.add_row(
                row["name"], format_rate(row["rate_bps"]), f"{row['utilisation']:.1%}", *([value] if extra else [])
            )
        console.print(table)
    _print_messages(document["messages"])
    _print_trees(document)
    _print_victims(document)


def _print_messages(rows: list[dict[str, Any]] | None) -> None:
    from nadi.report import plain_table, wide_console

    if not rows:
        wide_console().print("no messages, or no flows.parquet\n", highlight=False)
        return
    for title, column, show in (
        ("completion time of messages (µs), by size", "time_ps", lambda ps: f"{ps / _US:,.3f}"),
        ("slow-down of messages, times what they take alone, by size", "slowdown", lambda times: f"{times:.2f}"),
    ):
        names = rows[0][column]
        if names is None:
            continue
        table = plain_table(title, "size from", "messages", *("most" if name == "p100" else name for name in names))
        for row in rows:
            size = "all" if row["from_bytes"] is None else f"{row['from_bytes']:,} B"
            values = [show(row[column][name]) if row[column] else "-" for name in names]
            table.add_row(size, f"{row['messages']:,}", *values)
        wide_console().print(table)


def _print_trees(document: dict[str, Any]) -> None:
    from nadi.report import wide_console

    console = wide_console()
    trees = document["trees"]
    if not trees:
        return
    looked = document["pauses_looked_at"]
    shown = f", the first {looked:,} looked at" if looked < document["pauses"] else ""
    heading = f"how pauses spread: {document['pauses']:,} pauses{shown}, {document['roots']} roots"
    console.print(heading, style="bold", highlight=False)
    for tree in trees:
        lines: list[str] = []
        _lines(tree, 1, lines)
        console.print(
            f"{tree['switch']}: {tree['links']} links, paused for {tree['whole_paused_ps'] / _US:,.3f} µs in all",
            highlight=False,
            markup=False,
        )
        for line in lines[:MOST_BRANCHES]:
            console.print(line, soft_wrap=True, highlight=False, markup=False)
        if len(lines) > MOST_BRANCHES:
            console.print(f"  and {len(lines) - MOST_BRANCHES} more", highlight=False)
    if document["roots"] > len(trees):
        console.print(f"and {document['roots'] - len(trees)} smaller", highlight=False)
    console.print()


def _lines(tree: dict[str, Any], depth: int, lines: list[str]) -> None:
    """A line for each branch, indented by its depth."""
    for branch in tree["spread"]:
        times = f"first at {branch['first_ps'] / _US:,.3f} µs, {branch['paused_ps'] / _US:,.3f} µs in all"
        lines.append(f"{'  ' * depth}{branch['link']}: {branch['pauses']:,} pauses, {times}")
        _lines(branch, depth + 1, lines)


def _print_victims(document: dict[str, Any]) -> None:
    from nadi.report import plain_table, wide_console

    console = wide_console()
    if document["victims"] is None:
        why = document["why_no_victims"]
        if why != "nothing was paused":
            console.print(f"whom pauses held up is not known: {why}", highlight=False, markup=False)
        return
    congested = document["congested_links"]
    more = f" and {len(congested) - MOST_LINKS} more" if len(congested) > MOST_LINKS else ""
    console.print(f"congested: {', '.join(congested[:MOST_LINKS])}{more}", highlight=False, markup=False)
    table = plain_table(
        f"head-of-line victims: {document['victims_found']:,} messages on no congested link, held up by pauses",
        *("src", "dst", "size", "slow-down", "paused µs", "most at", "sure"),
    )
    for row in document["victims"]:
        slow = "-" if row["slowdown"] is None else f"{row['slowdown']:.2f}"
        ends = f"npu {row['src']}", f"npu {row['dst']}", f"{row['bytes']:,} B"
        table.add_row(*ends, slow, f"{row['paused_ps'] / _US:,.3f}", row["link"], "yes" if row["sure"] else "perhaps")
    console.print(table)
