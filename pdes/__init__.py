"""The engine's public face: everything that simulates a fabric and a workload by packets or messages.

Code outside this folder imports only this module and three others, which offer parts of the engine to special uses:

- `pdes.wire`: what the packet model says in closed form, such as sizes on the wire, round trips, buffers and limits.
- `pdes.kernels`: how compiled kernels are written, their memory, and names of inputs in annotations.
- `pdes.traces`: how an NPU works through its trace, for models that do it in another way.

None of them imports Numba when it is imported.
"""

from nadi.pdes import fidelity
from nadi.pdes.checkpoint.saved_state import Checkpoints, SavedState
from nadi.pdes.construction.domains import may_replay
from nadi.pdes.construction.layout import Layout, Simulation, Snapshot, shares
from nadi.pdes.construction.settings import (
    CoupledCollectives,
    Faults,
    LinkFault,
    NpuFault,
    PauseStorm,
    Settings,
    SharedBuffer,
    down_sets,
)
from nadi.pdes.construction.worlds import build_world
from nadi.pdes.core.errors import RunError
from nadi.pdes.core.inputs import Setting, setting, settings_of
from nadi.pdes.core.memory import peak_rss_bytes
from nadi.pdes.core.state import LONGEST_RUN_PS
from nadi.pdes.driver import OpenNetwork, compile_all, run, run_divided
from nadi.pdes.fidelity import Fidelity, NetworkModel
from nadi.pdes.messages.message_loop import work_messages
from nadi.pdes.network import balancing, disciplines
from nadi.pdes.nic import congestion
from nadi.pdes.outcomes.outcome import COUNTERS, LINK_COLUMNS, MAX_LINES
from nadi.pdes.outcomes.results import FoldedRows, Results
from nadi.pdes.outcomes.stall import TOO_LATE_TEXT
from nadi.pdes.workers.processes import Processes
from nadi.pdes.workers.ranks import Ranks
from nadi.pdes.workers.team import work
from nadi.pdes.workers.worker_pool import NO_SNAPSHOT, SAVE, SAVE_AND_END, StoppedError, compile_kernels
