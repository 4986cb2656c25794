"""The paths of a queue pair whose sender chooses an entropy per packet, and what it learns about them.

A queue pair has `paths` entropies. A rule of pdes/nic/entropy takes one for each packet; switches hash it (ECMP).
Acknowledgements carry the entropy of their packet, so the sender knows which path was good, marked or trimmed; for
packets that did not arrive, it keeps the path of each that is under way.

Choices follow from state that returns, so that exact reuse finds periods: when a queue pair has had nothing under way
for a pause (`Constants.tie_pause_ps`, as for ties at switches), its permutation begins anew, and penalties are gone.
"""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.algorithms import mix2
from nadi.pdes.core.jit import call_hook, clear_row, hook, inline, prefetch
from nadi.pdes.nic.control import update_control
from nadi.pdes.nic.entropy._turns import path_at

LINE_OF_COUNTS = 4  # cache line of a row of `Selective` with its counts; those before it have bits of packets


@inline
def open_paths(qps, pair, path_hash):
    """Give the new queue pair `pair` of `qps` its entropies, from the hash of its connection."""
    paths = qps.paths[pair]
    paths.salt = mix2(path_hash, 0x9A75)
    # random first entropy and odd step: two queue pairs share few entropies, so switches hash them apart
    paths.first = mix2(path_hash, 0xBA5E) & packet.ENTROPY_MASK
    step = mix2(path_hash, 0x57E9) & packet.ENTROPY_MASK | 1
    # Newton's iteration doubles the correct low bits of the inverse of an odd number, of which step itself has three
    inverse = step
    for _ in range(4):
        inverse = inverse * (2 - step * inverse) & packet.ENTROPY_MASK
    paths.step = step
    paths.inverse = inverse


@inline
def path_of_entropy(net, paths, value):
    """Return the path of a queue pair (row `paths`) that has the entropy `value`, in the run of `net`."""
    return (value - paths.first) * paths.inverse & packet.ENTROPY_MASK & (net.const.paths - 1)


@inline
def forget(net, qps, pair):
    """Let the permutation of queue pair `pair` of `qps` begin anew, without penalties, in the run of `net`."""
    paths = qps.paths[pair]
    paths.position = paths.draws = 0
    first = pair * net.const.paths
    for i in range(first, min(first + net.const.paths, np.int64(qps.penalty.shape[0]))):
        qps.penalty[i] = min(np.int64(qps.penalty[i]), 0)  # negative: out of use, until probes find it well


@inline
def begin_control_anew(net, qps, pair, now_ps):
    """Start the congestion control of queue pair `pair` of `qps` again at now_ps, in the run of `net`."""
    cc = qps.cc[pair]
    line_ps_per_byte, next_send_ps, last_seq, last_sent_ps, child, sibling = (
        cc.line_ps_per_byte,
        cc.next_send_ps,
        cc.last_seq,
        cc.last_sent_ps,
        cc.child,
        cc.sibling,
    )
    clear_row(qps.cc, pair)
    cc.line_ps_per_byte, cc.next_send_ps, cc.last_seq = line_ps_per_byte, next_send_ps, last_seq
    cc.last_sent_ps, cc.child, cc.sibling = last_sent_ps, child, sibling
    cc.window_packets = net.const.window_packets
    update_control(net, qps, pair, state.CC_START, now_ps, qps.qp[pair].shares, 0, 0)


@inline
def with_path(net, pair, word2, seq, kind, now_ps):
    """Return word 2 of packet `seq` of queue pair `pair`, which is sent now, with the entropy of its path.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        pair: Row of the queue pair in `qps.qp`.
        word2: Word 2 of the packet with its number.
        seq: Sequence number of the packet.
        kind: 1 if nothing is under way, 2 if the packet was sent before, else 0.
        now_ps: Current time in ps.
    """
    return packet.with_entropy(
        word2, call_hook(net.hooks.paths, net.const.address, state.PATH_SEND, pair, seq, kind, now_ps)
    )


@inline
def path_to_probe(net, pair, now_ps):
    """Return 1 + the entropy of the path that queue pair `pair` probes now instead of sending data, 0 = none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        pair: Row of the queue pair in `qps.qp`.
        now_ps: Current time in ps.
    """
    return call_hook(net.hooks.paths, net.const.address, state.PATH_TO_PROBE, pair, 0, 0, now_ps)


