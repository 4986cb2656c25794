"""Which launcher started this process, with how many others, and whether MPI agrees.

A launcher says in the environment how many processes it started. MPI says how many it sees. Where the two differ, each
process is a world of its own and all would run the same simulation and write over each other: that is refused, with
the launcher to use instead. Only this file imports mpi4py for commands, and only where a launcher asks for it.

What the launchers say, as seen with Hydra 5.0.2, Open MPI 4.1.4 and SLURM 22.05:

    mpiexec of MPICH, Intel MPI     PMI_SIZE, PMI_RANK; inside sbatch also SLURM_STEP_*, of the step of its proxies
    mpirun of Open MPI              OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_RANK, PMIX_RANK; inside sbatch as above
    srun --mpi=pmi2                 PMI_SIZE, PMI_RANK, SLURM_STEP_NUM_TASKS, SLURM_PROCID
    srun --mpi=pmix                 PMIX_RANK, SLURM_STEP_NUM_TASKS, SLURM_PROCID
    srun --mpi=none                 SLURM_STEP_NUM_TASKS, SLURM_PROCID
    the batch script itself         SLURM_NTASKS and SLURM_PROCID, but no SLURM_STEP_ID
"""

import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from nadi.launching.gather import ALONE as ALONE_RANKS
from nadi.launching.gather import RankGather

