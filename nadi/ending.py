"""How a command ends before its time: by a signal, or on a rank that fails. Imports nothing heavy."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

FIRST_ENDS_US_S = 1.0
_SEGMENTS = "/dev/shm/mpich_shm_"  # noqa: S108 - files of MPICH, found by what this process has mapped
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignalError(BaseException):
    """The process was asked to end; `exit_code` is what a shell says of a process that a signal has ended."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextmanager
def unwound() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise EndedBySignalError in the block, so that it can clean up.

    Where they are ignored (nohup), handled by somebody else, or this is not the main thread, they are left alone.
    """
    try:
        ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
        for number in ours:
            signal.signal(number, _unwind)
    except ValueError:  # only the main thread may
        ours = []
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _unwind(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - how signals are told
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second one would break off the cleaning up
    raise EndedBySignalError(number)


def end_others(error: BaseException, code: int) -> None:
    """After an error that only this rank knows of, end the others, which may be waiting for it."""
    world = _others()
    if world is not None and not getattr(error, "agreed", False):
        sys.stdout.flush()
        sys.stderr.flush()
        _remove_segments()
        world.Abort(code)


def _remove_segments() -> None:
    """MPICH removes its files of shared memory only where MPI ends well; else a megabyte for each rank would stay."""
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            name = line.split()[-1]
            if name.startswith(_SEGMENTS):
                Path(name).unlink(missing_ok=True)


def speaks(error: BaseException) -> bool:
    """Whether this rank is the one to print an error: what all ranks raise rank 0 prints."""
    world = _others()
    return world is None or not getattr(error, "agreed", False) or bool(world.Get_rank() == 0)


def let_first_end() -> None:
    """After what reaches all ranks at once, as Ctrl-C does: rank 0 cleans up, says so, and ends the others."""
    world = _others()
    if world is not None and world.Get_rank() > 0:
        time.sleep(FIRST_ENDS_US_S)


def speaker(error: BaseException) -> str:
    """What stands before an error that only this rank knows of: its number, where there are others."""
    world = _others()
    if world is None or getattr(error, "agreed", False):
        return ""
    name = f"rank {world.Get_rank()}: "
    return "" if str(error).startswith(name) else name


def _others() -> Any | None:  # noqa: ANN401 - mpi4py is optional
    """The communicator, where this process is one of several ranks."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return None
    return mpi.COMM_WORLD
