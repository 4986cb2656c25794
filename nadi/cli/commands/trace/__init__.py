"""`nadi trace`: the tools for Chakra traces, which `_COMMANDS` lists.

Those that look at traces are here, and those that run on real hardware: recording of a training script, and execution
of traces. The modules beside this one have others, by what they do to traces.
"""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi import inputs
from nadi.cli import options
from nadi.cli.commands.trace import imitation, transformation
from nadi.cli.output import print_document, print_json, print_table, print_timeline
from nadi.errors import ConfigError, OutputError
from nadi.inputs.errors import NadiError
from nadi.inputs.limits import MAX_NPUS
from nadi.launching.ending import unwound
from nadi.terminal import say

if TYPE_CHECKING:
    from nadi.workload import Program, TraceSet

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


_COMMAND = "Training command, such as torchrun or python train.py."
_STEPS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_FILE = re.compile(r"kineto\.rank[0-9]+\.json")
_MAX_RANKS = 1024
_OVER = "Library: mpi, started by mpiexec; or PyTorch's gloo, started by torchrun or --ranks."
_RANKS = "Number of gloo ranks to start."
_COMPUTE = "Action of compute and memory nodes: skip, or sleep for the duration in the trace."
_SIZE = "Meaning of comm_size of all-gather and gather: contribution or total."
_MEASURED_OUT = "Folder for the traces with measured times."
_AGAINST = "Folder of a run of these traces to compare with; needs --out."


def collect(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help=_COMMAND)],
    out: options.TracesOut,
    steps: str = typer.Option("3", metavar="N|N-M", help="Steps to record, from 2; each ends with an optimizer."),
) -> None:
    """Run a training script and record some of its steps on every rank with PyTorch's profiler."""
    from nadi.et.pytorch.injected import nadi_collecting

    match = _STEPS.fullmatch(steps)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 2 <= first <= last < first + 1000:
        raise ConfigError(f"--steps {steps}: expected a step from 2 on, or a few of them as 3-5")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: is no folder, expected a folder for traces")
    before = _recordings(out)
    if before:
        raise ConfigError(f"{out}: holds traces of {len(before)} ranks, expected a folder without")
    folder = str(Path(nadi_collecting.__file__).parent)
    path = os.pathsep.join(part for part in (folder, os.environ.get("PYTHONPATH", "")) if part)
    variables = {
        nadi_collecting.FOLDER: str(out.absolute()),
        nadi_collecting.STEPS: ",".join(map(str, range(first, last + 1))),
        "PYTHONPATH": path,
    }
    with inputs.refusing(command[0], "a program that trains", ConfigError):
        code = subprocess.run(command, env=os.environ | variables, check=False).returncode  # noqa: S603 - the user's own
    if code:
        raise CollectError(f"{command[0]} has ended with code {code}")
    ranks = len(_recordings(out))
    if not ranks:
        raise CollectError(f"no step was recorded: {command[0]} ended before step {last} of a PyTorch optimizer did")
    say(f"{ranks} ranks; nadi trace convert {out} -o DIR makes Chakra traces of them")


def _recordings(folder: Path) -> list[str]:
    """Return the names of the Kineto traces in a folder, one per rank."""
    return [file.name for file in folder.iterdir() if _FILE.fullmatch(file.name)] if folder.is_dir() else []


class CollectError(NadiError, RuntimeError):
    """The script failed, or did not reach the steps to record."""


