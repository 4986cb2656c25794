"""Translation of traces into a Program: the work of each NPU as arrays for the engine."""

from nadi.workload.program.assembling import NOT_HERE, assemble, empty_rows, receive_key
from nadi.workload.program.building import SharedParts, WorkOfRanks
from nadi.workload.program.checks.sources import sources_of, write_mended
from nadi.workload.program.dividing import divided, further_rows, joined
from nadi.workload.program.durations import durations_ps, with_times_on
from nadi.workload.program.jobs import FabricJob, build_jobs, extended, switches_of
from nadi.workload.program.memory_pool import RemoteMemory, with_memory_nodes
from nadi.workload.program.program import FabricJobs
from nadi.workload.program.sends import SendColumns
