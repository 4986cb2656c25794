"""`nadi trace reduce`: remove nodes and dependencies that do not affect the simulated time."""

import json
from pathlib import Path

import typer

from nadi.cli.options import named_path


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command(name="reduce")(reduce_)


def reduce_(
    path: Path = typer.Argument(metavar="PREFIX|DIR|FILE", help="Traces PREFIX.<npu>.et[.gz], a folder, a trace set."),
    out: Path = typer.Option(..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for the new traces."),
    without_host: bool = typer.Option(
        False,
        "--without-host",
        help="Drop all host operators regardless of their time, which changes the simulated time.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Drop nodes without duration, fuse chains of host operators, drop implied dependencies; simulated time stays."""
    import shutil

    from et.reshape import find_files, reduce_trace
    from et.reshape.files import companions
    from nadi.launching.ending import unwound
    from nadi.reports.text.reshape import render_reduced
    from nadi.terminal.tables import console
    from workload.trace_sets.files import with_node_counts
    from workload.trace_sets.folder import staged_traces

    files, beside = find_files(path), companions(path)
    names = [file.path.name for file in files] + sorted((file.name for file in beside), key="traces.json".__eq__)
    found = {}
    with unwound(), staged_traces(out, names, "these traces") as staging:
        for file in files:
            name = file.path.name
            found[name] = reduce_trace(file.path, staging / name, npu=file.npu, without_host=without_host)
        for other in beside:
            shutil.copyfile(other, staging / other.name)
        with_node_counts(staging, {name: result.kept for name, result in found.items()})
    if as_json:
        typer.echo(json.dumps({name: result._asdict() for name, result in found.items()}, indent=2))
    else:
        console().print(render_reduced(str(out), found))
