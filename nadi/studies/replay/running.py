"""A replay from traces to figures, on each rank; and ranks of gloo of one's own on this machine."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nadi.errors import OutputError
from nadi.launching.gather import RankGather
from nadi.launching.python import nadi_command
from nadi.studies.replay import outcome
from nadi.studies.replay.gloo import Gloo
from nadi.studies.replay.mpi import Mpi
from nadi.studies.replay.player import play
from nadi.studies.replay.steps import steps_of
from workload import Program, TraceSet

STORE = "NADI_REPLAY_STORE"
"""Where ranks that were started here meet: a file."""
_POLL_S = 0.05
_NS_PER_MICRO = 1000


class Replay(NamedTuple):
    """What is asked for.

    Attributes:
        over: "mpi" or "gloo".
        sleeps: compute and memory nodes take their time.
        out: beginning of the traces with measured times, None = none.
    """

    over: str
    sleeps: bool
    out: Path | None


def replayed(asked: Replay, traces: TraceSet, program: Program, ranks: RankGather) -> dict[str, Any]:
    """Replay the trace of this rank together with the others, which all call it; gives the figures of all.

    Raises:
        OutputError: the traces cannot be written.
    """
    steps = steps_of(ranks.rank, traces, program)
    is_mpi = asked.over == "mpi"
    transport = Mpi(ranks.communicator, steps.groups) if is_mpi else Gloo(ranks.rank, steps.groups)
    ranks.exchange(None)
    begun_micros = time.time_ns() // _NS_PER_MICRO
    times = play(steps, transport, sleeps=asked.sleeps)
    took = int((times.start_ns + times.duration_ns).max(initial=0))
    parts = ranks.exchange((outcome.part(steps, times), took))
    failure = ""
    if asked.out:
        try:
            outcome.write(asked.out, ranks.rank, outcome.with_times(steps, times, begun_micros, sleeps=asked.sleeps))
        except OSError as error:
            failure = f"{asked.out}.{ranks.rank}.et: {error.strerror or error}; the trace is not written"
    failures = [each for each in ranks.exchange(failure) if each]
    transport.close()
    if failures:
        raise OutputError(failures[0])
    return outcome.document([own for own, _ in parts], [each for _, each in parts], asked.over)


def spawned(ranks: int, arguments: Sequence[str]) -> int:
    """Run `nadi trace replay` on ranks of this machine, each a process; gives the exit code: of the first that fails.

    The others are ended when one fails.
    """
    with tempfile.TemporaryDirectory(prefix="nadi-replay-") as folder:
        store = {STORE: f"file://{folder}/store", "WORLD_SIZE": str(ranks)}
        command = nadi_command(["trace", "replay", *arguments])
        started = [
            subprocess.Popen(command, env=os.environ | store | {"RANK": str(rank)})  # noqa: S603 - ourselves
            for rank in range(ranks)
        ]
        try:
            while True:
                codes = [process.poll() for process in started]
                failed = next((code for code in codes if code), 0)
                if failed or None not in codes:
                    return failed
                time.sleep(_POLL_S)
        finally:
            for process in started:
                if process.poll() is None:
                    process.terminate()
                process.wait()
