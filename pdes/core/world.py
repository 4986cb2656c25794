"""Access to the world of a logical process by one address, and to rows of other kinds in its pool of messages."""

import numpy as np

from pdes.core.jit import inline, reader, seen_as
from pdes.core.rows.messages import WholeMessage
from pdes.core.rows.nic import KeptMessage, LaterMessage, PendingRequest, QueuedRequest
from pdes.core.state import World

world_at = reader(World)

whole_messages = seen_as(WholeMessage)
requests = seen_as(PendingRequest)
asking = seen_as(QueuedRequest)
kept_messages = seen_as(KeptMessage)
later_messages = seen_as(LaterMessage)


@inline
def take_row(net, qps):
    """Take a free row of the pool; the room is checked before the next event (`Scalars.check`)."""
    free = net.ctl.free_messages - 1
    net.ctl.free_messages = free
    net.ctl.check = 1
    return np.int64(qps.msg_free[free])


@inline
def give_row_back(net, qps, row):
    """Return a row to the pool."""
    qps.msg_free[net.ctl.free_messages] = row
    net.ctl.free_messages += 1
