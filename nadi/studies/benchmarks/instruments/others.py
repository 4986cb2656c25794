"""Stand-in for all LPs but one: it starts the windows of that LP and delivers the packets recorded for it."""

from typing import NamedTuple

from pdes.instruments import ABORTED, ARRIVED, DONE, PACKED, PUBLISHED, WORKER_WORDS, await_word, meeting_at, world_at
from pdes.kernels import INF, Int64, clock_ns, kernel, reader, store_release

LONE = 1
"""Number of the LP's worker in its team; the first worker plays the other LPs."""


class Others(NamedTuple):
    """Input and measurements of the stand-in; the shape is [windows] except for `came`."""

    came: Int64  # [windows x neighbours] address of the packets that each neighbour sent in the window before
    begin_ps: Int64
    published_ns: Int64  # clock when the window began; not written for the first window
    packed_ns: Int64  # clock when all packets to other cluster nodes were sent
    arrived_ns: Int64  # clock when the LP was done
    hops: Int64  # packet-hops of the LP


others_at = reader(Others)


@kernel
def play_others(address, lp_address, others_address):
    """Meet the LP's worker after every window; return DONE or ABORTED."""
    m = meeting_at(address)
    others = others_at(others_address)
    team, own = m.team, m.team.workers[0]
    windows = others.begin_ps.shape[0]
    neighbours = others.came.shape[0] // windows
    for window in range(windows):
        for place in range(2):
            at = (PACKED if place == 0 else ARRIVED) + LONE * WORKER_WORDS
            while True:
                status = await_word(team, at, window + 1, own)
                if status == ABORTED:
                    return status
                if status == DONE:
                    break
            if place == 0:
                others.packed_ns[window] = clock_ns()
        others.arrived_ns[window] = clock_ns()
        others.hops[window] = m.crew.costs[0]
        team.state.begin_ps = INF
        if window + 1 < windows:
            team.state.begin_ps = others.begin_ps[window + 1]
            if neighbours > 0:
                net = world_at(lp_address).net
                for neighbour in range(neighbours):
                    net.in_at[2 * neighbour + 1 - (window + 1 & 1)] = others.came[(window + 1) * neighbours + neighbour]
            others.published_ns[window + 1] = clock_ns()
        store_release(team.words, PUBLISHED, window + 1)
    return DONE
