"""Commands of `nadi trace` that write traces in other formats, files or parts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from nadi.cli import options
from nadi.cli.output import print_document, print_json, print_table
from nadi.errors import ConfigError
from nadi.launching.ending import unwound
from nadi.terminal import say

# Typical size of a node in a Chakra trace in bytes; a computation without attributes has 40, a collective 90
_NODE_BYTES = 60
_CHAKRA = "chakra"  # name of the format of trace sets
_SOURCE = "Format of INPUT if ambiguous, optionally with FORMAT:option=value,..."
_PATHS = "Traces PREFIX.<npu>.et[.gz], a folder, or single files."
_ANCESTORS = "Also write all nodes that these nodes wait for."
_PARTNERS = "Treatment of collectives and messages with selected parts: keep all, drop, refuse."
_MAX_NUMBERS = 1 << 24  # Number of ids or NPUs that options may list, to bound memory
_WITHOUT_HOST = "Drop all host operators regardless of their time, which changes the simulated time."


def convert(
    sources: list[Path] = typer.Argument(metavar="INPUT...", help="Files or a folder of one format, or a trace set."),
    out: Path = typer.Option(
        ..., "-o", "--out", metavar="DIR", parser=options.named_path, help="Folder for the results."
    ),
    source: str = typer.Option("", "--from", metavar="FORMAT", help=_SOURCE),
    target: str = typer.Option(_CHAKRA, "--to", metavar="FORMAT", help="Format of the results."),
    prefix: options.Prefix = "trace",
    as_json: bool = typer.Option(False, "--json", help="Print inputs, results and losses as JSON."),
) -> None:
    """Convert traces of PyTorch, ASTRA-sim, SimAI or GOAL to Chakra traces, and Chakra traces to JSON or GOAL."""
    from nadi.et import advising
    from nadi.et.formats import chakra, chosen, format_of
    from nadi.reports.text.trace import render_converted
    from nadi.workload import read_set
    from nadi.workload.trace_sets import check_prefix, expanded_tables, is_set, staged_traces

    check_prefix(prefix)
    target, writer, to_options = chosen(target, "write", "--to")
    of_set = len(sources) == 1 and is_set(sources[0])
    source = source or (_CHAKRA if of_set else format_of(sources[0]))
    source, reader, from_options = chosen(source, "read", "--from")
    with unwound():
        if of_set and source == _CHAKRA:
            strict = chakra.is_strict(from_options)
            with advising(chakra.NOT_STRICT_OPTION):
                traces = expanded_tables(read_set(sources[0], strict=strict, keep_others=True))
        else:
            traces = reader.read(sources, from_options)
        names = writer.names(traces, prefix)
        with staged_traces(out, names, "these traces", traces.nodes_each * _NODE_BYTES) as staging:
            writer.write(traces, staging, prefix, to_options)
    result = {"from": source, "to": target, "folder": str(out), "files": names, "npus": len(traces.tables)}
    result |= {"groups": len(traces.groups), "notes": list(traces.notes), "report": dict(traces.report)}
    print_document(result, render_converted, as_json=as_json)


def expand(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Trace set: a folder with traces.json.")],
    out: options.TracesOut,
    prefix: options.Prefix = "trace",
) -> None:
    """Write a trace set in the form that other tools read: a file per NPU with its own peers, and groups.json."""
    from nadi.workload import expand as expanded, read_set

    with unwound():
        traces = read_set(folder, keep_others=True)
        made = expanded(traces, out, prefix)
    running = int((traces.trace_of_npu >= 0).sum())
    groups = f', groups = "{made.parent / "groups.json"}"' if traces.families else ""
    say(f'{running} traces; in a run file: [workload] traces = "{made}"{groups}')


def merge(
    paths: list[Path] = typer.Argument(metavar="PREFIX|DIR|FILE...", help=_PATHS),
    out: Path = typer.Option(
        ..., "-o", "--out", metavar="FILE", parser=options.named_path, help="Master trace to write."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Merge the traces of all NPUs into one file, which `nadi trace split` divides into the same files again."""
    from nadi.et.reshape import companions, find_files, merge as merged

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


def split(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Master trace of `nadi trace merge`.")],
    out: options.TracesOut,
    as_json: options.AsJson = False,
) -> None:
    """Divide a master trace into its original files, with their names, byte for byte."""
    from nadi.et.reshape import read_index, split as parted
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


def slice_(
    path: Annotated[Path, typer.Argument(metavar="PREFIX|DIR|FILE", help="Traces PREFIX.<npu>.et[.gz], or a folder.")],
    out: options.TracesOut,
    steps: str = typer.Option("", "--steps", metavar="LIST", help="Training steps, such as 0,2-3."),
    nodes: options.NodeIds = "",
    npus: options.NpuNumbers = "",
    name: options.NodeNames = [],
    with_ancestors: bool = typer.Option(False, "--with-ancestors", help=_ANCESTORS),
    partners: Literal["keep", "drop", "refuse"] = typer.Option("keep", help=_PARTNERS),
    as_json: options.AsJson = False,
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
        ids=options.number_ranges("--nodes", nodes),
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
    ranges = options.number_ranges(option, text)
    if ranges is None:
        return None
    if sum(last - first for first, last in ranges) > _MAX_NUMBERS:
        raise ConfigError(f"{option}: found more than {_MAX_NUMBERS:,} numbers; expected fewer")
    return frozenset(i for first, last in ranges for i in range(first, last + 1))


def reduce_(
    path: options.Traces,
    out: options.TracesOut,
    without_host: bool = typer.Option(False, "--without-host", help=_WITHOUT_HOST),
    as_json: options.AsJson = False,
) -> None:
    """Drop nodes without duration, fuse chains of host operators, drop implied dependencies; simulated time stays."""
    import shutil

    from nadi.et.reshape import companions, find_files, reduce_trace
    from nadi.reports.text.trace import render_reduced
    from nadi.workload.trace_sets import staged_traces, with_node_counts

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
        print_json({name: result._asdict() for name, result in found.items()})
    else:
        print_table(render_reduced(str(out), found))
