"""A toy model of the network, for CONTRIBUTING.md: every message takes the same time, whatever its path and size."""

import numpy as np

from nadi.pdes.core import Float64, Int64
from nadi.pdes.core.jit import hook
from nadi.pdes.core.state import whole_messages, world_at
from nadi.pdes.fidelity import MessageHooks, NetworkModel
from nadi.pdes.messages.events import ARRIVE
from nadi.pdes.messages.whole import add_message_event, leaves

TIME_PS = 1_000_000


@hook
def act(world_address, message, now_ps):
    """Send a message, a row of `msg`, which leaves its sender at once."""
    world = world_at(world_address)
    qps = world.qps
    pair = whole_messages(qps.msg)[message].connection
    arrived = max(now_ps + TIME_PS, qps.arrived[pair])  # messages of a connection arrive in order
    qps.arrived[pair] = arrived
    leaves(world, message, now_ps, now_ps)
    add_message_event(world.net, qps, world.messages, arrived, ARRIVE, message)
    return 0


def alone_ps(_psb: Float64, _delay_ps: Int64, _forwarding_ps: Int64, size_bytes: Int64, _resolution_ps: int) -> Int64:
    """Return int64[m], the time of m messages on an idle path."""
    return np.full(len(size_bytes.reshape(-1)), TIME_PS)


NETWORK = NetworkModel(
    name="constant",
    title="takes a microsecond, whatever its path and size, and waits for nothing",
    use="an example",
    hooks=(MessageHooks("constant", act, alone_ps, contends=False),),
)
