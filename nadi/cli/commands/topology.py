"""`nadi topology`: list, show and write fabrics."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nadi.cli.completion import topology_names
from nadi.cli.options import FORCE_HELP, named_path

if TYPE_CHECKING:
    from topologies import Topology

SPEC_HELP = "Name and parameters: ring:npus=8,rate=400Gbps; a cluster: selene:gpus=64; or a file."


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Fabrics: list, clusters, show, build.")
    group.command("list")(list_)
    group.command("clusters")(clusters_)
    group.command()(show)
    group.command()(build)
    app.add_typer(group, name="topology")


def list_(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List all topologies and their parameters."""
    import topologies
    from nadi.terminal.tables import FittedTable, TableColumn, console

    known = topologies.topologies()
    if as_json:
        typer.echo(json.dumps([_described(found) for found in known.values()], indent=2))
        return
    out = console()
    columns = TableColumn("parameter", form="name"), TableColumn("form", 1, "name"), TableColumn("meaning", form="text")
    for name, found in known.items():
        out.print(f"{name}: {found.summary}", soft_wrap=True, markup=False)
        table = FittedTable("", *columns, headings=False)
        for parameter in found.parameters():
            table.add_row(parameter.name, parameter.form, _meaning(parameter.default, parameter.help))
        out.print(table)


def clusters_(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List all clusters: fabrics with their GPUs and settings."""
    from nadi.terminal.tables import FittedTable, TableColumn, console
    from topologies.clusters import clusters

    known = clusters().values()
    if as_json:
        typer.echo(json.dumps([cluster.described() for cluster in known], indent=2))
        return
    columns = TableColumn("cluster", form="name"), TableColumn("GPUs", 1), TableColumn("GPU", 1, "name")
    table = FittedTable("", *columns, TableColumn("description", form="text"), TableColumn("source", 2, "text"))
    for cluster in known:
        table.add_row(cluster.name, f"{cluster.gpus:,}", cluster.gpu, cluster.summary, cluster.source)
    console().print(table)


def show(
    spec: str = typer.Argument(metavar="SPEC", help=SPEC_HELP, autocompletion=topology_names),
    force: bool = typer.Option(False, "--force", help=FORCE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show a fabric: sizes, rates, routing, bisection, oversubscription."""
    import topologies
    from nadi.reports.text.fabric import labelled
    from nadi.simulation.wiring.affordable import check_fabric
    from nadi.terminal.tables import console, facts

    check_fabric(spec, force=force)
    graph = topologies.build(spec)
    found = topologies.describe(graph)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        console().print(facts("", labelled(found, graph)))


def build(
    spec: str = typer.Argument(metavar="SPEC", help=SPEC_HELP, autocompletion=topology_names),
    out: Path = typer.Option(..., "-o", "--out", metavar="FILE", parser=named_path, help="TOML file to write."),
    force: bool = typer.Option(False, "--force", help=FORCE_HELP),
) -> None:
    """Write a fabric as a TOML file of nodes and links, which you can edit and run."""
    import topologies
    from nadi.simulation.wiring.affordable import check_fabric
    from nadi.terminal.printing import say

    check_fabric(spec, force=force)
    graph = topologies.build(spec)
    topologies.write_toml(graph, out)
    say(f"{out}: {graph.npus} NPUs, {graph.nodes} nodes, {graph.links // 2} cables")


def _described(found: "Topology") -> dict[str, object]:
    from dataclasses import asdict

    return {"name": found.name, "summary": found.summary, "parameters": [asdict(p) for p in found.parameters()]}


def _meaning(default: str | None, text: str) -> str:
    if default is None:
        return f"{text} (required)"
    return f"{text} (default {default})" if default else text
