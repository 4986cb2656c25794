"""A replay on each rank, and the processes of a replay over gloo on this machine."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nadi.errors import OutputError
from nadi.launching.installation import nadi_command
from nadi.launching.world import RankGather
from nadi.studies.replay import outcome
from nadi.studies.replay.gloo import Gloo
from nadi.studies.replay.mpi import Mpi
from nadi.studies.replay.player import play
from nadi.studies.replay.steps import steps_of
from nadi.workload import Program, TraceSet

STORE = "NADI_REPLAY_STORE"  # environment variable with the URL of the file through which local ranks connect
_POLL_S = 0.05  # interval in seconds between checks whether a rank has failed
_NS_PER_MICRO = 1000


class ReplayRequest(NamedTuple):
    """Settings of a replay."""

    over: str  # transport, "mpi" or "gloo"
    sleeps: bool  # whether compute and memory nodes sleep for their duration
    out: Path | None  # prefix of the traces with measured times; None = do not write traces


def replay(request: ReplayRequest, traces: TraceSet, program: Program, ranks: RankGather) -> dict[str, Any]:
    """Replay this rank's trace with all other ranks, which also call it; return the document, or raise OutputError.

    Args:
        request: The options of the command.
        traces: The traces of all ranks.
        program: The messages and collectives of all ranks.
        ranks: This rank and the means to exchange values with the others.
    """
    steps = steps_of(ranks.rank, traces, program)
    is_mpi = request.over == "mpi"
    transport = Mpi(ranks.communicator, steps.groups) if is_mpi else Gloo(ranks.rank, steps.groups)
    # a barrier: without it, the first collective would count the start of slower ranks as waiting
    ranks.exchange(None)
    start_micros = time.time_ns() // _NS_PER_MICRO
    times = play(steps, transport, sleeps=request.sleeps)
    took_ns = int((times.start_ns + times.duration_ns).max(initial=0))
    parts = ranks.exchange((outcome.rank_operations(steps, times), took_ns))
    failure = ""
    if request.out:
        try:
            measured = outcome.with_times(steps, times, start_micros, sleeps=request.sleeps)
            outcome.write(request.out, ranks.rank, measured)
        except OSError as error:
            failure = f"{request.out}.{ranks.rank}.et: {error.strerror or error}; the trace is not written"
    # all ranks learn of a failed write and leave together; one that raised before would let the others wait in close()
    failures = [each for each in ranks.exchange(failure) if each]
    transport.close()
    if failures:
        raise OutputError(failures[0])
    return outcome.document([operations for operations, _ in parts], [each for _, each in parts], request.over)


def run_local_ranks(num_ranks: int, arguments: Sequence[str]) -> int:
    """Run `nadi trace replay` on local ranks, a process each, until one fails; return its exit code, else 0.

    Args:
        num_ranks: The number of processes to start.
        arguments: The arguments of `nadi trace replay`.
    """
    with tempfile.TemporaryDirectory(prefix="nadi-replay-") as folder:
        store = {STORE: f"file://{folder}/store", "WORLD_SIZE": str(num_ranks)}
        command = nadi_command(["trace", "replay", *arguments])
        processes = [
            subprocess.Popen(command, env=os.environ | store | {"RANK": str(rank)})  # noqa: S603 - this project's own command
            for rank in range(num_ranks)
        ]
        try:
            while True:
                codes = [process.poll() for process in processes]
                failed = next((code for code in codes if code), 0)
                # peers of a rank that has failed would wait for it until the timeout of gloo
                if failed or None not in codes:
                    return failed
                time.sleep(_POLL_S)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
                process.wait()
