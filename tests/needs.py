"""What some tests need and not every machine has; tests that skip say which of it is missing."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
SHARED = Path(os.environ.get("NADI_SHARED") or Path(__file__).parents[2] / "shared")
"""Real inputs made by others; the fixture `shared_data` skips without them."""


def _absent(*programs):
    """What there is not beside this Python, of programs and mpi4py; else nothing."""
    absent = [program for program in programs if not (BIN / program).is_file()]
    absent += ["mpi4py"] * (importlib.util.find_spec("mpi4py") is None)
    return f"beside Python: no {', no '.join(absent)}" if absent else ""


NO_RANKS = _absent("mpiexec")
"""Why there can be no MPI ranks, or nothing."""
NO_MPICH = _absent("mpiexec", "mpichversion")
"""Why there can be no ranks of MPICH, or nothing."""

ranks = pytest.mark.skipif(bool(NO_RANKS), reason=NO_RANKS)
mpich = pytest.mark.skipif(bool(NO_MPICH), reason=NO_MPICH)
open_mpi = pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="no mpirun.openmpi on PATH")
