"""The optimizer steps that a run which is not over has done, from the names of trace nodes: step0/, step1/."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int64
from nadi.insight.analysis.node_times import row_blocks
from nadi.simulation.run import FinishedRun
from nadi.workload import Exchange

_NAME = re.compile(r"step(\d{1,9})/")
_NO_STEP = np.iinfo(np.int64).max


class DoneSteps(NamedTuple):
    """The first steps of a run, all of whose nodes are done on all NPUs."""

    steps: int  # number of these steps
    of: int  # number of all steps of the run
    end_ps: int  # end of the last of their nodes, 0 without any


def done_steps(simulation: FinishedRun, exchange: Exchange) -> DoneSteps | None:
    """Return the steps that a run has done before its cut, over all ranks; None if no node's name has a step.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        exchange: Function that gives every rank's value to all ranks.
    """
    program, results = simulation.program, simulation.results
    step_of_row = np.concatenate([np.zeros(0, np.int64), *(_steps(trace.names) for trace in simulation.traces)])
    ptr = np.cumsum([0, *(len(trace) for trace in simulation.traces)])
    blocks = [
        (step_of_row[ptr[simulation.trace_of_npu[rows.npu]] + rows.row], results.node_finish_ps[rows.result])
        for rows in row_blocks(program, results.npu_node_ptr)
    ]
    last, first_open = -1, _NO_STEP
    for step, finish_ps in blocks:
        last = max(last, int(step.max(initial=-1)))
        # a step is done when all its nodes, on all NPUs, have ended before the cut
        first_open = min(first_open, int(step[(step >= 0) & (finish_ps >= results.snapshot_ps)].min(initial=_NO_STEP)))
    lasts, opens = zip(*exchange((last, first_open)), strict=True)
    if max(lasts) < 0:
        return None
    of = max(lasts) + 1
    steps = min(*opens, of)
    ends_ps = [int(finish_ps[(step >= 0) & (step < steps)].max(initial=0)) for step, finish_ps in blocks]
    return DoneSteps(steps, of, max(exchange(max(ends_ps, default=0))))


def _steps(names: Iterable[str]) -> Int64:
    """Return int64[rows]: the step that the name of each trace node begins with, -1 = none."""
    found = map(_NAME.match, names)
    return np.array([int(match[1]) if match else -1 for match in found], np.int64)
