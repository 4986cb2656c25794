"""`nadi trace`: the tools for Chakra traces; `_COMMANDS` lists them all, and those that look at traces are here.

A command is a function of this module or of one beside it, which are about what commands do to traces.
"""

from collections.abc import Callable
from pathlib import Path

import typer

from nadi.cli import options
from nadi.cli.commands.trace import imitation, recording, transformation
from nadi.cli.output import print_document, print_json, print_table, print_timeline
from nadi.errors import ConfigError
from nadi.inputs.limits import MAX_NPUS
from nadi.launching.ending import unwound
from nadi.terminal import say

_PATH = "Trace set or folder of plain traces; DIR/NAME for NAME.<npu>.et; or a single file."
_GROUP_FILE = "Group file. Default: groups.json or NAME.json beside the traces."
_MORE = "Further check, in a file of yours; may be repeated."
_FIXED_OUT = "Folder for fixed traces."
_PAGE_OUT = "Page with heat maps of the imbalance to write."
_MOST_NODES = "Limit of nodes for detailed analysis; it covers as many NPUs as fit."
_MAX_NODES = {".svg": 200, ".dot": 1000, ".graphml": 100_000}  # Default number of nodes by file format

_DRAWING_OUT = "FILE.svg, .dot (Graphviz) or .graphml."
_AROUND = "Id of a node to show with its neighbourhood."
_MOST = "Maximum number of nodes.  [default: 200, .dot 1000, .graphml 100000]"


def check(
    path: Path = typer.Argument(metavar="DIR|PREFIX|FILE", help=_PATH),
    groups: Path | None = typer.Option(None, "--groups", metavar="FILE", help=_GROUP_FILE),
    npus: int | None = typer.Option(None, "--npus", min=1, max=MAX_NPUS, help="Expected number of NPUs."),
    most: int = typer.Option(5, "--most", min=0, max=100, help="Maximum number of lines per kind of finding."),
    more: list[str] = typer.Option([], "--check", metavar="FILE.py", show_default=False, help=_MORE),
    as_json: options.AsJson = False,
    strict: bool = typer.Option(False, "--strict", help="Exit with code 2 for warnings too."),
    fix: bool = typer.Option(False, "--fix", help="Write fixed traces to -o, and check these."),
    out: Path | None = typer.Option(None, "-o", "--out", metavar="DIR", parser=options.named_path, help=_FIXED_OUT),
) -> None:
    """Check traces: errors, which a run refuses, warnings and notes. Exit code 2 if there are errors."""
    from nadi.et.checking import WARNING
    from nadi.et.checks import check_traces
    from nadi.reports.text.trace import check_report
    from nadi.workload.program import sources_of, write_mended

    if fix != (out is not None):
        raise ConfigError(f"{'--fix' if fix else '-o'}: found alone; expected --fix and -o DIR together")
    with unwound():
        sources = sources_of(path, groups=groups, npus=npus)
        mends = None
        if out is not None:
            mends = write_mended(sources, out)
            fixed = out if path.is_dir() else out / path.name
            sources = sources_of(fixed, groups=groups, npus=npus)
        report = check_traces(sources, files=more)
    if as_json:
        described = report.described(most)
        if mends is not None:
            described["mends"] = [
                {"what": m.what, "count": m.count, "examples": [e._asdict() for e in m.examples[:most]]} for m in mends
            ]
        print_json(described)
    else:
        print_table(check_report(report, most, mends))
    if not report.is_clean or (strict and report.count(WARNING)):
        raise typer.Exit(2)


def show(
    file: Path = typer.Argument(metavar="FILE|DIR", help="Trace NAME.<npu>.et or .et.gz, or folder of a trace set."),
    as_json: options.AsJson = False,
) -> None:
    """Show counts by type, bytes by collective, dependencies and first nodes of a trace, or the traces of a set."""
    from nadi import et
    from nadi.reports.text.trace import set_report, trace_report
    from nadi.workload.trace_sets import describe_set, is_set

    if is_set(file):
        print_document(describe_set(file), set_report, as_json=as_json)
    else:
        print_document(et.describe(file), trace_report, as_json=as_json)


