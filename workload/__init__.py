"""Workloads: programs built from traces (groups, collectives, compute, memory), and traces generated from models.

`load_set` finds the trace files; `build_program` checks them against each other and returns the Program that the engine
runs. `collective_program` and `pairs_program` are the smallest programs. Wrong user input raises WorkloadError.
"""

from et.prefixes import npu_of
from workload.collectives import algorithms_of, closed_form, default_algorithm
from workload.collectives.algorithms.custom import with_path
from workload.collectives.custom import custom_files
from workload.collectives.plans.plan import Lane, Plans, each_its_own, everyone_alike
from workload.collectives.schedules.packed import Schedules, ScheduleSet
from workload.errors import WorkloadError
from workload.kinds import KINDS
from workload.program.building import build_program
from workload.program.durations import ComputeModel
from workload.program.micro import collective_program, hierarchical_program, pairs_program, permutation, uneven_program
from workload.program.program import Program
from workload.program.settings import CollectiveSettings
from workload.trace_sets.expansion import expand
from workload.trace_sets.files import read_set, write_set
from workload.trace_sets.load import TRACE_ENDINGS, files_of_traces, groups_of, load_set, load_traces
from workload.trace_sets.trace_set import TraceSet
