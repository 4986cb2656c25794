"""`nadi trace expand`: write the plain traces of a trace set."""

from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.options import Prefix, TracesOut
from nadi.launching.ending import unwound
from nadi.terminal import say


def expand(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Trace set: a folder with traces.json.")],
    out: TracesOut,
    prefix: Prefix = "trace",
) -> None:
    """Write a trace set in the form that other tools read: a file per NPU with its own peers, and groups.json."""
    from nadi.workload import expand as expanded
    from nadi.workload import read_set

    with unwound():
        traces = read_set(folder, keep_others=True)
        made = expanded(traces, out, prefix)
    running = int((traces.trace_of_npu >= 0).sum())
    groups = f', groups = "{made.parent / "groups.json"}"' if traces.families else ""
    say(f'{running} traces; in a run file: [workload] traces = "{made}"{groups}')
