"""`nadi timeline`: write a timeline of a run for the Perfetto UI."""

import typer

from nadi.cli.options import AsJson, MaxSlices, RunFolder, Timeline
from nadi.cli.output import print_timeline
from nadi.errors import ConfigError
from nadi.launching.ending import unwound


def timeline(
    folder: RunFolder,
    out: Timeline,
    npus: str = typer.Option("", "--npus", metavar="LIST", help="NPUs to show, such as 0,8,16. Default: at most 64."),
    most_slices: MaxSlices = 200_000,
    as_json: AsJson = False,
) -> None:
    """Write a timeline: lanes by NPU and kind, arrows from sends to receives, load of links and queues over time."""
    from nadi.insight.runs import Run
    from nadi.reports.run_timeline import write_run_timeline

    try:
        chosen = [int(word) for word in npus.split(",")] if npus else []
    except ValueError:
        raise ConfigError(f"--npus {npus!r}: expected numbers, as 0,8,16") from None
    with unwound():
        shown = write_run_timeline(out, Run(folder), chosen, most_slices)
    print_timeline(out, shown, f", {shown.counters:,} counters", as_json=as_json)
