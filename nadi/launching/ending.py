"""How a command ends before its time: by a signal, or on a rank that fails. Imports nothing heavy."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

FIRST_ENDS_US_S = 1.0
INTERRUPTED = 130
_SAME_PRESS_S = 0.5
"""Within so long a second SIGINT is the same press of Ctrl-C: terminal and launcher both tell a rank."""
_READ_S = 0.1
"""Once told to end all, MPICH's launcher forwards no more of what ranks have printed: it has so long to read that."""
_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
_SEGMENTS = "/dev/shm/mpich_shm_"  # noqa: S108 - files of MPICH, found by what this process has mapped
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignalError(BaseException):
    """The process was asked to end; `exit_code` is what a shell says of a process that a signal has ended."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Interrupts:
    """Ctrl-C: the first one raises KeyboardInterrupt, a later one ends the process at once.

    An exception of a signal handler is lost where C calls Python and cannot pass it on, as in callbacks of LLVM while
    kernels are compiled, or in a finalizer. So it is kept, and `check` raises it: progress and the end of a command
    call that.

    Attributes:
        pending: Exception that the handler of a signal has raised; None if no signal has come.
    """

    pending: BaseException | None = None
    _first_s = 0.0

    @classmethod
    def heed(cls) -> None:
        """Handle Ctrl-C from now on, unless it is ignored (a job of the background) or has another handler."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, cls._interrupt)
            usual = sys.unraisablehook
            sys.unraisablehook = lambda lost: None if cls.pending is not None else usual(lost)

    @classmethod
    def ignore(cls) -> None:
        """Have Ctrl-C change nothing from now on: the process is about to end."""
        if signal.getsignal(signal.SIGINT) == cls._interrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    @classmethod
    def check(cls) -> None:
        """Raise what a signal handler has raised, if it was lost."""
        if cls.pending is not None:
            raise cls.pending

    @classmethod
    def _interrupt(cls, number: int, frame: FrameType | None) -> None:  # noqa: ARG003 - the signature of signal handlers
        now_s = time.monotonic()
        if not isinstance(cls.pending, KeyboardInterrupt):
            cls.pending, cls._first_s = KeyboardInterrupt(), now_s
            raise cls.pending
        if now_s > cls._first_s + _SAME_PRESS_S:  # the user will not wait for the cleaning up; the next run does it
            say_interrupted()
            os._exit(INTERRUPTED)


def say_interrupted() -> None:
    """Print that the command was interrupted, on the first rank only; to the file descriptor, without a buffer."""
    if _is_first():
        os.write(2, b"nadi: error: interrupted\n")


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
        Interrupts.check()
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if isinstance(Interrupts.pending, EndedBySignalError):
            Interrupts.pending = None  # it is on its way


def _unwind(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of signal handlers
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second one would break off the cleaning up
    Interrupts.pending = EndedBySignalError(number)
    raise Interrupts.pending


def end_others(error: BaseException, code: int) -> None:
    """After an error that only this rank knows of, end the others, which may be waiting for it."""
    world = _others()
    if world is not None and not getattr(error, "agreed", False):
        sys.stdout.flush()
        sys.stderr.flush()
        _remove_segments()
        time.sleep(_READ_S)
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
    if world is None and isinstance(error, KeyboardInterrupt):
        return _is_first()
    return world is None or not getattr(error, "agreed", False) or bool(world.Get_rank() == 0)


def let_first_end() -> None:
    """After what reaches all ranks at once, as Ctrl-C does: rank 0 cleans up, says so, and ends the others."""
    world = _others()
    if world is not None and world.Get_rank() > 0:
        time.sleep(FIRST_ENDS_US_S)


def _is_first() -> bool:
    """Whether this is rank 0, or alone, by what the launcher says: MPI may not be there yet."""
    world = _others()
    if world is not None:
        return bool(world.Get_rank() == 0)
    if os.environ.get("NADI_LAUNCHER") == "none":
        return True
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"


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
