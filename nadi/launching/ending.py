"""Early end of a command: by a signal, or by a rank that fails. This module imports nothing heavy."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

RANK_0_ENDS_OTHERS_S = 1.0  # Seconds for which other ranks wait for rank 0 to end them
INTERRUPTED = 130  # Exit code after Ctrl-C, as of a shell: 128 + SIGINT
# Seconds within which a second SIGINT counts as the same press of Ctrl-C: terminal and launcher both signal a rank
_SAME_PRESS_S = 0.5
# Seconds for MPICH's launcher to read the output of ranks before an abort, after which it forwards no more output
_LAUNCHER_READS_S = 0.1
_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
_SEGMENTS = "/dev/shm/mpich_shm_"  # noqa: S108 - prefix of MPICH's files, found by what this process has mapped
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignalError(BaseException):
    """A signal requested the end of the process; `exit_code` is the code of that signal in shells."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Interrupts:
    """Handling of Ctrl-C: the first one raises KeyboardInterrupt, a later one ends the process at once.

    An exception of a signal handler gets lost if C code calls Python and cannot pass it on, as in callbacks of LLVM
    during compilation, or in a finalizer. Therefore this class keeps the exception, and `check` raises it. The progress
    display and the end of a command call `check`.
    """

    pending: BaseException | None = None  # Exception that a signal handler raised; None = no signal has come
    _first_s = 0.0

    @classmethod
    def heed(cls) -> None:
        """Handle Ctrl-C from now on, unless it is ignored (a background job) or has another handler."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, cls._interrupt)
            usual = sys.unraisablehook
            sys.unraisablehook = lambda lost: None if cls.pending is not None else usual(lost)

    @classmethod
    def ignore(cls) -> None:
        """Ignore Ctrl-C from now on, because the process is about to end."""
        if signal.getsignal(signal.SIGINT) == cls._interrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    @classmethod
    def check(cls) -> None:
        """Raise the exception of a signal handler if it was lost."""
        if cls.pending is not None:
            raise cls.pending

    @classmethod
    def take(cls) -> BaseException | None:
        """Return the exception of a signal handler and forget it, because the command ends in its own way."""
        pending, cls.pending = cls.pending, None
        return pending

    @classmethod
    def _interrupt(cls, number: int, frame: FrameType | None) -> None:  # noqa: ARG003 - the signature of signal handlers
        """Handle SIGINT: raise KeyboardInterrupt, and end the process if another one follows."""
        now_s = time.monotonic()
        if not isinstance(cls.pending, KeyboardInterrupt):
            cls.pending, cls._first_s = KeyboardInterrupt(), now_s
            raise cls.pending
        if now_s > cls._first_s + _SAME_PRESS_S:  # the user does not wait for the cleanup; the next run does it
            say_interrupted()
            os._exit(INTERRUPTED)


def say_interrupted() -> None:
    """Print on the first rank that the command was interrupted, unbuffered to the file descriptor."""
    if _is_first():
        os.write(2, b"nadi: error: interrupted\n")


@contextmanager
def unwound() -> Iterator[None]:
    """Raise EndedBySignalError on SIGTERM and SIGHUP in the block, unless ignored (nohup) or handled otherwise."""
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
            Interrupts.pending = None  # it is propagating already


def _unwind(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of signal handlers
    """Handle a signal: ignore further ones and raise EndedBySignalError."""
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # a second signal would interrupt the cleanup
    Interrupts.pending = EndedBySignalError(number)
    raise Interrupts.pending


def end_others(error: BaseException, code: int) -> None:
    """End the other ranks after an error that only this rank knows of; they may be waiting for this rank.

    Args:
        error: The error that ends this rank.
        code: The exit code of the command.
    """
    world = _others()
    if world is not None and not getattr(error, "agreed", False):
        sys.stdout.flush()
        sys.stderr.flush()
        with suppress(OSError):  # MPICH removes its shared-memory files, a megabyte per rank, only after a normal end
            for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
                name = line.split()[-1]
                if name.startswith(_SEGMENTS):
                    Path(name).unlink(missing_ok=True)
        time.sleep(_LAUNCHER_READS_S)
        world.Abort(code)


def prints_error(error: BaseException) -> bool:
    """Return whether this rank prints an error; rank 0 prints errors that all ranks raise."""
    world = _others()
    if world is None and isinstance(error, KeyboardInterrupt):
        return _is_first()
    return world is None or not getattr(error, "agreed", False) or bool(world.Get_rank() == 0)


def wait_for_rank_0() -> None:
    """Wait, after a signal that reaches all ranks, until rank 0 has cleaned up and ends the other ranks."""
    world = _others()
    if world is not None and world.Get_rank() > 0:
        time.sleep(RANK_0_ENDS_OTHERS_S)


def _is_first() -> bool:
    """Return whether this is rank 0 or a single process, by the launcher's variables if MPI is not initialised yet."""
    world = _others()
    if world is not None:
        return bool(world.Get_rank() == 0)
    if os.environ.get("NADI_LAUNCHER") == "none":
        return True
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"


def error_prefix(error: BaseException) -> str:
    """Return the prefix of an error that only this rank knows of: its rank if there are several."""
    world = _others()
    if world is None or getattr(error, "agreed", False):
        return ""
    name = f"rank {world.Get_rank()}: "
    return "" if str(error).startswith(name) else name


def _others() -> Any | None:  # noqa: ANN401 - mpi4py is optional
    """Return the communicator if this process is one of several ranks, else None."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return None
    return mpi.COMM_WORLD
