"""The engine's public face: everything that simulates a fabric and a workload by packets or messages.

Code outside this folder imports only this module and four others, which offer parts of the engine to special uses:

- `pdes.wire`: what the packet model says in closed form, such as sizes on the wire, round trips, buffers and limits.
- `pdes.kernels`: how compiled kernels are written, and the memory that they work on.
- `pdes.traces`: how an NPU works through its trace, for models that do it in another way.
- `pdes.arrays`: names of array types in annotations.

None of them imports Numba when it is imported.
"""

from pdes import fidelity
from pdes.build.islands import may_replay
from pdes.build.layout import Layout, shares
from pdes.build.schedule import Faults, LinkFault, NpuFault, PauseStorm, down_sets
from pdes.build.settings import CoupledCollectives, Settings, SharedBuffer
from pdes.build.simulation import Simulation, Snapshot
from pdes.build.worlds import build_world
from pdes.checkpoint.contract import Checkpoints, SavedState
from pdes.core.errors import RunError
from pdes.core.jit import jit_enabled
from pdes.core.memory import peak_rss_bytes
from pdes.core.setting import UNITS, Setting, setting, settings_of
from pdes.core.state import LONGEST_RUN_PS
from pdes.driver import run, run_divided
from pdes.fidelity import Fidelity, NetworkModel
from pdes.harvest.gathering import COUNTERS, LINK_COLUMNS, MAX_LINES
from pdes.harvest.stall import TOO_LATE_TEXT
from pdes.messages.message_loop import work_messages
from pdes.network import balancing, disciplines
from pdes.nic import congestion
from pdes.open_network import OpenNetwork
from pdes.results import FoldedRows, Results
from pdes.warm_up import compile_all
from pdes.workers.crew import compile_kernels
from pdes.workers.cuts import NO_CUT, SAVE, SAVE_AND_END, StoppedError
from pdes.workers.processes import Processes
from pdes.workers.ranks import Ranks
from pdes.workers.team import work