@inline
def probe_words(net, qp, value):
    """Return words 1 to 3 of a probe: an acknowledged packet without its data, which the receiver acknowledges again.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qp: The queue pair (row of `qps.qp`).
        value: Entropy of the path.
    """
    net.count.data_packets += 1
    net.count.sent_bytes += net.const.header_bytes
    word2 = packet.with_entropy(packet.numbered(qp.w2, qp.una - 1), value)
    return packet.filled_in(qp.w1, net.const.header_bytes, 0), word2, np.int64(0)


@inline
def prefetch_turns(net, qps, pair):
    """Prefetch what the queue pairs that take turns at a port after `pair` of `qps` and `net` need to send."""
    # each stage reads what the one before has prefetched: the row of the next but one names the one behind it
    following = np.int64(qps.qp[pair].ring_next)
    later = np.int64(qps.qp[following].ring_next)
    prefetch(qps.qp, np.int64(qps.qp[later].ring_next), 0)
    prefetch(qps.qp, later, 1)
    prefetch(qps.cc, later, 0)
    prefetch(qps.paths, later, 0)
    prefetch(qps.sel_tx, later, LINE_OF_COUNTS)
    sent = following * state.SELECTIVE_PACKETS + (qps.qp[following].next_seq & (state.SELECTIVE_PACKETS - 1))
    prefetch(qps.sent_at, sent, 0)
    prefetch(qps.path_sent, sent, 0)
    path = path_at(net, qps.paths[following], qps.paths[following].position)
    prefetch(qps.penalty, following * net.const.paths + path, 0)


@hook
def steer(world_address, operation, pair, a, b, now_ps):
    """Choose the path of a packet of queue pair `pair` and return its entropy, or learn what became of packets.

    Args:
        world_address: Address of the directory of the LP's `World`.
        operation: PATH_SEND: packet `a` is sent now; b is 1 if nothing is under way, 2 if the packet is sent again.
            PATH_ANSWER: an answer with words a and b. PATH_LOST: packet `a` is considered lost.
            PATH_TIMEOUT: no packet was acknowledged for the timeout, and `a` has not arrived. PATH_TO_PROBE: return 1 +
            the entropy of a path to probe, 0 = none.
        pair: Row of the queue pair in `qps.qp`.
        a: Value of the operation.
        b: Value of the operation.
        now_ps: Current time in ps.
    """
    world = state.world_at(world_address)
    net, qps = world.net, world.qps
    paths = qps.paths[pair]
    rule = net.hooks.entropy
    keeps = qps.path_sent.shape[0] > 1  # else the rule does not learn
    sent = pair * state.SELECTIVE_PACKETS + (a & (state.SELECTIVE_PACKETS - 1))
    if operation == state.PATH_SEND:
        if b == 1 and now_ps - paths.last_ps > net.const.tie_pause_ps:
            forget(net, qps, pair)
            call_hook(rule, world_address, state.PATH_FORGET, pair, 0, now_ps)
            if net.hooks.congestion_control != 0:
                begin_control_anew(net, qps, pair, now_ps)
        paths.last_ps = now_ps
        path = call_hook(rule, world_address, state.PATH_CHOOSE, pair, b >> 1, now_ps)
        if keeps:
            qps.path_sent[sent] = path
        prefetch_turns(net, qps, pair)
        return (paths.first + path * paths.step) & packet.ENTROPY_MASK
    if operation == state.PATH_TO_PROBE:
        path = call_hook(rule, world_address, state.PATH_PROBE, pair, 0, now_ps)
        return np.int64(path >= 0) * (1 + ((paths.first + path * paths.step) & packet.ENTROPY_MASK))
    if operation == state.PATH_ANSWER:
        paths.last_ps = now_ps
        what = state.PATH_GOOD
        # a trim at the last hop, which every path has, says nothing about this one (htsim, UecSrc::processNack)
        if packet.flags(a) & packet.FLAG_NAK != 0 and packet.flags(a) & packet.FLAG_TRIMMED == 0:
            what = state.PATH_TRIMMED
        elif packet.flags(a) & (packet.FLAG_MARK | packet.FLAG_CNP) != 0:
            what = state.PATH_MARKED
        call_hook(rule, world_address, what, pair, path_of_entropy(net, paths, packet.entropy(b)), now_ps)
    elif keeps:
        what = state.PATH_DROPPED if operation == state.PATH_LOST else state.PATH_TIMED_OUT
        call_hook(rule, world_address, what, pair, np.int64(qps.path_sent[sent]) & (state.MAX_PATHS - 1), now_ps)
    return np.int64(0)
