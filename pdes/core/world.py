"""Kernels find the world of a logical process by one address, and in its pool of messages rows of other kinds."""

from pdes.core.jit import reader, seen_as
from pdes.core.rows.messages import WholeMessage
from pdes.core.rows.nic import Asking, KeptMessage, LaterMessage, Request
from pdes.core.state import World

world_at = reader(World)

whole_messages = seen_as(WholeMessage)
requests = seen_as(Request)
asking = seen_as(Asking)
kept_messages = seen_as(KeptMessage)
later_messages = seen_as(LaterMessage)
