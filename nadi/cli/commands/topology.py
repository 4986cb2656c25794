"""The network: `nadi topology` shows fabrics, `nadi partition` divides one, and `nadi net` analyses one of a run."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from nadi.cli.options import (
    AsJson,
    FiguresFolder,
    Force,
    Overrides,
    Quiet,
    RunFolder,
    Spec,
    cluster_names,
    methods,
    model_names,
    named_path,
)
from nadi.cli.output import check_outputs, print_document, print_json, print_table, print_with_page
from nadi.terminal import FittedTable, TableColumn, facts, name_column, say, text_column, time_text

if TYPE_CHECKING:
    from nadi.partition import PartitionReport
    from nadi.topologies import Graph

Out = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", parser=named_path, help="TOML file to write.")]


def register(app: typer.Typer) -> None:
    """Add the commands.

    Args:
        app: The application of typer.
    """
    fabrics = typer.Typer(help="Fabrics: list, clusters, show, draw, build, compare.")
    fabrics.command("list")(list_)
    fabrics.command("clusters")(clusters_)
    fabrics.command()(show)
    fabrics.command()(build)
    fabrics.command()(draw)
    fabrics.command()(compare)
    app.add_typer(fabrics, name="topology")
    app.command()(partition)
    of_runs = typer.Typer(cls=_Net, help="The network of a run (nadi net DIR), its models, and congestion controls.")
    of_runs.command("show")(show_network)
    of_runs.command()(slowdown)
    of_runs.command()(controls)
    of_runs.command()(fidelities)
    app.add_typer(of_runs, name="net")


def list_(as_json: AsJson = False) -> None:
    """List all topologies and their parameters."""
    from nadi import topologies

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
    from nadi.reports.text.network import labelled

    graph = _built(spec, force=force)
    print_document(topologies.describe(graph), lambda found: facts("", labelled(found, graph)), as_json=as_json)


def build(spec: Spec, out: Out, force: Force = False) -> None:
    """Write a fabric as a TOML file of nodes and links, which you can edit and run."""
    from nadi import topologies

    graph = _built(spec, force=force)
    topologies.write_toml(graph, out)
    say(f"{out}: {graph.npus} NPUs, {graph.nodes} nodes, {graph.links // 2} cables")


_PICTURE = "Picture to write, FILE.svg; browsers show names under the pointer."


def draw(
    spec: Spec,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", parser=named_path, help=_PICTURE)],
    force: Force = False,
) -> None:
    """Draw a fabric as SVG: NPUs, switches, and cables in the colour of their kind or of their plane."""
    from nadi.reports.fabric_drawing import write_drawing

    graph = _built(spec, force=force)
    write_drawing(graph, out)
    say(f"{out}: {graph.npus} NPUs, {graph.nodes} nodes, {graph.links // 2} cables")


_CLUSTERS = "Fabrics as clusters, as in `nadi run --cluster`: names or files, optionally with parameters."
_JOB = "Run file of the job, whose [topology] has no fabric, or a cluster."
_FIDELITY = "Network model, as in `nadi run`; links cannot fail at closed forms."
_PRICES = "TOML file of powers and prices that override those of `nadi energy`."


def compare(
    clusters: Annotated[list[str], typer.Argument(metavar="CLUSTER ...", help=_CLUSTERS, autocompletion=cluster_names)],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", parser=named_path, help="Folder for all results.")],
    run: Annotated[Path | None, typer.Option("--run", metavar="RUN.toml", parser=named_path, help=_JOB)] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="Model to train.", autocompletion=model_names)] = "",
    plan: Annotated[str, typer.Option(metavar="PLAN", help="Parallel plan, such as tp8,pp4,dp32.")] = "",
    gpus: Annotated[int, typer.Option(min=0, metavar="N", show_default=False, help="GPUs of each fabric.")] = 0,
    fidelity: Annotated[str, typer.Option(metavar="NAME", help=_FIDELITY)] = "",
    energy_table: Annotated[Path | None, typer.Option(metavar="FILE", parser=named_path, help=_PRICES)] = None,
    jobs: Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="Concurrent runs on this machine.")] = 1,
    overrides: Overrides = [],
    figures: FiguresFolder = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare fabrics for one job: time of a step, energy, price, and the cost of failed cables and switches."""
    from nadi.configuration.run_file import parse_override
    from nadi.launching.ending import unwound
    from nadi.launching.progress import progress
    from nadi.studies.sweeps import fabrics as comparison

    named = {"workload.model": model, "workload.plan": plan, "topology.gpus": gpus, "network.fidelity": fidelity}
    values: dict[str, Any] = {key: value for key, value in named.items() if value} | dict(
        map(parse_override, overrides)
    )
    page = out / comparison.PAGE
    check_outputs(page, figures)
    with unwound(), progress(quiet=quiet) as shown:

        def report(text: str, ended: int, runs: int) -> None:
            shown.say(text)
            shown.count(ended, runs, "runs")

        job = comparison.ComparedJob(run, values, energy_table)
        document = comparison.compare_fabrics(clusters, job, out, jobs, report, force=force)
    print_with_page(
        document, comparison.both_tables, lambda: comparison.fabrics_page(document), page, figures, as_json=as_json
    )


def _built(spec: str, *, force: bool) -> "Graph":
    """Return a fabric, whose size is checked before unless forced, and print what is not read of its file."""
    from nadi import topologies
    from nadi.simulation.assembly.resource_checks import check_fabric

    check_fabric(spec, force=force)
    graph = topologies.build(spec)
    for warning in graph.warnings:
        say(f"nadi: {warning}", err=True)
    return graph