ALONE = "NADI_LAUNCHER"
"""Set to "none", each process is a run of its own, whatever started it."""
_SIZE_AND_RANK = {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK"}
_STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_FIRST_SPECIAL_STEP = 0xFFFF_FFF0
"""SLURM numbers batch scripts, interactive shells and the like from here on."""
_RANK_0_SPEAKS_S = 1.0
"""Launchers kill all processes when one fails: the others wait until rank 0 has said why."""

Family = Literal["MPICH", "Open MPI", "Intel MPI"]
_BESIDE: dict[Family, str] = {"MPICH": "mpichversion", "Open MPI": "ompi_info", "Intel MPI": "impi_info"}
"""A program that an MPI installs beside its mpiexec, and no other MPI does."""
_SRUN: dict[Family, str] = {
    "MPICH": "srun --mpi=pmi2",
    "Open MPI": "srun --mpi=pmix",
    "Intel MPI": "srun --mpi=pmi2 with I_MPI_PMI_LIBRARY naming SLURM's libpmi2.so",
}


class LauncherError(ValueError):
    """Processes were started in a way that MPI does not see. One line with the fix; empty where rank 0 says it."""

    exit_code = 2
    agreed = True


def launched_size(environ: Mapping[str, str]) -> tuple[int | None, str]:
    """How many processes the launcher started, and the variable that says so.

    The innermost launcher counts: mpiexec inside sbatch starts its proxies with srun, so SLURM is asked last.

    Returns:
        (None, "") without a launcher; (None, variable) where it does not say how many.
    """
    if environ.get(ALONE) == "none":
        return None, ""
    for variable in _SIZE_AND_RANK:
        if variable in environ:
            return _number(environ, variable), variable
    if _in_srun(environ):
        variable = next(name for name in _STEP_SIZES if name in environ)
        return _number(environ, variable), variable
    return (None, "PMIX_RANK") if "PMIX_RANK" in environ else (None, "")


def launched_rank(environ: Mapping[str, str]) -> int | None:
    """The rank that the launcher gave this process; None without a launcher."""
    _, variable = launched_size(environ)
    if not variable:
        return None
    return _number(environ, _SIZE_AND_RANK.get(variable, "SLURM_PROCID" if variable in _STEP_SIZES else "PMIX_RANK"))


def wants_mpi(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started this process beside others, so that mpi4py is needed."""
    size, variable = launched_size(environ)
    return variable != "" and size != 1


def check(environ: Mapping[str, str], size: int, library: str) -> None:
    """Refuse a communicator that lacks processes that the launcher started.

    Args:
        environ: of this process.
        size: of MPI.COMM_WORLD.
        library: MPI.Get_library_version().

    Raises:
        LauncherError: the sizes differ.
    """
    launched, variable = launched_size(environ)
    if launched is not None and launched != size:
        raise LauncherError(
            f"{variable}={launched}, but {_name(library)} sees {size} of these processes; {_fix(environ, library)}"
        )


def check_library(environ: Mapping[str, str], library: str) -> None:
    """Refuse what would end in MPI_Init, which says neither in one line nor with the fix what is wrong.

    Args:
        environ: of this process.
        library: MPI.Get_library_version().

    Raises:
        LauncherError: MPICH without PMIx is started over PMIx, by Open MPI's mpirun or SLURM; or Open MPI by an srun
            that offers neither PMIx nor PMI.
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
    """The communicator of all ranks, MPI initialised; None for a process on its own, which mpi4py is not loaded for.

    Raises:
        LauncherError: mpi4py or MPI is missing, or the launcher is of another MPI. Its text is empty on all ranks but
            the first, and comes there a moment later.
    """
    if not wants_mpi(environ):
        return None
    try:
        return _world(environ)
    except LauncherError:
        if not launched_rank(environ):
            raise
        time.sleep(_RANK_0_SPEAKS_S)
        raise LauncherError from None


def connected_ranks(environ: Mapping[str, str]) -> RankGather:
    """This rank and the others; alone without a launcher. To be called before anything imports mpi4py.

    Raises:
        LauncherError: as `connect`.
    """
    communicator = connect(environ)
    if communicator is None:
        return ALONE_RANKS
    from nadi.launching.world import ranks_of

    return ranks_of(communicator)


def _world(environ: Mapping[str, str]) -> Any | None:  # noqa: ANN401 - mpi4py is optional
    try:
        import mpi4py
    except ImportError:
        launched, variable = launched_size(environ)
        started = f"{launched} processes were started ({variable})" if launched else f"{variable} is set"
        raise LauncherError(
            f"{started}, but mpi4py is missing; pip install 'nadi[mpi]', or set {ALONE}=none for runs of one process"
        ) from None
    mpi4py.rc.initialize = False  # MPI_Init ends the process where launcher and library do not fit
    mpi4py.rc.finalize = True
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise LauncherError(
            f"mpi4py finds no MPI ({reason}); pip install 'nadi[mpi]', or load the cluster's MPI"
        ) from None
    library = MPI.Get_library_version()
    if not MPI.Is_initialized():
        check_library(environ, library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a wrong launcher, which `check` explains
            MPI.Init_thread()
    size = MPI.COMM_WORLD.Get_size()
    check(environ, size, library)
    return MPI.COMM_WORLD if size > 1 else None


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _in_srun(environ: Mapping[str, str]) -> bool:
    """Whether this is a task of a step: the batch script and an interactive shell are none."""
    step = _number(environ, "SLURM_STEP_ID")
    return step is not None and step < _FIRST_SPECIAL_STEP and any(name in environ for name in _STEP_SIZES)


def _family(library: str) -> Family:
    if "Open MPI" in library:
        return "Open MPI"
    return "Intel MPI" if "Intel" in library.split("\n", maxsplit=1)[0] else "MPICH"


def _name(library: str) -> str:
    """The MPI and its version: "MPICH Version:      5.0.2" becomes "MPICH 5.0.2"."""
    first = library.strip("\0 \n").split("\n", maxsplit=1)[0].split(",")[0]
    return " ".join(first.replace("Version:", " ").split())


def _fix(environ: Mapping[str, str], library: str) -> str:
    family = _family(library)
    folder = Path(sys.executable).parent
    beside = (folder / "mpiexec").is_file() and (folder / _BESIDE[family]).is_file()
    mpiexec = str(folder / "mpiexec") if beside else f"the mpiexec of {family}"
    if "SLURM_JOB_ID" in environ:
        return f"use {_SRUN[family]}, or {mpiexec} inside sbatch"
    return f"use {mpiexec}"
