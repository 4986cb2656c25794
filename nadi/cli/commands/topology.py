"""`nadi topology`: list, show and write fabrics."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.options import AsJson, Force, Spec, named_path
from nadi.cli.output import print_document, print_json, print_table
from nadi.terminal import say

Out = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", parser=named_path, help="TOML file to write.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands.

    Args:
        app: The application of typer.
    """
    group = typer.Typer(help="Fabrics: list, clusters, show, build.")
    group.command("list")(list_)
    group.command("clusters")(clusters_)
    group.command()(show)
    group.command()(build)
    app.add_typer(group, name="topology")


def list_(as_json: AsJson = False) -> None:
    """List all topologies and their parameters."""
    from nadi import topologies
    from nadi.terminal import FittedTable, TableColumn, name_column, text_column

    known = topologies.topologies()
    if as_json:
        parameters = {name: [asdict(each) for each in topology.parameters()] for name, topology in known.items()}
        names = {name: {"name": topology.name, "summary": topology.summary} for name, topology in known.items()}
        print_json([names[name] | {"parameters": parameters[name]} for name in known])
        return
    columns = name_column("parameter"), TableColumn("form", 1, "name"), text_column("meaning")
    for name, topology in known.items():
        say(f"{name}: {topology.summary}")
        table = FittedTable("", *columns, headings=False)
        for parameter in topology.parameters():
            table.add_row(parameter.name, parameter.form, _meaning(parameter.default, parameter.help))
        print_table(table)


def clusters_(as_json: AsJson = False) -> None:
    """List all clusters: fabrics with their GPUs and settings."""
    from nadi.terminal import FittedTable, TableColumn, name_column, text_column
    from nadi.topologies.clusters import clusters

    known = clusters().values()
    if as_json:
        print_json([cluster.described() for cluster in known])
        return
    columns = name_column("cluster"), ("GPUs", 1), TableColumn("GPU", 1, "name")
    table = FittedTable("", *columns, text_column("description"), text_column("source", 2))
    for cluster in known:
        table.add_row(cluster.name, cluster.gpus, cluster.gpu, cluster.summary, cluster.source)
    print_table(table)


def show(spec: Spec, force: Force = False, as_json: AsJson = False) -> None:
    """Show a fabric: sizes, rates, routing, bisection, oversubscription."""
    from nadi import topologies
    from nadi.reports.text.fabric import labelled
    from nadi.simulation.assembly.resource_checks import check_fabric
    from nadi.terminal import facts

    check_fabric(spec, force=force)
    graph = topologies.build(spec)
    _say_warnings(graph.warnings)
    print_document(topologies.describe(graph), lambda found: facts("", labelled(found, graph)), as_json=as_json)


def build(spec: Spec, out: Out, force: Force = False) -> None:
    """Write a fabric as a TOML file of nodes and links, which you can edit and run."""
    from nadi import topologies
    from nadi.simulation.assembly.resource_checks import check_fabric

    check_fabric(spec, force=force)
    graph = topologies.build(spec)
    _say_warnings(graph.warnings)
    topologies.write_toml(graph, out)
    say(f"{out}: {graph.npus} NPUs, {graph.nodes} nodes, {graph.links // 2} cables")


def _say_warnings(warnings: tuple[str, ...]) -> None:
    """Print sentences about what is not read of a network's file."""
    for warning in warnings:
        say(f"nadi: {warning}", err=True)


def _meaning(default: str | None, text: str) -> str:
    """Return the meaning of a parameter with its default; None = the parameter is required."""
    if default is None:
        return f"{text} (required)"
    return f"{text} (default {default})" if default else text
