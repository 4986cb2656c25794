"""`nadi trace replay`: execute the communication of traces on real hardware."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.options import named_path

if TYPE_CHECKING:
    from nadi.launching.gather import RankGather
    from workload import Program, TraceSet

_MAX_RANKS = 1024
_OVER = "Library: mpi, started by mpiexec; or PyTorch's gloo, started by torchrun or --ranks."
_COMPUTE = "Action of compute and memory nodes: skip, or sleep for the duration in the trace."
_SIZE = "Meaning of comm_size of all-gather and gather: contribution or total."
_AGAINST = "Folder of a run of these traces to compare with; needs --out."

Traces = Annotated[Path, typer.Argument(metavar="TRACES", help="Prefix, file or trace set, as in run files.")]
Over = Annotated[str, typer.Option("--over", metavar="NAME", help=_OVER)]
RankCount = Annotated[
    int, typer.Option("--ranks", min=0, max=_MAX_RANKS, metavar="N", help="Number of gloo ranks to start.")
]
Compute = Annotated[str, typer.Option("--compute", metavar="NAME", help=_COMPUTE)]
Groups = Annotated[
    Path | None, typer.Option("--groups", metavar="FILE", help="Group file that defines the traces' groups.")
]
GatherSize = Annotated[str, typer.Option("--all-gather-size", metavar="WHAT", help=_SIZE)]
Strict = Annotated[bool, typer.Option("--strict/--no-strict", help="Refuse dependencies on nodes that a trace lacks.")]
Out = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="DIR", parser=named_path, help="Folder for the traces with measured times."),
]
Against = Annotated[Path | None, typer.Option("--against", metavar="RUN_DIR", help=_AGAINST)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(replay)


def replay(
    traces: Traces,
    over: Over = "mpi",
    rank_count: RankCount = 0,
    compute: Compute = "skip",
    groups: Groups = None,
    all_gather_size: GatherSize = "contribution",
    strict: Strict = True,
    out: Out = None,
    against: Against = None,
    as_json: AsJson = False,
) -> None:
    """Execute the communication of traces, one rank per NPU, and print the measured times."""
    from nadi.launching.launcher import connected_ranks

    ranks = connected_ranks(os.environ)
    from nadi.launching.world import together
    from nadi.studies.replay.gloo import torchrun_rank
    from nadi.studies.replay.running import ReplayRequest, replay, run_local_ranks

    at_gloo = torchrun_rank() if over == "gloo" else None
    with together(ranks):
        _check(over, rank_count, compute, all_gather_size, ranks.size, launched=at_gloo is not None)
        if against and not out:
            _refuse(f"--against {against}: found no --out; expected a folder for the measured traces")
        size = at_gloo[1] if at_gloo else rank_count or ranks.size
        found = _read(traces, size, groups, strict=strict, all_gather_size=all_gather_size)
        _make(out)
    if over == "gloo" and at_gloo is None:
        arguments = [str(traces), "--over", "gloo", "--compute", compute, "--all-gather-size", all_gather_size]
        arguments += ["--strict" if strict else "--no-strict", *(["--json"] if as_json else [])]
        for option, path in (("--groups", groups), ("--out", out), ("--against", against)):
            arguments += [option, str(path)] if path else []
        code = run_local_ranks(rank_count, arguments)
        if code:
            raise typer.Exit(code if code > 0 else 1)
        return
    if at_gloo:
        ranks = _met(*at_gloo)
    prefix = out / _stem(traces) if out else None
    done = replay(ReplayRequest(over, compute == "sleep", prefix), *found, ranks)
    if ranks.rank == 0:
        _say(done, against, prefix, as_json=as_json)


def _check(over: str, count: int, compute: str, all_gather_size: str, ranks: int, *, launched: bool) -> None:
    """Reject inconsistent options."""
    for option, value, known in (
        ("--over", over, ("mpi", "gloo")),
        ("--compute", compute, ("skip", "sleep")),
        ("--all-gather-size", all_gather_size, ("contribution", "total")),
    ):
        if value not in known:
            _refuse(f"{option} {value}: expected {' or '.join(known)}")
    if over == "mpi" and count:
        _refuse(f"--ranks {count}: found --over mpi; expected mpiexec -n {count} nadi trace replay")
    if over == "mpi" and ranks == 1:
        _refuse("--over mpi: found one rank; expected mpiexec -n N nadi trace replay, or --over gloo --ranks N")
    if over == "gloo" and not launched and not count:
        _refuse("--over gloo: found neither torchrun nor --ranks; expected --ranks N")


def _refuse(text: str) -> None:
    from nadi.errors import ConfigError

    raise ConfigError(text)


def _read(
    traces: Path, ranks: int, groups: Path | None, *, strict: bool, all_gather_size: str
) -> "tuple[TraceSet, Program]":
    from nadi.studies.replay.steps import read_traces, steps_of

    size: Literal["contribution", "total"] = "total" if all_gather_size == "total" else "contribution"
    found = read_traces(traces, ranks, groups, strict=strict, all_gather_size=size)
    for rank in range(ranks):
        if found[1].trace_of_npu[rank] < 0:
            steps_of(rank, *found)  # says what is wrong
    return found


def _make(out: Path | None) -> None:
    from nadi.errors import OutputError

    try:
        if out:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{out}: {error.strerror or error}; expected a folder to write traces to") from None


def _stem(traces: Path) -> str:
    """Return the prefix of the names of the result traces."""
    return "trace" if traces.is_dir() else traces.name.removesuffix(".gz").removesuffix(".et")


def _met(rank: int, size: int) -> "RankGather":
    """Connect the ranks of gloo."""
    from nadi.studies.replay.gloo import connect
    from nadi.studies.replay.running import STORE

    return connect(os.environ.get(STORE, "env://"), rank, size)


def _say(done: dict[str, Any], against: Path | None, prefix: Path | None, *, as_json: bool) -> None:
    from nadi.studies.replay.text import render
    from nadi.terminal.tables import console

    compared = None
    if against and prefix:
        from nadi.insight.measured.accuracy import document
        from nadi.insight.measured.clocks import estimate_clocks
        from nadi.insight.measured.timed_nodes import read_beside

        nodes = read_beside(against, prefix)
        compared = document(nodes, estimate_clocks(nodes))
    if as_json:
        typer.echo(json.dumps(done | ({"against": compared} if compared else {}), indent=2))
        return
    console().print(render(done))
    if compared:
        from nadi.reports.text.measured import render as render_compared

        console().print(render_compared(compared))
