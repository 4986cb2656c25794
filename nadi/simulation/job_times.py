"""When each job of a run ends."""

import numpy as np

from nadi import pdes
from nadi.inputs.arrays import Int64
from nadi.workload import Program


def job_finish_ps(program: Program, results: pdes.Results) -> Int64:
    """Return int64[jobs]: the end of the last trace node of each job on this rank's NPUs; 0 where there are none.

    Args:
        program: Work of all NPUs (`Program`).
        results: Results of the run.
    """
    jobs = program.jobs
    if jobs is None:
        return np.zeros(0, np.int64)
    finish_ps = np.zeros(len(jobs.names), np.int64)
    job_of_npu = jobs.of_npus()
    has_rows = np.flatnonzero(np.diff(results.npu_node_ptr) > 0)
    if len(has_rows):
        of_npu = np.zeros(program.npus, np.int64)
        # reduceat takes no empty stretches, so NPUs without rows are left out
        of_npu[has_rows] = np.maximum.reduceat(results.node_finish_ps, results.npu_node_ptr[has_rows])
        if results.folded is not None:
            of_npu = of_npu[results.folded.like]
        works = job_of_npu >= 0
        np.maximum.at(finish_ps, job_of_npu[works], of_npu[works])
    return finish_ps
