"""`nadi trace timeline`: write a timeline of Chakra traces for the Perfetto UI."""

import json
from pathlib import Path

import typer

from nadi.cli.options import named_path


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(timeline)


def timeline(
    path: Path = typer.Argument(metavar="PREFIX|DIR|FILE", help="Traces PREFIX.<npu>.et[.gz], a folder, a trace set."),
    out: Path = typer.Option(
        ..., "-o", "--out", metavar="FILE", parser=named_path, help="FILE.perfetto-trace, which ui.perfetto.dev opens."
    ),
    most_slices: int = typer.Option(
        200_000, "--most-slices", min=1, metavar="N", help="Maximum number of nodes that have slices of their own."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Write a timeline: lanes by NPU and kind, arrows from sends to receives; times recorded or by dependencies."""
    from nadi.launching.ending import unwound
    from nadi.reports.timelines.of_traces import write_timeline
    from nadi.terminal.printing import say
    from workload.trace_sets.files import read_ranks

    with unwound():
        shown = write_timeline(out, read_ranks(path), most_slices)
    if as_json:
        typer.echo(json.dumps({"path": str(out), **shown._asdict(), "notes": shown.notes()}))
        return
    say(f"{out}: {shown.slices:,} slices on {shown.npus:,} NPUs, {shown.flows:,} arrows; open it in ui.perfetto.dev")
    for note in shown.notes():
        say(f"  {note}")