def _meaning(default: str | None, text: str) -> str:
    """Return the meaning of a parameter with its default; None = the parameter is required."""
    if default is None:
        return f"{text} (required)"
    return f"{text} (default {default})" if default else text


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


def parts_table(report: "PartitionReport") -> FittedTable:
    """Return a table with a row per part.

    Args:
        report: The parts with their weights and cut links.
    """
    columns = name_column("part"), ("NPUs", 2), ("switches", 3), ("events", 1), "share"
    table = FittedTable(f"{report.parts} parts by {report.method}", *columns)
    rows = zip(report.npus, report.switches, report.events, report.share, strict=True)
    for part, (npus, switches, events, share) in enumerate(rows):
        table.add_row(str(part), npus, switches, f"{events:,}", f"{share:.1%}")
    return table


def facts_table(report: "PartitionReport") -> FittedTable:
    """Return the predictions about the partition, a row per quantity.

    Args:
        report: The parts with their weights and cut links.
    """
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


def comparison_table(reports: "dict[str, PartitionReport]", failures: dict[str, str]) -> FittedTable:
    """Return a table with a row per method; notes give the errors of methods that failed.

    Args:
        reports: The report of each method that succeeded, by name.
        failures: The error of each method that failed, by name.
    """
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
    return time_text(report.lookahead_ps) if report.cut_links else _NO_CUT


def _min_events(report: "PartitionReport") -> str:
    return f"{report.least_events_per_window:,.0f}"


class _Net(TyperGroup):
    """The group of commands; any other first argument is a folder to show."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer has its own click
        """Put the command `show` before a folder, which is the first of the words `args`."""
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args.insert(0, "show")
        return super().parse_args(ctx, args)


def show_network(
    folder: RunFolder,
    out: Path | None = typer.Option(
        None, "-o", "--out", metavar="FILE", parser=named_path, help="Page to write, FILE.html."
    ),
    figures: FiguresFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show busy, marked, paused and dropping links, completion times, how pauses spread, and messages they delayed."""
    from nadi.insight.network import network_document, read_net_run
    from nadi.reports.pages.network import network_page
    from nadi.reports.text.network import network_report

    check_outputs(out, figures)
    run = read_net_run(folder)
    findings = network_document(run)
    print_with_page(findings, network_report, lambda: network_page(run, findings), out, figures, as_json=as_json)


def slowdown(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR ...", help="Results of runs with several seeds.")],
    by: Annotated[str, typer.Option(metavar="KEY", help="Compare groups of runs: network.congestion_control.")] = "",
    job: Annotated[str, typer.Option(metavar="NAME", help="Job of [[jobs]] whose messages count. Default: all.")] = "",
    out: Path | None = typer.Option(
        None, "-o", "--out", metavar="FILE", parser=named_path, help="Page to write, FILE.html."
    ),
    figures: FiguresFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show the slow-down of messages by size over several runs, with 95 % confidence intervals."""
    from nadi.insight.metrics import slowdown_by_size
    from nadi.reports.pages.network import slowdown_page
    from nadi.reports.text.network import slowdown_table

    check_outputs(out, figures)
    rows = slowdown_by_size(folders, by, job)
    _note_other_settings(folders, by)
    print_with_page(rows, slowdown_table, lambda: slowdown_page(rows), out, figures, as_json=as_json)


def _note_other_settings(folders: Sequence[Path], by: str) -> None:
    """Print which settings other than seeds differ between runs of a group, whose intervals then show more than chance.

    Traces may differ, as those of `nadi workload traffic --seed` have a folder for each seed; the engine's workers and
    the kept tables do not change results.
    """
    from nadi.insight.comparison import differing_settings
    from nadi.insight.metrics import group_of
    from nadi.insight.runs import Run

    groups: dict[str, list[Run]] = {}
    for folder in folders:
        run = Run(folder)
        groups.setdefault(group_of(run, by), []).append(run)
    rows = [row for runs in groups.values() for row in differing_settings(runs) if not row["is_derived"]]
    keys = dict.fromkeys(row["key"] for row in rows if not row["key"].endswith((".seed", ".traces")))
    others = [key for key in keys if not key.startswith(("sha256 of ", "engine.", "output."))]
    if others:
        say(
            f"nadi: runs of one group differ in {', '.join(others)}, not only in seeds; --by KEY separates them",
            err=True,
        )


def fidelities(as_json: AsJson = False) -> None:
    """List the models of the network, values of [network] fidelity, and what each of them supports."""
    from nadi.simulation.network_settings import fidelities as known_fidelities, shown

    known = known_fidelities()
    if as_json:
        print_json(known)
        return
    for model in known:
        say(f"{model['fidelity']}: a message {model['message']}; for {model['use']}")
        for fact in [*model][3:]:
            say(f"  {fact.replace('_', ' ')}: {shown(model[fact])}")


def controls(as_json: AsJson = False) -> None:
    """List all congestion controls and their parameters."""
    from nadi.simulation.network_settings import controls as known_controls

    known = known_controls()
    if as_json:
        print_json(known)
        return
    columns = name_column("parameter"), TableColumn("default", 1, "name"), text_column("meaning")
    for control in known:
        signals = f"; needs {', '.join(control['signals'])}" if control["signals"] else ""
        say(f"{control['name']}: {control['title']}{signals}")
        table = FittedTable("", *columns, text_column("elsewhere", 2), headings=False)
        for parameter in control["parameters"]:
            aliases = ", ".join(f"{name} x{factor:g}" for name, factor in parameter["aliases"].items())
            meaning = f"{parameter['doc']}; expected {parameter['range']}"
            table.add_row(parameter["name"], f"default {parameter['default']:g}", meaning, aliases)
        if control["parameters"]:
            print_table(table)
