"""`nadi timeline`: write a timeline of a run for the Perfetto UI."""

import json
from pathlib import Path

import typer

from nadi.cli.options import named_path


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(timeline)


def timeline(
    folder: Path = typer.Argument(metavar="DIR", help="Results of `nadi run --out DIR`."),
    out: Path = typer.Option(
        ..., "-o", "--out", metavar="FILE", parser=named_path, help="FILE.perfetto-trace, which ui.perfetto.dev opens."
    ),
    npus: str = typer.Option("", "--npus", metavar="LIST", help="NPUs to show, such as 0,8,16. Default: at most 64."),
    most_slices: int = typer.Option(
        200_000, "--most-slices", min=1, metavar="N", help="Maximum number of nodes that have slices of their own."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Write a timeline: lanes by NPU and kind, arrows from sends to receives, load of links and queues over time."""
    from nadi.errors import ConfigError
    from nadi.insight.runs import Run
    from nadi.launching.ending import unwound
    from nadi.reports.timelines.of_runs import write_timeline
    from nadi.terminal.printing import say

    try:
        chosen = [int(word) for word in npus.split(",")] if npus else []
    except ValueError:
        raise ConfigError(f"--npus {npus!r}: expected numbers, as 0,8,16") from None
    with unwound():
        shown = write_timeline(out, Run(folder), chosen, most_slices)
    if as_json:
        typer.echo(json.dumps({"path": str(out), **shown._asdict(), "notes": shown.notes()}))
        return
    parts = f"{shown.slices:,} slices on {shown.npus:,} NPUs, {shown.flows:,} arrows, {shown.counters:,} counters"
    say(f"{out}: {parts}; open it in ui.perfetto.dev")
    for note in shown.notes():
        say(f"  {note}")
