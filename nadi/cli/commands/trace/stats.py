"""`nadi trace stats`: statistics of the traces of all NPUs."""

from pathlib import Path

import typer

from nadi.cli.options import AsJson, Traces, named_path
from nadi.cli.output import print_document
from nadi.launching.ending import unwound
from nadi.terminal import say

_OUT = "Page with heat maps of the imbalance to write."
_MOST_NODES = "Limit of nodes for detailed analysis; it covers as many NPUs as fit."


def stats(
    path: Traces,
    out: Path | None = typer.Option(None, "-o", "--out", metavar="FILE.html", parser=named_path, help=_OUT),
    most_nodes: int = typer.Option(2_000_000, "--most-nodes", min=1, metavar="N", help=_MOST_NODES),
    as_json: AsJson = False,
) -> None:
    """Print operators, collectives, imbalance of sizes, waiting, overlap, and the critical path across ranks."""
    from nadi.et.statistics import statistics
    from nadi.reports.pages.page import check_page, write_page
    from nadi.reports.pages.traces import imbalance_page
    from nadi.reports.text.trace import statistics_report
    from nadi.workload.trace_sets import read_ranks

    if out is not None:
        check_page(out)
    with unwound():
        found = statistics(read_ranks(path), most_nodes)
        if out is not None:
            write_page(out, imbalance_page(f"Traces of {path}", found))
    document = {"path": str(path), **found}
    print_document(document, lambda _: statistics_report(str(path), found), as_json=as_json)
    if out is not None:
        say(f"{out}: ranks against collectives, coloured by deviation", err=as_json)
