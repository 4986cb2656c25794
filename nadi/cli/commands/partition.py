"""`nadi partition`: predict the partition of a parallel run and its speed-up."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nadi.cli.completion import methods
from nadi.cli.options import FORCE_HELP, named_path

if TYPE_CHECKING:
    from nadi.terminal.tables import FittedTable
    from partition import PartitionReport

_NO_CUT = "-"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(partition)


def partition(
    file: Path = typer.Argument(metavar="RUN.toml", help="Run file, as for `nadi run`."),
    parts: int = typer.Option(..., "--parts", min=1, help="Number of parts: ranks or workers."),
    method: str | None = typer.Option(
        None,
        metavar="NAME",
        help="Partition method; docs/explanation/parallel.md lists them. Default: the run file's.",
        autocompletion=methods,
    ),
    weights: Path | None = typer.Option(
        None,
        metavar="DIR",
        parser=named_path,
        help="Results of an earlier run, whose packets replace the expected ones as weights.",
    ),
    all_methods: bool = typer.Option(False, "--all-methods", help="Compare all methods."),
    plot: Path | None = typer.Option(
        None,
        metavar="FILE",
        parser=named_path,
        help="Picture of the parts and their cut to write: FILE.html or FILE.png.",
    ),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Replace a value of the run file, such as network.mtu=1KiB. Repeatable."
    ),
    force: bool = typer.Option(False, "--force", help=FORCE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Divide the fabric of a run file among parts; print balance, cut, lookahead and the predicted speed-up."""
    from nadi.configuration.run_file import load_config
    from nadi.errors import ConfigError
    from nadi.reports.pages.partition import check_plot, write_plot
    from nadi.simulation.fidelities import on_one_worker
    from nadi.simulation.wiring.affordable import check_fabric
    from nadi.simulation.wiring.partitioning import compare, divide, expected_load, measured_load
    from nadi.simulation.wiring.reading import built_fabric
    from nadi.terminal.printing import say
    from nadi.terminal.tables import console

    if plot:
        check_plot(plot)
    config = load_config(file, overrides)
    if on_one_worker(config.network):
        raise ConfigError(
            f"[network] fidelity: found {config.network.fidelity!r}, which runs on one worker; expected 'packet'"
        )
    check_fabric(config.topology.source(), force=force)
    graph = built_fabric(config)
    load = measured_load(weights, graph) if weights else expected_load(config, graph, force=force)
    found, report = divide(graph, parts, method or config.engine.partitioner, load, config.network)
    document: dict[str, object] = {"topology": graph.name, "npus": graph.npus, "nodes": graph.nodes}
    document |= {"links": graph.links, "weights": str(weights) if weights else "expected"}
    if all_methods:
        reports, failures = compare(graph, parts, load, config.network)
        shown = comparison_table(reports, {name: str(error) for name, error in failures.items()})
        document["reports"] = [report.as_dict() for report in reports.values()]
        document["failures"] = {name: str(error) for name, error in failures.items()}
    else:
        shown = parts_table(report)
        document |= {"reports": [report.as_dict()], "owner": found.owner.tolist()}
    if plot:
        write_plot(plot, graph, found, load.weights)
    if as_json:
        typer.echo(json.dumps(document, indent=None if graph.nodes > 100 else 2))
    else:
        out = console()
        out.print(f"{graph.npus} NPUs on {graph.name}\n{load.source}", markup=False)
        out.print(shown)
        if not all_methods:
            out.print(facts_table(report))
    if plot:
        say(f"plot: {plot}", err=as_json)


def parts_table(report: "PartitionReport") -> "FittedTable":
    """A row for each part."""
    from nadi.terminal.tables import FittedTable, TableColumn

    columns = (
        TableColumn("part", form="name"),
        TableColumn("NPUs", 2),
        TableColumn("switches", 3),
        TableColumn("events", 1),
        "share",
    )
    table = FittedTable(f"{report.parts} parts by {report.method}", *columns)
    for part, (npus, switches, events, share) in enumerate(
        zip(report.npus, report.switches, report.events, report.share, strict=True)
    ):
        table.add_row(str(part), f"{npus:,}", f"{switches:,}", f"{events:,}", f"{share:.1%}")
    return table


def facts_table(report: "PartitionReport") -> "FittedTable":
    """What the partition promises, a row for each fact."""
    from nadi.terminal.readable import time_text
    from nadi.terminal.tables import facts

    whence = "in the earlier run" if report.duration_is_given else "by its busiest link; a run is hardly shorter"
    rows = [
        ("balance", f"{report.balance:.3f}, events of the busiest part over the mean"),
        ("cut", f"{report.cut_links:,} links, {report.cut_packets:,} packets ({report.cut_share:.1%})"),
        ("lookahead", _lookahead(report)),
        ("network busy for", f"{time_text(report.duration_ps)} {whence}"),
        ("windows", f"{report.windows:,}"),
        ("events per window", f"{report.mean_events_per_window:,.0f}, in the idlest part {_min_events(report)}"),
        ("predicted speed-up", f"{report.speed_up:.2f}, with 45 ns per event and 1 µs per window, as in shared memory"),
    ]
    return facts("", rows)


def comparison_table(reports: "dict[str, PartitionReport]", failures: dict[str, str]) -> "FittedTable":
    """Return a table with a row per method; notes give the errors of methods that failed."""
    from nadi.terminal.tables import FittedTable, TableColumn

    parts = next(iter(reports.values())).parts
    table = FittedTable(
        f"{parts} parts by each method",
        TableColumn("method", form="name"),
        "balance",
        TableColumn("cut links", 4),
        TableColumn("cut packets", 1),
        TableColumn("lookahead", 2),
        TableColumn("windows", 5),
        TableColumn("events/window", 3),
        TableColumn("minimum events", 6),
        "predicted speed-up",
    )
    for name, report in reports.items():
        table.add_row(
            name,
            f"{report.balance:.3f}",
            f"{report.cut_links:,}",
            f"{report.cut_share:.1%}",
            _lookahead(report),
            f"{report.windows:,}",
            f"{report.mean_events_per_window:,.0f}",
            _min_events(report),
            f"{report.speed_up:.2f}",
        )
    table.notes += [f"{name}: {text}" for name, text in failures.items()]
    return table


def _lookahead(report: "PartitionReport") -> str:
    from nadi.terminal.readable import time_text

    return time_text(report.lookahead_ps) if report.cut_links else _NO_CUT


def _min_events(report: "PartitionReport") -> str:
    return f"{report.least_events_per_window:,.0f}"
