"""Workloads: programs built from traces (groups, collectives, compute, memory), and traces generated from models.

`load_set` finds the trace files; `build_program` checks them against each other and returns the Program that the engine
runs. `collective_program` and `pairs_program` are the smallest programs. Wrong user input raises WorkloadError.
"""

from nadi.workload.collectives import algorithms_of, closed_form, default_algorithm
from nadi.workload.collectives.algorithms.custom import with_path
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own, everyone_alike
from nadi.workload.collectives.schedules.packed import Schedules, ScheduleSet
from nadi.workload.errors import Exchange, WorkloadError, alone
from nadi.workload.kinds import KINDS
from nadi.workload.program.building import build_program
from nadi.workload.program.choosing import CollectiveSettings
from nadi.workload.program.durations import ComputeModel
from nadi.workload.program.micro import (
    collective_program,
    hierarchical_program,
    pairs_program,
    permutation,
    uneven_program,
)
from nadi.workload.program.program import Program
from nadi.workload.trace_sets.files import expand, read_set, write_set
from nadi.workload.trace_sets.load import groups_of, load_set, load_traces
from nadi.workload.trace_sets.trace_set import TraceSet
