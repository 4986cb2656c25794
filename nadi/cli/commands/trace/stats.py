"""`nadi trace stats`: statistics of the traces of all NPUs."""

import json
from pathlib import Path

import typer

from nadi.cli.options import named_path


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(stats)


def stats(
    path: Path = typer.Argument(metavar="PREFIX|DIR|FILE", help="Traces PREFIX.<npu>.et[.gz], a folder, a trace set."),
    out: Path | None = typer.Option(
        None,
        "-o",
        "--out",
        metavar="FILE.html",
        parser=named_path,
        help="Page with heat maps of the imbalance to write.",
    ),
    most_nodes: int = typer.Option(
        2_000_000,
        "--most-nodes",
        min=1,
        metavar="N",
        help="Limit of nodes for detailed analysis; it covers as many NPUs as fit.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print operators, collectives, imbalance of sizes, waiting, overlap, and the critical path across ranks."""
    from et.statistics import statistics
    from nadi.launching.ending import unwound
    from nadi.reports.pages.imbalance import page
    from nadi.reports.pages.page import check_page, write_page
    from nadi.reports.text.trace_statistics import render
    from nadi.terminal.printing import say
    from nadi.terminal.tables import console
    from workload.trace_sets.files import read_ranks

    if out is not None:
        check_page(out)
    with unwound():
        found = statistics(read_ranks(path), most_nodes)
        if out is not None:
            write_page(out, page(f"Traces of {path}", found))
    if as_json:
        typer.echo(json.dumps({"path": str(path), **found}, indent=2))
    else:
        console().print(render(str(path), found))
    if out is not None:
        say(f"{out}: ranks against collectives, coloured by deviation", err=as_json)
