"""`nadi trace merge`: merge the traces of all NPUs into one master trace."""

from pathlib import Path

import typer

from nadi.cli.options import AsJson, named_path
from nadi.cli.output import print_json
from nadi.launching.ending import unwound
from nadi.terminal import say

_PATHS = "Traces PREFIX.<npu>.et[.gz], a folder, or single files."


def merge(
    paths: list[Path] = typer.Argument(metavar="PREFIX|DIR|FILE...", help=_PATHS),
    out: Path = typer.Option(..., "-o", "--out", metavar="FILE", parser=named_path, help="Master trace to write."),
    as_json: AsJson = False,
) -> None:
    """Merge the traces of all NPUs into one file, which `nadi trace split` divides into the same files again."""
    from nadi.et.reshape import companions, find_files
    from nadi.et.reshape import merge as merged

    files = [file for place in paths for file in find_files(place)]
    companion_files = [file for place in paths if len(paths) == 1 for file in companions(place)]
    with unwound():
        index = merged(out, files, companion_files)
    nodes = sum(member.nodes for member in index.members)
    if as_json:
        companion_names = [file.name for file in companion_files]
        document = {"path": str(out), "files": len(files), "nodes": nodes, "companions": companion_names}
        print_json(document, indent=None)
        return
    also = f", with {', '.join(file.name for file in companion_files)}" if companion_files else ""
    say(f"{out}: {nodes:,} nodes of {len(files):,} traces{also}; `nadi trace split {out} -o DIR` makes them again")
