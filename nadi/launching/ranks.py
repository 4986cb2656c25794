"""Ranks of an MPI run: what started them, whether MPI agrees with it, and that they fail together.

A launcher puts the number of its processes into the environment, and MPI reports how many it connects. If the two
differ, each process forms a world of its own, and all would run the same simulation and overwrite each other's results.
This module refuses that case with a message that names a suitable launcher. For commands, only this module imports
mpi4py, and only if a launcher requires it.

Variables that launchers set, observed with Hydra 5.0.2, Open MPI 4.1.4 and SLURM 22.05:

    mpiexec of MPICH, Intel MPI     PMI_SIZE, PMI_RANK; inside sbatch also SLURM_STEP_*, of the step of its proxies
    mpirun of Open MPI              OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_RANK, PMIX_RANK; inside sbatch as above
    srun --mpi=pmi2                 PMI_SIZE, PMI_RANK, SLURM_STEP_NUM_TASKS, SLURM_PROCID
    srun --mpi=pmix                 PMIX_RANK, SLURM_STEP_NUM_TASKS, SLURM_PROCID
    srun --mpi=none                 SLURM_STEP_NUM_TASKS, SLURM_PROCID
    the batch script itself         SLURM_NTASKS and SLURM_PROCID, but no SLURM_STEP_ID

All ranks raise an error of one rank, so that none waits for the others. Every exchange carries the state of each rank.
A rank that fails reports its error in its next exchange, and the others raise that error. This requires that all ranks
do the same exchanges (`together`); inside the engine's windows a failing rank ends the others through MPI_Abort.
"""

import importlib.util
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nadi.compiling import defect_text
from nadi.errors import exit_code_of
from nadi.inputs.errors import InputError, NadiError
from nadi.workload import Exchange, alone

# Function of this rank's value, which must be picklable; rank 0 gets the values of all ranks in rank order, others None
Gather = Callable[[Any], list[Any] | None]


class RankGather(NamedTuple):
    """This rank and its connections to the others."""

    exchange: Exchange  # Function that returns the values of all ranks on every rank
    gather: Gather  # Function that returns the values of all ranks on rank 0
    rank: int = 0  # Number of this rank
    size: int = 1  # Number of ranks
    communicator: Any = None  # Communicator of mpi4py, None = there are no other ranks


ALONE = RankGather(alone, alone)


class AgreedError(NadiError):
    """An error of one rank that all ranks raise."""

    agreed = True

    def __init__(self, text: str, exit_code: int, *, of_a_file: bool = False) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # exit code of the original error
        self.of_a_file = of_a_file  # True = a file could not be read or written, and the text is the reason


def ranks_of(communicator: Any) -> RankGather:  # noqa: ANN401 - mpi4py is optional
    """Return the ranks of an MPI communicator."""

    def exchange(value: Any) -> list[Any]:  # noqa: ANN401 - whatever can be pickled
        return _exchange_or_raise(communicator, value, None)

    def gather(value: Any) -> list[Any] | None:  # noqa: ANN401 - whatever can be pickled
        _exchange_or_raise(communicator, None, None)
        gathered: list[Any] | None = communicator.gather(value)
        return gathered

    return RankGather(exchange, gather, communicator.Get_rank(), communicator.Get_size(), communicator)


@contextmanager
def together(ranks: RankGather) -> Iterator[None]:
    """Run a block with the same exchanges on all ranks; all ranks complete it, or all raise."""
    if ranks.communicator is None:
        yield
        return
    try:
        yield
    except AgreedError:
        raise
    except Exception as error:
        _exchange_or_raise(ranks.communicator, None, error)
        raise  # not reached: agreeing on an error raises it
    _exchange_or_raise(ranks.communicator, None, None)


def _exchange_or_raise(communicator: Any, value: Any, own_error: Exception | None) -> list[Any]:  # noqa: ANN401 - mpi4py is optional
    """Return the values of all ranks; raise the error of the lowest rank that has one."""
    own_failure = None if own_error is None else _failure(own_error, communicator.Get_rank())
    gathered = communicator.allgather((value, own_failure))
    for _, failure in gathered:
        if failure is not None:
            text, exit_code, of_a_file = failure
            raise AgreedError(text, exit_code, of_a_file=of_a_file) from own_error
    return [own_value for own_value, _ in gathered]


