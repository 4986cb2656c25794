"""Commands of `nadi trace` that run on real hardware: recording of a training script, and execution of traces."""

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi import inputs
from nadi.cli.options import AsJson, TracesOut, named_path
from nadi.cli.output import print_json, print_table
from nadi.errors import ConfigError, OutputError
from nadi.inputs.errors import NadiError
from nadi.terminal import say

if TYPE_CHECKING:
    from nadi.workload import Program, TraceSet

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
    out: TracesOut,
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
    out: Path | None = typer.Option(None, "-o", "--out", metavar="DIR", parser=named_path, help=_MEASURED_OUT),
    against: Path | None = typer.Option(None, metavar="RUN_DIR", help=_AGAINST),
    as_json: AsJson = False,
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
    from nadi.reports.text.accuracy import accuracy_report as render_compared
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
