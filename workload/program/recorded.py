"""Replacement of operators in a trace by their durations on a GPU."""

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
    """Return `with_recorded_times` for a GPU at the pace of training steps; for None, a function without effect."""
    if gpu is None:
        return lambda table: table
    times = ComputeTimes(find_gpu(gpu), pace=IN_STEPS)
    return lambda table: with_recorded_times(table, times)


def with_recorded_times(table: TraceTable, times: ComputeTimes) -> TraceTable:
    """Return a trace in which the accelerator's compute nodes have durations instead of operators or work."""
    # Nodes with a duration keep it. Traces have integer microseconds, so the rounding error of a node carries over to
    # the next one. The sum over a trace is exact to a microsecond, except that each node takes at least one
    # microsecond.
    view = TraceView(table)
    exact_ps = durations_ps(view, ComputeModel(times=times))
    replaced = (view.kind == COMPUTE) & (table.duration_micros == 0) & (exact_ps > 0)
    micros = table.duration_micros.copy()
    micros[replaced] = _rounded_micros(exact_ps[replaced])
    return dataclasses.replace(
        table,
        duration_micros=micros,
        num_ops=np.where(replaced, -1, table.num_ops),
        tensor_size=np.where(replaced, -1, table.tensor_size),
        operators=np.zeros(len(table), np.int32),
        operator_lists=("",),
    )


def _rounded_micros(times_ps: np.ndarray) -> list[int]:
    """Return times in integer microseconds of at least 1, carrying the rounding error from each to the next."""
    rounded, carry = [], 0
    for time_ps in times_ps.tolist():
        micros = max(1, (time_ps + carry + PS_PER_US // 2) // PS_PER_US)
        carry += time_ps - micros * PS_PER_US
        rounded.append(micros)
    return rounded
