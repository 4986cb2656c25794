"""Path states of Multipath Reliable Connection: good, skip, assumed bad, denied.

OCP, Multipath Reliable Connection 1.0 (mrc.h, mrc_ctl.h), and arXiv 2605.04333, sections 2.1 and 2.4: paths are used in
turn. After a mark or a trimmed packet, which mean congestion, a path is skipped for a turn. An untrimmed loss means a
broken path: it is assumed bad, until SUCCESSES probes in a row have come back. At least the share MIN_ACTIVE of all
paths stays in use. What the operator denies is never taken. A path of which nothing is known for the time of a probe
gets the next probe.
"""

import numpy as np

from nadi.pdes.core.jit import hook, inline, seen_as
from nadi.pdes.core.packet import ENTROPY_MASK
from nadi.pdes.core.rows import word
from nadi.pdes.core.rows.network import PairPaths
from nadi.pdes.core.state import (
    PATH_CHOOSE,
    PATH_DENIED,
    PATH_DROPPED,
    PATH_FORGET,
    PATH_GOOD,
    PATH_MARKED,
    PATH_PROBE,
    PATH_TIMED_OUT,
    PATH_TRIMMED,
    world_at,
)
from nadi.pdes.network.balancing.entropy import PORT_BITS
from nadi.pdes.nic.entropy import MAX_PLANES, MAX_SPINES
from nadi.pdes.nic.entropy._turns import path_at

TITLE = "all paths in turn; skips congested ones once, and broken ones until probes return (MRC)"
LEARNS = True
PROBES = True
PROBE_PS = 2_000_000_000  # time-out of a probe: 2 ms, the example of mrc_ctl.h
SUCCESSES = 1  # probes in a row after which a path is good again: their number is not published
MIN_ACTIVE = 4  # at least paths / 4 stay in use: the example of ev_min_active in mrc_ctl.h
SKIP, GOOD, BAD = 1, 0, -1  # states of a path in `Qps.penalty`; BAD - n: n probes in a row have come back


class MrcPaths(PairPaths, words=16):
    """Paths of a queue pair with the rule `mrc`."""

    bad_paths = word("count", "paths that are assumed bad")
    denied_paths = word("count", "paths that are denied")
    is_told = word("flag", "denied paths are marked")
    good_path = word("count", "path of the last acknowledgement without a mark")
    probed = word("count", "path that was probed last")
    probe_ps = word("time", "time of the next probe, if a path is assumed bad")


of_rule = seen_as(MrcPaths)


@inline
def deny(net, qps, pair):
    """Mark the paths of queue pair `pair` of `qps` that the operator of the fabric of `net` denies."""
    own, const = of_rule(qps.paths)[pair], net.const
    own.is_told = 1
    for path in range(const.paths):
        value = (own.first + path * own.step) & ENTROPY_MASK
        spine = value % const.planes * MAX_SPINES + (value >> PORT_BITS) % const.uplinks
        of_path = MAX_PLANES * MAX_SPINES + path
        if (const.denied[spine >> 5] >> (spine & 31) | const.denied[of_path >> 5] >> (of_path & 31)) & 1 == 1:
            qps.penalty[pair * const.paths + path] = PATH_DENIED
            own.denied_paths += 1


@inline
def next_in_use(net, qps, pair):
    """Return the next path in turn that is neither skipped nor assumed bad; skipped ones are good from now on.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    paths = qps.paths[pair]
    base = pair * net.const.paths
    path = np.int64(0)
    # two rounds at most: in the first all paths that are not bad may be skipped, and some are not bad
    for _ in range(2 * net.const.paths):
        path = path_at(net, paths, paths.position)
        paths.position += 1
        state = qps.penalty[base + path]
        if state == GOOD:
            break
        if state == SKIP:
            qps.penalty[base + path] = GOOD
    return path


@inline
def next_probe(net, qps, pair, now_ps):
    """Return the path that is due for a probe, or -1.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        now_ps: Current time in ps.
    """
    own = of_rule(qps.paths)[pair]
    if own.bad_paths == 0 or now_ps < own.probe_ps:
        return np.int64(-1)
    # each bad path is probed once per PROBE_PS
    own.probe_ps = now_ps + PROBE_PS // own.bad_paths
    path = own.probed
    for _ in range(net.const.paths):
        path = (path + 1) & (net.const.paths - 1)
        if PATH_DENIED < qps.penalty[pair * net.const.paths + path] <= BAD:
            break
    own.probed = path
    return np.int64(path)


@hook
def act(world_address, operation, pair, path, now_ps):
    """Return the next path in use, with PATH_CHOOSE, or one to probe, with PATH_PROBE; else change a path's state.

    Args:
        world_address: Address of the directory of the LP's `World`.
        operation: PATH_CHOOSE, PATH_PROBE, or what has happened on `path`.
        pair: Row of the queue pair in `qps.qp`.
        path: Number of the path.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, qps = world.net, world.qps
    if operation == PATH_CHOOSE:
        # a packet that is sent again goes by a path that has just worked: others may be broken, too, and the loss of
        # such a packet shows only when the timer runs out
        if net.const.denies == 1 and of_rule(qps.paths)[pair].is_told == 0:
            deny(net, qps, pair)
        good = of_rule(qps.paths)[pair].good_path
        if path == 1 and qps.penalty[pair * net.const.paths + good] == GOOD:
            return np.int64(good)
        return np.int64(next_in_use(net, qps, pair))
    if operation == PATH_PROBE:
        return next_probe(net, qps, pair, now_ps)
    own = of_rule(qps.paths)[pair]
    if operation == PATH_FORGET:
        own.good_path = 0  # else a later loss would depend on what was before the pause
        return np.int64(0)
    at = pair * net.const.paths + path
    state = np.int64(qps.penalty[at])
    if operation == PATH_GOOD and state == GOOD:
        own.good_path = path
    elif operation == PATH_GOOD and state <= BAD:
        # also an acknowledgement that was only late: the path works
        qps.penalty[at] = state - 1
        if BAD - state + 1 >= SUCCESSES:
            qps.penalty[at] = GOOD
            own.bad_paths -= 1
    elif (operation == PATH_MARKED or operation == PATH_TRIMMED) and state == GOOD:
        qps.penalty[at] = SKIP
    elif operation == PATH_DROPPED or operation == PATH_TIMED_OUT:
        may_leave = net.const.paths - own.denied_paths - own.bad_paths > max(1, net.const.paths // MIN_ACTIVE)
        if state <= BAD:
            qps.penalty[at] = BAD
        elif may_leave:
            if own.bad_paths == 0:
                own.probe_ps = now_ps + PROBE_PS
            qps.penalty[at] = BAD
            own.bad_paths += 1
    return np.int64(0)
