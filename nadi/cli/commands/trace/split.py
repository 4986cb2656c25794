"""`nadi trace split`: divide a master trace into its original traces."""

from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.options import AsJson, TracesOut
from nadi.cli.output import print_json
from nadi.launching.ending import unwound
from nadi.terminal import say


def split(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Master trace of `nadi trace merge`.")],
    out: TracesOut,
    as_json: AsJson = False,
) -> None:
    """Divide a master trace into its original files, with their names, byte for byte."""
    from nadi.et.reshape import read_index
    from nadi.et.reshape import split as parted
    from nadi.workload.trace_sets import staged_traces

    index = read_index(file)
    names = [member.name for member in index.members] + [name for name, _ in index.companions]
    with unwound(), staged_traces(out, names, "these traces") as staging:
        parted(file, staging)
    if as_json:
        nodes = sum(member.nodes for member in index.members)
        print_json({"path": str(out), "files": names, "nodes": nodes}, indent=None)
        return
    say(f"{out}: {len(index.members):,} traces{''.join(f', {name}' for name, _ in index.companions)}")