def stats(
    path: options.Traces,
    out: Path | None = typer.Option(
        None, "-o", "--out", metavar="FILE.html", parser=options.named_path, help=_PAGE_OUT
    ),
    most_nodes: int = typer.Option(2_000_000, "--most-nodes", min=1, metavar="N", help=_MOST_NODES),
    as_json: options.AsJson = False,
) -> None:
    """Print operators, collectives, imbalance of sizes, waiting, overlap, and the critical path across ranks."""
    from nadi.et.statistics import statistics
    from nadi.reports.pages import check_page, write_page
    from nadi.reports.pages.traces import imbalance_page
    from nadi.reports.text.trace import statistics_report
    from nadi.workload.trace_sets import read_ranks

    if out is not None:
        check_page(out)
    with unwound():
        found = statistics(read_ranks(path), most_nodes)
        if out is not None:
            write_page(out, imbalance_page(f"Traces of {path}", found))
    document = {"path": str(path), **found}
    print_document(document, lambda _: statistics_report(str(path), found), as_json=as_json)
    if out is not None:
        say(f"{out}: ranks against collectives, coloured by deviation", err=as_json)


def graph(
    path: Path = typer.Argument(metavar="PREFIX|DIR|FILE", help="Trace, or traces of several NPUs."),
    out: Path = typer.Option(..., "-o", "--out", metavar="FILE", parser=options.named_path, help=_DRAWING_OUT),
    name: options.NodeNames = [],
    nodes: options.NodeIds = "",
    around: int | None = typer.Option(None, "--around", min=0, metavar="ID", help=_AROUND),
    hops: int = typer.Option(2, "--hops", min=0, metavar="N", help="Radius of the neighbourhood in dependencies."),
    npus: options.NpuNumbers = "",
    most: int | None = typer.Option(None, "--most", min=1, max=1_000_000, metavar="N", help=_MOST),
    as_json: options.AsJson = False,
) -> None:
    """Draw nodes and dependencies, only the first ones of a large trace, and print what is left out."""
    from nadi.et.framing import write_frames
    from nadi.et.views import NodeFilter, drawn, picture
    from nadi.workload.trace_sets import read_ranks

    ending = out.suffix.lower()
    if ending not in _MAX_NODES:
        raise ConfigError(f"-o {out}: found {out.suffix or 'no ending'!r}; expected .svg, .dot or .graphml")
    wanted = NodeFilter(tuple(name) or None, options.number_ranges("--nodes", nodes), around, hops)
    chosen = options.number_ranges("--npus", npus)
    with unwound():
        ranks = read_ranks(path)
        shown = [rank for rank in ranks if chosen is None or any(a <= rank.npu <= b for a, b in chosen)]
        if not shown:
            raise ConfigError(f"--npus {npus}: no trace in {path} is of these; expected some of its {len(ranks)} NPUs")
        found = picture(shown, wanted, most or _MAX_NODES[ending])
        write_frames(out, (text.encode() for text in drawn(found, ending.removeprefix("."))))
    if as_json:
        counts = {"nodes": len(found.nodes), "edges": len(found.edges), "left_out": found.left_out, "cut": found.cut}
        print_json({"path": str(out), **counts, "notes": found.notes()}, indent=None)
        return
    say(f"{out}: {len(found.nodes):,} nodes, {len(found.edges):,} arrows")
    for note in found.notes():
        say(f"  {note}")


def timeline(
    path: options.Traces,
    out: options.Timeline,
    most_slices: options.MaxSlices = 200_000,
    as_json: options.AsJson = False,
) -> None:
    """Write a timeline: lanes by NPU and kind, arrows from sends to receives; times recorded or by dependencies."""
    from nadi.reports.timelines import write_trace_timeline
    from nadi.workload.trace_sets import read_ranks

    with unwound():
        shown = write_trace_timeline(out, read_ranks(path), most_slices)
    print_timeline(out, shown, as_json=as_json)


_COMMANDS: dict[str, Callable[..., None]] = {
    "check": check,
    "collect": recording.collect,
    "convert": transformation.convert,
    "expand": transformation.expand,
    "graph": graph,
    "merge": transformation.merge,
    "obfuscate": imitation.obfuscate,
    "reduce": transformation.reduce_,
    "replay": recording.replay,
    "select": imitation.select,
    "show": show,
    "slice": transformation.slice_,
    "split": transformation.split,
    "stats": stats,
    "synth": imitation.synth,
    "timeline": timeline,
}
_OTHERS_OPTIONS = {"ignore_unknown_options": True}  # of a command that takes another one


def register(app: typer.Typer) -> None:
    """Add the group of commands.

    Args:
        app: The application of typer.
    """
    group = typer.Typer(help="Inspect, generate and transform Chakra execution traces and trace sets.")
    for name, command in _COMMANDS.items():
        group.command(name, context_settings=_OTHERS_OPTIONS if name == "collect" else None)(command)
    app.add_typer(group, name="trace")
