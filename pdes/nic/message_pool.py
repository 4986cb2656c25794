"""The pool of rows of `msg`: messages under way, and what else fits such a row."""

import numpy as np

from pdes.core.jit import inline


@inline
def take_row(net, qps):
    """A free row. Whether enough are left is looked at before the next event (CTL_CHECK)."""
    free = net.ctl.free_messages - 1
    net.ctl.free_messages = free
    net.ctl.check = 1
    return np.int64(qps.msg_free[free])


@inline
def give_row_back(net, qps, row):
    """Give it back."""
    qps.msg_free[net.ctl.free_messages] = row
    net.ctl.free_messages += 1
