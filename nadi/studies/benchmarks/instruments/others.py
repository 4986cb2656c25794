"""All but one LP of a run, as the one LP sees them: they say when windows begin, and have what was recorded for it."""

from typing import NamedTuple

from pdes.instruments import ABORTED, ARRIVED, DONE, PACKED, PUBLISHED, WORKER_WORDS, await_word, meeting_at, world_at
from pdes.kernels import INF, Int64, clock_ns, kernel, reader, store_release

LONE = 1
"""Number of the LP's worker in a team; the first is the one that plays the others."""


class Others(NamedTuple):
    """What they have, and what they see; [windows] but for `came`."""

    came: Int64  # [windows x neighbours] address of what each neighbour has sent to the LP in the window before
    begin_ps: Int64
    published_ns: Int64  # the clock when the window had begun; that of the first is not written
    packed_ns: Int64  # when all was out that goes to other nodes of a cluster
    arrived_ns: Int64  # when the LP was done
    hops: Int64  # packet-hops that it did


others_at = reader(Others)


@kernel
def play_others(address, lp_address, others_address):
    """Meet the LP's worker after every window. DONE, or ABORTED."""
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
