"""How a failing rank ends: who prints the error, and whether the other ranks must be ended. Imports nothing heavy."""

import sys


def end_others(error: BaseException, code: int) -> None:
    """After an error that only this rank knows of, end the others, which may be waiting for it."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or getattr(error, "agreed", False) or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    if mpi.COMM_WORLD.Get_size() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.COMM_WORLD.Abort(code)


def speaks(error: BaseException) -> bool:
    """Whether this rank is the one to print an error: what all ranks raise rank 0 prints."""
    mpi = sys.modules.get("mpi4py.MPI")
    if not getattr(error, "agreed", False) or mpi is None or not mpi.Is_initialized():
        return True
    return bool(mpi.COMM_WORLD.Get_rank() == 0)
