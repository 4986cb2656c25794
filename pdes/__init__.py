"""The engine: kernels, windows, workers and the packet-level model. The folder that knows Numba and MPI."""

from pdes import balancing, congestion, fidelity
from pdes.build import build_world
from pdes.driver import run
from pdes.layout import Layout, shares
from pdes.memory import peak_rss_bytes
from pdes.message_run import run_messages
from pdes.processes import run_processes
from pdes.ranks import run_ranks
from pdes.results import Results, RunError
from pdes.schedule import Faults, LinkFault, NpuFault, down_sets
from pdes.settings import Settings, SharedBuffer

__all__ = [
    "Faults",
    "Layout",
    "LinkFault",
    "NpuFault",
    "Results",
    "RunError",
    "Settings",
    "SharedBuffer",
    "balancing",
    "build_world",
    "congestion",
    "down_sets",
    "fidelity",
    "peak_rss_bytes",
    "run",
    "run_messages",
    "run_processes",
    "run_ranks",
    "shares",
]
