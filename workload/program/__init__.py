"""Translation of traces into a Program: the work of each NPU as arrays for the engine."""

from nadi.workload.program.building import SharedParts, WorkOfRanks
from nadi.workload.program.checks.sources import sources_of, write_mended
from nadi.workload.program.durations import RemoteMemory, durations_ps, with_memory_nodes, with_times_on
from nadi.workload.program.jobs import FabricJob, build_jobs, extended, switches_of
from nadi.workload.program.program import (
    NOT_HERE,
    FabricJobs,
    assemble,
    divided,
    empty_rows,
    further_rows,
    joined,
    receive_key,
)
from nadi.workload.program.sends import SendColumns