def replay(
    traces: Annotated[Path, typer.Argument(metavar="TRACES", help="Prefix, file or trace set, as in run files.")],
    over: str = typer.Option("mpi", metavar="NAME", help=_OVER),
    rank_count: int = typer.Option(0, "--ranks", min=0, max=_MAX_RANKS, metavar="N", help=_RANKS),
    compute: str = typer.Option("skip", metavar="NAME", help=_COMPUTE),
    groups: Path | None = typer.Option(None, metavar="FILE", help="Group file that defines the traces' groups."),
    all_gather_size: str = typer.Option("contribution", metavar="WHAT", help=_SIZE),
    strict: bool = typer.Option(True, "--strict/--no-strict", help="Refuse dependencies on nodes that a trace lacks."),
    out: Path | None = typer.Option(None, "-o", "--out", metavar="DIR", parser=options.named_path, help=_MEASURED_OUT),
    against: Path | None = typer.Option(None, metavar="RUN_DIR", help=_AGAINST),
    as_json: options.AsJson = False,
) -> None:
    """Execute the communication of traces, one rank per NPU, and print the measured times."""
    from nadi.launching.ranks import connected_ranks

    ranks = connected_ranks(os.environ)
    from nadi.launching.ranks import together
    from nadi.studies.replay import STORE, ReplayRequest, connect, replay, run_local_ranks, torchrun_rank

    gloo_rank = torchrun_rank() if over == "gloo" else None
    with together(ranks):
        _check(over, rank_count, compute, all_gather_size, ranks.size, is_launched=gloo_rank is not None)
        if against and not out:
            raise ConfigError(f"--against {against}: found no --out; expected a folder for the measured traces")
        size = gloo_rank[1] if gloo_rank else rank_count or ranks.size
        programs = _read(traces, size, groups, strict=strict, all_gather_size=all_gather_size)
        if out:
            with inputs.refusing(out, "a folder to write traces to", OutputError):
                out.mkdir(parents=True, exist_ok=True)
    if over == "gloo" and gloo_rank is None:
        arguments = [str(traces), "--over", "gloo", "--compute", compute, "--all-gather-size", all_gather_size]
        arguments += ["--strict" if strict else "--no-strict", *(["--json"] if as_json else [])]
        for option, path in (("--groups", groups), ("--out", out), ("--against", against)):
            arguments += [option, str(path)] if path else []
        code = run_local_ranks(rank_count, arguments)
        if code:
            raise typer.Exit(code if code > 0 else 1)
        return
    if gloo_rank:
        ranks = connect(os.environ.get(STORE, "env://"), *gloo_rank)
    name = "trace" if traces.is_dir() else traces.name.removesuffix(".gz").removesuffix(".et")
    prefix = out / name if out else None
    times = replay(ReplayRequest(over, compute == "sleep", prefix), *programs, ranks)
    if ranks.rank == 0:
        _print(times, against, prefix, as_json=as_json)


def _check(
    library: str, ranks_option: int, compute: str, all_gather_size: str, mpi_ranks: int, *, is_launched: bool
) -> None:
    """Reject inconsistent options; `is_launched` is whether torchrun started this process."""
    for option, value, known in (
        ("--over", library, ("mpi", "gloo")),
        ("--compute", compute, ("skip", "sleep")),
        ("--all-gather-size", all_gather_size, ("contribution", "total")),
    ):
        if value not in known:
            raise ConfigError(f"{option} {value}: expected {' or '.join(known)}")
    if library == "mpi" and ranks_option:
        raise ConfigError(
            f"--ranks {ranks_option}: found --over mpi; expected mpiexec -n {ranks_option} nadi trace replay"
        )
    if library == "mpi" and mpi_ranks == 1:
        raise ConfigError(
            "--over mpi: found one rank; expected mpiexec -n N nadi trace replay, or --over gloo --ranks N"
        )
    if library == "gloo" and not is_launched and not ranks_option:
        raise ConfigError("--over gloo: found neither torchrun nor --ranks; expected --ranks N")


def _read(
    traces: Path, num_ranks: int, groups: Path | None, *, strict: bool, all_gather_size: str
) -> "tuple[TraceSet, Program]":
    """Return the traces and the program of all ranks; raise an error if one of them has no trace."""
    from nadi.studies.replay import read_traces, steps_of

    size: Literal["contribution", "total"] = "total" if all_gather_size == "total" else "contribution"
    trace_set, program = read_traces(traces, num_ranks, groups, strict=strict, all_gather_size=size)
    for rank in range(num_ranks):
        if program.trace_of_npu[rank] < 0:
            steps_of(rank, trace_set, program)  # raises the error that explains it
    return trace_set, program


def _print(times: dict[str, Any], against: Path | None, measured_traces: Path | None, *, as_json: bool) -> None:
    """Print measured times, and their comparison with the run in `against` if there is one."""
    from nadi.insight.accuracy import accuracy_document
    from nadi.insight.measured import estimate_clocks, read_beside
    from nadi.reports.text.comparison import accuracy_report as render_compared
    from nadi.studies.replay import replay_table

    compared = None
    if against and measured_traces:
        nodes = read_beside(against, measured_traces)
        compared = accuracy_document(nodes, estimate_clocks(nodes))
    if as_json:
        print_json(times | ({"against": compared} if compared else {}))
        return
    print_table(replay_table(times))
    if compared:
        print_table(render_compared(compared))


_COMMANDS: dict[str, Callable[..., None]] = {
    "check": check,
    "collect": collect,
    "convert": transformation.convert,
    "expand": transformation.expand,
    "graph": graph,
    "merge": transformation.merge,
    "obfuscate": imitation.obfuscate,
    "reduce": transformation.reduce_,
    "replay": replay,
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
