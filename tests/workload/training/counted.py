"""What a trace set has in all, over its NPUs."""

from collections import Counter

import numpy as np

from nadi.et import NodeType


def copies(made):
    """NPUs that run each trace."""
    return np.bincount(made.trace_of_npu, minlength=len(made.traces)).tolist()


def flops(made):
    """Operations of all NPUs."""
    return sum(
        count * int(trace.num_ops[trace.type == NodeType.COMP_NODE].sum())
        for count, trace in zip(copies(made), made.traces, strict=True)
    )


def sent(made):
    """comm_size of all NPUs by the last part of the name and by pass: "tp:all-gather"."""
    found = Counter()
    for count, trace in zip(copies(made), made.traces, strict=True):
        names = list(trace.names)
        for row in np.flatnonzero(trace.comm_size >= 0).tolist():
            found[names[row].rpartition("/")[2], names[row].split("/")[1]] += count * int(trace.comm_size[row])
    return found


def moved(made, node_type):
    """Bytes of memory nodes of all NPUs."""
    return sum(
        count * int(trace.tensor_size[trace.type == node_type].sum())
        for count, trace in zip(copies(made), made.traces, strict=True)
    )
