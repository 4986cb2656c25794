"""The line about completion times that htsim's validation scripts print, from a run here."""

import numpy as np

from nadi.et import NodeType
from nadi.inputs.units import PS_PER_US
from nadi.simulation.run_plan import FinishedRun
from nadi.terminal import say


def print_spread(run: FinishedRun, *, err: bool) -> None:
    """Print the shortest and longest completion time of the flows: from the post of a send to its last acknowledgement.

    Nothing is printed if the run does not have sends wait for it. err: Whether the line goes to standard error.
    """
    if not run.settings.fidelity.acknowledged:
        return
    times = []
    for npu, trace in enumerate(run.trace_of_npu.tolist()):
        rows = slice(*run.results.npu_node_ptr[npu : npu + 2].tolist())
        if trace >= 0 and rows.stop > rows.start:
            is_send = run.traces[trace].type == NodeType.COMM_SEND_NODE
            times.append((run.results.node_finish_ps[rows] - run.results.node_start_ps[rows])[is_send])
    spent = np.concatenate(times) if times else np.zeros(0)
    if len(spent):
        low, high = spent.min() / PS_PER_US, spent.max() / PS_PER_US
        say(f"FCT spread {low:.6g} -> {high:.6g} us, ratio {high / low:.4g}, {len(spent):,} flows", err=err)
