"""The engine: kernels, windows, workers and the packet-level model. The folder that knows Numba and MPI."""

from pdes.build.layout import Layout, shares
from pdes.build.schedule import Faults, LinkFault, NpuFault, down_sets
from pdes.build.settings import Settings, SharedBuffer
from pdes.build.worlds import build_world
from pdes.core.errors import RunError
from pdes.core.memory import peak_rss_bytes
from pdes.driver import run, run_divided
from pdes.messages import fidelity
from pdes.network import balancing
from pdes.nic import congestion
from pdes.results import Results
from pdes.workers.processes import Processes
from pdes.workers.ranks import Ranks

__all__ = [
    "Faults",
    "Layout",
    "LinkFault",
    "NpuFault",
    "Processes",
    "Ranks",
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
    "run_divided",
    "shares",
]
