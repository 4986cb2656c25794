"""The engine: kernels, windows, workers and the packet-level model. The folder that knows Numba and MPI."""

from pdes.build import build_world
from pdes.driver import run
from pdes.results import Results, RunError
from pdes.settings import Settings

__all__ = ["Results", "RunError", "Settings", "build_world", "run"]
