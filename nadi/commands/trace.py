"""`nadi trace`: look at Chakra traces, and make plain ones of a trace set."""

import json
from pathlib import Path

import typer

from nadi.options import named_path


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Look at Chakra execution traces and trace sets.")
    group.command()(show)
    group.command()(expand)
    app.add_typer(group, name="trace")


def show(
    file: Path = typer.Argument(metavar="FILE|DIR", help="A trace, NAME.<npu>.et or .et.gz; or the folder of a set."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Counts by type, bytes by collective, dependencies, and the first nodes of a trace; of a set its traces."""
    import et
    from nadi.reports.trace import render, render_set
    from nadi.terminal.tables import console
    from workload.trace_sets.files import describe_set, is_set

    described = describe_set(file) if is_set(file) else et.describe(file)
    if as_json:
        typer.echo(json.dumps(described, indent=2))
    else:
        console().print(render_set(described) if is_set(file) else render(described))


def expand(
    folder: Path = typer.Argument(metavar="DIR", help="A trace set: a folder with traces.json."),
    out: Path = typer.Option(..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for the traces."),
    prefix: str = typer.Option("trace", "--prefix", metavar="NAME", help="Traces are called NAME.<npu>.et."),
) -> None:
    """Write a trace set as other tools read traces: a file for each NPU, with its own peers, and groups.json."""
    from nadi.launching.ending import unwound
    from nadi.terminal.printing import say
    from workload import expand as expanded
    from workload import read_set

    with unwound():
        traces = read_set(folder, keep_others=True)
        made = expanded(traces, out, prefix)
    running = int((traces.trace_of_npu >= 0).sum())
    groups = f', groups = "{made.parent / "groups.json"}"' if traces.families else ""
    say(f'{running} traces; in a run file: [workload] traces = "{made}"{groups}')
