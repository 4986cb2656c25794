"""The engine's public face: everything that simulates a fabric and a workload by packets or messages.

Code outside this folder imports only this module and five others, which offer parts of the engine to special uses:

- `pdes.parallel`: how a run is divided among threads, processes and ranks, compiled before it, and saved.
- `pdes.wire`: what the packet model says in closed form, such as sizes on the wire, round trips, buffers and limits.
- `pdes.kernels`: how compiled kernels are written, the memory that they work on, and names of inputs in annotations.
- `pdes.traces`: the traces of a program as arrays, for models that work through them in another way.
- `pdes.trace_steps`: how an NPU works through its trace: states of rows, lanes, and the kernels of each step.

None of them imports Numba when it is imported.
"""

from nadi.pdes import fidelity
from nadi.pdes.construction import build_world
from nadi.pdes.construction.domains import may_replay
from nadi.pdes.construction.faults import Faults, LinkFault, NpuFault, PauseStorm
from nadi.pdes.construction.layout import Simulation, Snapshot
from nadi.pdes.construction.settings import CoupledCollectives, Settings, SharedBuffer
from nadi.pdes.core import RunError, Setting, setting, settings_of
from nadi.pdes.core.state import LONGEST_RUN_PS
from nadi.pdes.driver import OpenNetwork, run
from nadi.pdes.fidelity import Fidelity, NetworkModel
from nadi.pdes.network import balancing, disciplines
from nadi.pdes.nic import congestion
from nadi.pdes.outcomes import KeptRows, Results
from nadi.pdes.outcomes.outcome import COUNTERS, LINK_COLUMNS, MAX_LINES
from nadi.pdes.outcomes.stall import TOO_LATE_TEXT
