"""`nadi trace slice`: extract a part of the traces of all NPUs."""

import json
from pathlib import Path
from typing import Literal

import typer

from nadi.cli.options import named_path, number_ranges

_MAX_NUMBERS = 1 << 24  # Number of ids or NPUs that options may list, to bound memory


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command(name="slice")(slice_)


def slice_(
    path: Path = typer.Argument(metavar="PREFIX|DIR|FILE", help="Traces PREFIX.<npu>.et[.gz], or a folder."),
    out: Path = typer.Option(..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for the new traces."),
    steps: str = typer.Option("", "--steps", metavar="LIST", help="Training steps, such as 0,2-3."),
    nodes: str = typer.Option("", "--nodes", metavar="LIST", help="Ids of nodes, such as 0-499,700."),
    npus: str = typer.Option("", "--npus", metavar="LIST", help="NPUs, such as 0-7,16."),
    name: list[str] = typer.Option(
        [], "--name", metavar="PATTERN", help="Names of nodes, such as 'step0/forward/*'. Repeatable."
    ),
    with_ancestors: bool = typer.Option(
        False, "--with-ancestors", help="Also write all nodes that these nodes wait for."
    ),
    partners: Literal["keep", "drop", "refuse"] = typer.Option(
        "keep", "--partners", help="Treatment of collectives and messages with selected parts: keep all, drop, refuse."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Write the nodes that match all options; dependencies on removed nodes become dependencies on their ancestors."""
    import shutil

    from et.reshape import Selection, find_files, slice_traces
    from et.reshape.files import companions
    from nadi.errors import ConfigError
    from nadi.launching.ending import unwound
    from nadi.reports.text.reshape import render_sliced
    from nadi.terminal.tables import console
    from workload.trace_sets.files import is_set
    from workload.trace_sets.folder import staged_traces

    if is_set(path):
        raise ConfigError(f"{path}: is a trace set, whose NPUs share traces; expected those of `nadi trace expand`")
    selection = Selection(
        steps=_numbers("--steps", number_ranges("--steps", steps)),
        ids=number_ranges("--nodes", nodes),
        npus=_numbers("--npus", number_ranges("--npus", npus)),
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
        typer.echo(json.dumps([{**part._asdict(), "file": part.file.path.name} for part in parts], indent=2))
    else:
        console().print(render_sliced(str(out), parts))


def _numbers(option: str, ranges: tuple[tuple[int, int], ...] | None) -> frozenset[int] | None:
    """Return all numbers of the ranges."""
    from nadi.errors import ConfigError

    if ranges is None:
        return None
    if sum(last - first for first, last in ranges) > _MAX_NUMBERS:
        raise ConfigError(f"{option}: found more than {_MAX_NUMBERS:,} numbers; expected fewer")
    return frozenset(i for first, last in ranges for i in range(first, last + 1))
