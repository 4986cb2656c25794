"""`nadi trace slice`: extract a part of the traces of all NPUs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from nadi.cli.options import AsJson, NodeIds, NodeNames, NpuNumbers, TracesOut, number_ranges
from nadi.cli.output import print_json, print_table
from nadi.errors import ConfigError
from nadi.launching.ending import unwound

_ANCESTORS = "Also write all nodes that these nodes wait for."
_PARTNERS = "Treatment of collectives and messages with selected parts: keep all, drop, refuse."
_MAX_NUMBERS = 1 << 24  # Number of ids or NPUs that options may list, to bound memory


def slice_(
    path: Annotated[Path, typer.Argument(metavar="PREFIX|DIR|FILE", help="Traces PREFIX.<npu>.et[.gz], or a folder.")],
    out: TracesOut,
    steps: str = typer.Option("", "--steps", metavar="LIST", help="Training steps, such as 0,2-3."),
    nodes: NodeIds = "",
    npus: NpuNumbers = "",
    name: NodeNames = [],
    with_ancestors: bool = typer.Option(False, "--with-ancestors", help=_ANCESTORS),
    partners: Literal["keep", "drop", "refuse"] = typer.Option("keep", help=_PARTNERS),
    as_json: AsJson = False,
) -> None:
    """Write the nodes that match all options; dependencies on removed nodes become dependencies on their ancestors."""
    import shutil

    from nadi.et.reshape import Selection, companions, find_files, slice_traces
    from nadi.reports.text.trace import render_sliced
    from nadi.workload.trace_sets import is_set, staged_traces

    if is_set(path):
        raise ConfigError(f"{path}: is a trace set, whose NPUs share traces; expected those of `nadi trace expand`")
    selection = Selection(
        steps=_numbers("--steps", steps),
        ids=number_ranges("--nodes", nodes),
        npus=_numbers("--npus", npus),
        names=tuple(name) or None,
        with_ancestors=with_ancestors,
    )
    files = find_files(path)
    beside = [file for file in companions(path) if file.name != "traces.json"]
    chosen = [file for file in files if selection.npus is None or file.npu in selection.npus]
    if not chosen:
        raise ConfigError(f"--npus {npus}: no trace in {path} is of these; expected some of its {len(files)} NPUs")
    names = [file.path.name for file in chosen] + [file.name for file in beside]
    with unwound(), staged_traces(out, names, "these traces") as staging:
        parts = slice_traces(files, staging, selection, partners)
        for file in beside:
            shutil.copyfile(file, staging / file.name)
    if as_json:
        print_json([{**part._asdict(), "file": part.file.path.name} for part in parts])
    else:
        print_table(render_sliced(str(out), parts))


def _numbers(option: str, text: str) -> frozenset[int] | None:
    """Return all numbers of a list such as 0,2-3; None for an empty text."""
    ranges = number_ranges(option, text)
    if ranges is None:
        return None
    if sum(last - first for first, last in ranges) > _MAX_NUMBERS:
        raise ConfigError(f"{option}: found more than {_MAX_NUMBERS:,} numbers; expected fewer")
    return frozenset(i for first, last in ranges for i in range(first, last + 1))
