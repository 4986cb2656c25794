"""`nadi partition`: predict the partition of a parallel run and its speed-up."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import AsJson, Force, Overrides, methods, named_path
from nadi.cli.output import print_json, print_table
from nadi.terminal import say

if TYPE_CHECKING:
    from nadi.partition import PartitionReport
    from nadi.terminal import FittedTable

_NO_CUT = "-"
_METHOD = "Partition method; docs/explanation/parallel.md lists them. Default: the run file's."
_WEIGHTS = "Results of an earlier run, whose packets replace the expected ones as weights."
_PLOT = "Picture of the parts and their cut to write: FILE.html or FILE.png."


def partition(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file, as for `nadi run`.")],
    parts: Annotated[int, typer.Option(min=1, help="Number of parts: ranks or workers.")],
    method: str | None = typer.Option(None, metavar="NAME", help=_METHOD, autocompletion=methods),
    weights: Path | None = typer.Option(None, metavar="DIR", parser=named_path, help=_WEIGHTS),
    all_methods: bool = typer.Option(False, "--all-methods", help="Compare all methods."),
    plot: Path | None = typer.Option(None, metavar="FILE", parser=named_path, help=_PLOT),
    overrides: Overrides = [],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Divide the fabric of a run file among parts; print balance, cut, lookahead and the predicted speed-up."""
    from nadi.configuration.run_file import load_config
    from nadi.reports.pages.fabric import check_plot, write_plot
    from nadi.simulation.assembly.partitioning import compare, divide
    from nadi.simulation.resolving import Resolver

    if plot:
        check_plot(plot)
    graph, load, division = Resolver(load_config(file, overrides), force=force).partition_inputs(weights)
    chosen, report = divide(graph, parts, method or division.method, load, division.settings)
    document: dict[str, object] = {"topology": graph.name, "npus": graph.npus, "nodes": graph.nodes}
    document |= {"links": graph.links, "weights": str(weights) if weights else "expected"}
    if all_methods:
        reports, errors = compare(graph, parts, load, division.settings)
        failures = {name: str(error) for name, error in errors.items()}
        tables = [comparison_table(reports, failures)]
        document |= {"reports": [each.as_dict() for each in reports.values()], "failures": failures}
    else:
        tables = [parts_table(report), facts_table(report)]
        document |= {"reports": [report.as_dict()], "owner": chosen.owner.tolist()}
    if plot:
        write_plot(plot, graph, chosen, load.weights)
    if as_json:
        print_json(document, indent=None if graph.nodes > 100 else 2)
    else:
        say(f"{graph.npus} NPUs on {graph.name}")
        say(load.source)
        for table in tables:
            print_table(table)
    if plot:
        say(f"plot: {plot}", err=as_json)


def parts_table(report: "PartitionReport") -> "FittedTable":
    """Return a table with a row per part.

    Args:
        report: The parts with their weights and cut links.
    """
    from nadi.terminal import FittedTable, name_column

    columns = name_column("part"), ("NPUs", 2), ("switches", 3), ("events", 1), "share"
    table = FittedTable(f"{report.parts} parts by {report.method}", *columns)
    rows = zip(report.npus, report.switches, report.events, report.share, strict=True)
    for part, (npus, switches, events, share) in enumerate(rows):
        table.add_row(str(part), npus, switches, f"{events:,}", f"{share:.1%}")
    return table


def facts_table(report: "PartitionReport") -> "FittedTable":
    """Return the predictions about the partition, a row per quantity.

    Args:
        report: The parts with their weights and cut links.
    """
    from nadi.terminal import facts, time_text

    source = "in the earlier run" if report.duration_is_given else "by its busiest link; a run is hardly shorter"
    rows = [
        ("balance", f"{report.balance:.3f}, events of the busiest part over the mean"),
        ("cut", f"{report.cut_links:,} links, {report.cut_packets:,} packets ({report.cut_share:.1%})"),
        ("lookahead", _lookahead(report)),
        ("network busy for", f"{time_text(report.duration_ps)} {source}"),
        ("windows", f"{report.windows:,}"),
        ("events per window", f"{report.mean_events_per_window:,.0f}, in the idlest part {_min_events(report)}"),
        ("predicted speed-up", f"{report.speed_up:.2f}, with 45 ns per event and 1 µs per window, as in shared memory"),
    ]
    return facts("", rows)


def comparison_table(reports: "dict[str, PartitionReport]", failures: dict[str, str]) -> "FittedTable":
    """Return a table with a row per method; notes give the errors of methods that failed.

    Args:
        reports: The report of each method that succeeded, by name.
        failures: The error of each method that failed, by name.
    """
    from nadi.terminal import FittedTable, name_column

    parts = next(iter(reports.values())).parts
    cuts = ("cut links", 4), ("cut packets", 1), ("lookahead", 2)
    windows = ("windows", 5), ("events/window", 3), ("minimum events", 6)
    title = f"{parts} parts by each method"
    table = FittedTable(title, name_column("method"), "balance", *cuts, *windows, "predicted speed-up")
    for name, report in reports.items():
        cut = f"{report.cut_links:,}", f"{report.cut_share:.1%}", _lookahead(report)
        events = f"{report.mean_events_per_window:,.0f}", _min_events(report)
        table.add_row(name, f"{report.balance:.3f}", *cut, f"{report.windows:,}", *events, f"{report.speed_up:.2f}")
    table.notes += [f"{name}: {text}" for name, text in failures.items()]
    return table


def _lookahead(report: "PartitionReport") -> str:
    """Return the time that parts can run ahead of each other in words."""
    from nadi.terminal import time_text

    return time_text(report.lookahead_ps) if report.cut_links else _NO_CUT


def _min_events(report: "PartitionReport") -> str:
    return f"{report.least_events_per_window:,.0f}"
