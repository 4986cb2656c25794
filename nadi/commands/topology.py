"""`nadi topology`: what fabrics there are, what one looks like, and its file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from topologies import Topology

SPEC_HELP = "Name and parameters, as ring:npus=8,rate=400Gbps; or a file."


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Fabrics: list, show, build.")
    group.command("list")(list_)
    group.command()(show)
    group.command()(build)
    app.add_typer(group, name="topology")


def list_(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """All topologies and their parameters."""
    from rich.markup import escape
    from rich.table import Table

    import topologies
    from nadi.report import wide_console

    known = topologies.topologies()
    if as_json:
        typer.echo(json.dumps([_described(found) for found in known.values()], indent=2))
        return
    console = wide_console()
    for name, found in known.items():
        console.print(f"[bold]{name}[/bold]: {escape(found.summary)}", soft_wrap=True, highlight=False)
        table = Table(show_header=False, box=None, padding=(0, 2))
        for parameter in found.parameters():
            table.add_row(parameter.name, parameter.form, _default(parameter.default), escape(parameter.help))
        console.print(table)


def show(
    spec: str = typer.Argument(metavar="SPEC", help=SPEC_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Facts about a fabric: sizes, rates, routing, bisection."""
    from rich.table import Table

    import topologies
    from nadi.report import wide_console

    facts = topologies.describe(topologies.build(spec))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False, box=None)
    for key, value in facts.items():
        table.add_row(key, _shown(key, value))
    wide_console().print(table)


def build(
    spec: str = typer.Argument(metavar="SPEC", help=SPEC_HELP),
    out: Path = typer.Option(..., "-o", "--out", metavar="FILE", help="TOML file to write."),
) -> None:
    """Write a fabric as a TOML file of nodes and links, to be edited and run."""
    import topologies

    graph = topologies.build(spec)
    topologies.write_toml(graph, out)
    typer.echo(f"{out}: {graph.npus} NPUs, {graph.nodes} nodes, {graph.links // 2} cables")


def _described(found: "Topology") -> dict[str, object]:
    from dataclasses import asdict

    return {"name": found.name, "summary": found.summary, "parameters": [asdict(p) for p in found.parameters()]}


def _default(default: str | None) -> str:
    if default is None:
        return "required"
    return f"default {default}" if default else ""


def _shown(key: str, value: object) -> str:
    """A fact in words, with its unit."""
    from topologies.units import format_rate, format_time

    shown = f"{value:,}" if isinstance(value, int) else str(value)
    if key.endswith("_ps") and isinstance(value, int):
        shown = format_time(value)
    elif key.endswith("_bps") and isinstance(value, int):
        shown = format_rate(value)
    elif key == "rates_bps" and isinstance(value, dict):
        shown = ", ".join(f"{count} cables of {format_rate(int(rate))}" for rate, count in value.items())
    elif key == "tiers" and isinstance(value, list):
        shown = "; ".join(f"tier {t['tier']}: {t['cables']} cables, {format_rate(t['rate_bps'])}" for t in value)
    elif isinstance(value, dict):
        shown = ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    elif isinstance(value, list):
        shown = "x".join(str(item) for item in value)
    return shown
