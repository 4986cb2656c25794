"""`nadi trace split`: divide a master trace into its original traces."""

import json
from pathlib import Path

import typer

from nadi.cli.options import named_path


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(split)


def split(
    file: Path = typer.Argument(metavar="FILE", help="Master trace of `nadi trace merge`."),
    out: Path = typer.Option(..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for the traces."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Divide a master trace into its original files, with their names, byte for byte."""
    from et.reshape import read_index
    from et.reshape import split as parted
    from nadi.launching.ending import unwound
    from nadi.terminal.printing import say
    from workload.trace_sets.folder import staged_traces

    index = read_index(file)
    names = [member.name for member in index.members] + [name for name, _ in index.companions]
    with unwound(), staged_traces(out, names, "these traces") as staging:
        parted(file, staging)
    if as_json:
        nodes = sum(member.nodes for member in index.members)
        typer.echo(json.dumps({"path": str(out), "files": names, "nodes": nodes}))
        return
    say(f"{out}: {len(index.members):,} traces{''.join(f', {name}' for name, _ in index.companions)}")
