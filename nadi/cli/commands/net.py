"""`nadi net`: network analysis of a run, and the lists of congestion controls and network models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nadi.cli.options import AsJson, FiguresFolder, RunFolder, named_path
from nadi.cli.output import check_outputs, print_json, print_table, print_with_page
from nadi.terminal import say


class _Group(TyperGroup):
    """The group of commands; any other first argument is a folder to show."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer has its own click
        """Put the command `show` before a folder, which is the first of the words `args`."""
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args.insert(0, "show")
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the group of commands.

    Args:
        app: The application of typer.
    """
    group = typer.Typer(cls=_Group, help="The network of a run (nadi net DIR), its models, and congestion controls.")
    group.command()(show)
    group.command()(slowdown)
    group.command()(controls)
    group.command()(fidelities)
    app.add_typer(group, name="net")


def show(
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
    from nadi.simulation.network_settings import fidelities as known_fidelities
    from nadi.simulation.network_settings import shown

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
    from nadi.terminal import FittedTable, TableColumn, name_column, text_column

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
