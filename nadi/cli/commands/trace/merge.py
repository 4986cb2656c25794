"""`nadi trace merge`: merge the traces of all NPUs into one master trace."""

import json
from pathlib import Path

import typer

from nadi.cli.options import named_path


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(merge)


def merge(
    paths: list[Path] = typer.Argument(
        metavar="PREFIX|DIR|FILE...", help="Traces PREFIX.<npu>.et[.gz], a folder, or single files."
    ),
    out: Path = typer.Option(..., "-o", "--out", metavar="FILE", parser=named_path, help="Master trace to write."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Merge the traces of all NPUs into one file, which `nadi trace split` divides into the same files again."""
    from et.reshape import find_files
    from et.reshape import merge as merged
    from et.reshape.files import companions
    from nadi.launching.ending import unwound
    from nadi.terminal.printing import say

    files = [file for place in paths for file in find_files(place)]
    companion_files = [file for place in paths if len(paths) == 1 for file in companions(place)]
    with unwound():
        index = merged(out, files, companion_files)
    nodes = sum(member.nodes for member in index.members)
    if as_json:
        document = {
            "path": str(out),
            "files": len(files),
            "nodes": nodes,
            "companions": [file.name for file in companion_files],
        }
        typer.echo(json.dumps(document))
        return
    also = f", with {', '.join(file.name for file in companion_files)}" if companion_files else ""
    say(f"{out}: {nodes:,} nodes of {len(files):,} traces{also}; `nadi trace split {out} -o DIR` makes them again")
