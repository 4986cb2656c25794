"""Durations in place of operators: what a GPU takes for them is written into the trace."""

import dataclasses
from collections.abc import Callable

import numpy as np

from et import TraceTable
from inputs.units import PS_PER_US
from workload.compute.efficiency import IN_STEPS
from workload.compute.gpu import find_gpu
from workload.compute.times import ComputeTimes
from workload.node_kinds import COMPUTE
from workload.program.durations import ComputeModel, durations_ps
from workload.trace_sets.view import TraceView


def with_times_on(gpu: str | None) -> Callable[[TraceTable], TraceTable]:
    """What `with_recorded_times` does with the times of a GPU at the pace of training steps; of None, nothing.

    Raises:
        WorkloadError: a GPU that is not known.
    """
    if gpu is None:
        return lambda table: table
    times = ComputeTimes(find_gpu(gpu), pace=IN_STEPS)
    return lambda table: with_recorded_times(table, times)


def with_recorded_times(table: TraceTable, times: ComputeTimes) -> TraceTable:
    """A trace whose compute nodes of the accelerator say how long they take, in place of what they do.

    Nodes that have a duration keep it. Traces count whole microseconds: what rounding takes from one node is given to
    the next, so that the sum over a trace is right to a microsecond or, where nodes take less than one, to what the
    nodes that must take at least one add.

    Args:
        table: any trace.
        times: of operators on a GPU.

    Raises:
        WorkloadError: as `durations_ps`.
    """
    view = TraceView(table)
    exact_ps = durations_ps(view, ComputeModel(times=times))
    said = (view.kind == COMPUTE) & (table.duration_micros == 0) & (exact_ps > 0)
    micros = table.duration_micros.copy()
    micros[said] = _whole_micros(exact_ps[said])
    return dataclasses.replace(
        table,
        duration_micros=micros,
        num_ops=np.where(said, -1, table.num_ops),
        tensor_size=np.where(said, -1, table.tensor_size),
        operators=np.zeros(len(table), np.int32),
        operator_lists=("",),
    )


def _whole_micros(times_ps: np.ndarray) -> list[int]:
    found, carry = [], 0
    for time_ps in times_ps.tolist():
        micros = max(1, (time_ps + carry + PS_PER_US // 2) // PS_PER_US)
        carry += time_ps - micros * PS_PER_US
        found.append(micros)
    return found