def _failure(error: Exception, rank: int) -> tuple[str, int, bool]:
    """Return the text, the exit code and whether the error concerns a file; a defect's text names rank and line."""
    if isinstance(error, OSError):
        return error.strerror or str(error), exit_code_of(error), True
    if hasattr(error, "exit_code"):
        return str(error), exit_code_of(error), False
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"rank {rank}: {defect_text(error)} ({where}); this is a defect", 1, False


# Variable that makes each process a run of its own if it is "none", whatever started the process
LAUNCHER_VARIABLE = "NADI_LAUNCHER"
_SIZE_AND_RANK = {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK"}
_STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_FIRST_SPECIAL_STEP = 0xFFFF_FFF0  # first step number of SLURM's batch scripts, interactive shells and the like
# Seconds for which other ranks wait until rank 0 has printed the error: launchers kill all processes when one fails
_RANK_0_REPORTS_S = 1.0

Family = Literal["MPICH", "Open MPI", "Intel MPI"]
# Program that an MPI installs next to its mpiexec, and that no other MPI installs
_MARKER_PROGRAM: dict[Family, str] = {"MPICH": "mpichversion", "Open MPI": "ompi_info", "Intel MPI": "impi_info"}
# Command of SLURM that starts the ranks of an MPI
_SRUN_OPTIONS: dict[Family, str] = {
    "MPICH": "srun --mpi=pmi2",
    "Open MPI": "srun --mpi=pmix",
    "Intel MPI": "srun --mpi=pmi2 with I_MPI_PMI_LIBRARY naming SLURM's libpmi2.so",
}


class LauncherError(InputError):
    """MPI does not support how the processes were started; the message is a line with the fix, "" except on rank 0."""

    agreed = True


def launched_size(environ: Mapping[str, str]) -> tuple[int | None, str]:
    """Return the number of processes that the launcher started, and the variable that contains it.

    The innermost launcher counts: mpiexec inside sbatch starts its proxies with srun, so SLURM's variables come last.
    The number is None if the launcher does not set it; without a launcher the variable is "".

    Args:
        environ: The environment variables of this process.
    """
    if environ.get(LAUNCHER_VARIABLE) == "none":
        return None, ""
    for variable in _SIZE_AND_RANK:
        if variable in environ:
            return _number(environ, variable), variable
    if _in_srun(environ):
        variable = next(name for name in _STEP_SIZES if name in environ)
        return _number(environ, variable), variable
    return (None, "PMIX_RANK") if "PMIX_RANK" in environ else (None, "")


def launched_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank that the launcher assigned to this process; None without a launcher.

    Args:
        environ: The environment variables of this process.
    """
    _, variable = launched_size(environ)
    if not variable:
        return None
    return _number(environ, _SIZE_AND_RANK.get(variable, "SLURM_PROCID" if variable in _STEP_SIZES else "PMIX_RANK"))


def wants_mpi(environ: Mapping[str, str]) -> bool:
    """Return whether a launcher started this process together with others, so that it needs mpi4py.

    Args:
        environ: The environment variables of this process.
    """
    size, variable = launched_size(environ)
    return variable != "" and size != 1


def check(environ: Mapping[str, str], size: int, library: str) -> None:
    """Raise LauncherError if MPI.COMM_WORLD lacks processes that were started.

    Args:
        environ: The environment variables of this process.
        size: The number of processes in MPI.COMM_WORLD.
        library: The text of MPI.Get_library_version().
    """
    launched, variable = launched_size(environ)
    if launched is not None and launched != size:
        raise LauncherError(
            f"{variable}={launched}, but {_name(library)} sees {size} of these processes; {_fix(environ, library)}"
        )


def check_library(environ: Mapping[str, str], library: str) -> None:
    """Refuse combinations of launcher and library with which MPI_Init would end the process without a useful message.

    Open MPI's mpirun or SLURM must not start an MPICH without PMIx over PMIx, nor an srun without PMIx and PMI Open
    MPI.

    Args:
        environ: The environment variables of this process.
        library: The text of MPI.Get_library_version().
    """
    family = _family(library)
    over_pmix = "PMIX_RANK" in environ and "PMI_SIZE" not in environ
    without_pmix = "MPICH configure:" in library and "pmix" not in library.lower()
    if family == "MPICH" and over_pmix and without_pmix:
        by = "by Open MPI's mpirun" if "OMPI_COMM_WORLD_SIZE" in environ else "over PMIx"
        raise LauncherError(f"started {by}, but mpi4py has loaded {_name(library)}; {_fix(environ, library)}")
    if family == "Open MPI" and _in_srun(environ) and not {"PMIX_RANK", "PMI_RANK"} & environ.keys():
        raise LauncherError(f"started by srun without PMIx, which {_name(library)} needs; {_fix(environ, library)}")


def connect(environ: Mapping[str, str]) -> Any | None:  # noqa: ANN401 - mpi4py is optional
    """Return the communicator of all ranks after MPI_Init; None for a single process, which does not load mpi4py.

    Without a fitting MPI, raise LauncherError; on all ranks but the first a moment later, with an empty message.

    Args:
        environ: The environment variables of this process.
    """
    if not wants_mpi(environ):
        return None
    try:
        return _world(environ)
    except LauncherError:
        if not launched_rank(environ):
            raise
        time.sleep(_RANK_0_REPORTS_S)
        raise LauncherError from None


def check_installed(num_ranks: int) -> None:
    """Raise LauncherError if several ranks would start with this Python, which has no mpi4py.

    Args:
        num_ranks: The number of ranks that would start.
    """
    if num_ranks > 1 and importlib.util.find_spec("mpi4py") is None:
        raise LauncherError(f"{num_ranks} ranks of {sys.executable}, but mpi4py is missing; pip install mpi4py mpich")


def connected_ranks(environ: Mapping[str, str]) -> RankGather:
    """Return this rank and the others, or a single rank without a launcher. Call it before anything imports mpi4py.

    Args:
        environ: The environment variables of this process.
    """
    communicator = connect(environ)
    if communicator is None:
        return ALONE

    return ranks_of(communicator)


def _world(environ: Mapping[str, str]) -> Any | None:  # noqa: ANN401 - mpi4py is optional
    """Return MPI.COMM_WORLD after MPI_Init; None if it is of one process."""
    try:
        import mpi4py
    except ImportError:
        launched, variable = launched_size(environ)
        started = f"{launched} processes were started ({variable})" if launched else f"{variable} is set"
        fix = f"pip install mpi4py mpich, or set {LAUNCHER_VARIABLE}=none for runs of one process"
        raise LauncherError(f"{started}, but mpi4py is missing; {fix}") from None
    mpi4py.rc.initialize = False  # MPI_Init ends the process if launcher and library do not fit
    mpi4py.rc.finalize = True
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason, fix = " ".join(str(error).split()), "pip install mpi4py mpich, or load the cluster's MPI"
        raise LauncherError(f"mpi4py finds no MPI ({reason}); {fix}") from None
    library = MPI.Get_library_version()
    if not MPI.Is_initialized():
        check_library(environ, library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # `check` explains a wrong launcher better
            MPI.Init_thread()
    size = MPI.COMM_WORLD.Get_size()
    check(environ, size, library)
    return MPI.COMM_WORLD if size > 1 else None


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _in_srun(environ: Mapping[str, str]) -> bool:
    """Return whether this process is a task of a SLURM step; batch scripts and interactive shells are not."""
    step = _number(environ, "SLURM_STEP_ID")
    return step is not None and step < _FIRST_SPECIAL_STEP and any(name in environ for name in _STEP_SIZES)


def _family(library: str) -> Family:
    """Return the MPI whose library describes itself in this text."""
    if "Open MPI" in library:
        return "Open MPI"
    return "Intel MPI" if "Intel" in library.split("\n", maxsplit=1)[0] else "MPICH"


def _name(library: str) -> str:
    """Return MPI and version from a library's own text: "MPICH Version:      5.0.2" becomes "MPICH 5.0.2"."""
    first = library.strip("\0 \n").split("\n", maxsplit=1)[0].split(",")[0]
    return " ".join(first.replace("Version:", " ").split())


def _fix(environ: Mapping[str, str], library: str) -> str:
    """Return advice how to start ranks with this MPI library."""
    family = _family(library)
    folder = Path(sys.executable).parent
    has_own_mpiexec = (folder / "mpiexec").is_file() and (folder / _MARKER_PROGRAM[family]).is_file()
    mpiexec = str(folder / "mpiexec") if has_own_mpiexec else f"the mpiexec of {family}"
    if "SLURM_JOB_ID" in environ:
        return f"use {_SRUN_OPTIONS[family]}, or {mpiexec} inside sbatch"
    return f"use {mpiexec}"
