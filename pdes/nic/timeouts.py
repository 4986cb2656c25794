"""The retransmission timer of an NPU, and SLEEK's probes, whose times it watches, too.

Parameters such as `net`, `npus`, `qps`, `node` and `pair` are explained in pdes/core/state.py.
"""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.jit import inline, outline
from nadi.pdes.nic.control import request_credit, update_control
from nadi.pdes.nic.paths import probe_words, with_path
from nadi.pdes.nic.port import MAX_BACKOFF, activate, set_timer
from nadi.pdes.nic.selective import LOSE_ALL, NEXT_PROBE_RTTS, ask_sender
from nadi.pdes.nic.several_ports import paused_classes
from nadi.pdes.nic.transport import find_port, go_back, send_first


@inline
def probe_if_due(net, npus, qps, node, pair, now_ps):
    """Send a probe of SLEEK for `pair` of NPU `node` if its time has come, and return when the next is due (ps)."""
    selective, qp = qps.sel_tx[pair], qps.qp[pair]
    if selective.probe_ps == 0:
        return np.int64(state.INF)
    if selective.probe_ps <= now_ps:
        link = np.int64(qp.port)
        # a data packet, which waits in queues as those that it asks about; a paused one would wait for the resume
        has_pauses = net.hooks.shared_switches != 0
        if not has_pauses or paused_classes(net, npus, link) & (1 << packet.data_class(qp.w1)) == 0:
            word1, word2, word3 = probe_words(net, qp, packet.entropy(qp.w2))
            if net.hooks.paths != 0:
                word2 = with_path(net, pair, word2, qp.una - 1, 2, now_ps)
            selective.probed_ps = now_ps
            send_first(net, npus, node, link, now_ps, word1, word2, word3)
        selective.probe_ps = now_ps + NEXT_PROBE_RTTS * net.const.base_rtt_ps
    return selective.probe_ps


@outline
def on_timeout(world_address, node, now_ps):
    """Handle at now_ps the retransmission timer of NPU `node`: queue pairs without progress go back."""
    world = state.world_at(world_address)
    net, npus, qps = world.net, world.npus, world.qps
    soonest = state.INF
    npu = npus.npu[node]
    pair = npu.first_queue_pair
    npu.rto_at_ps = state.INF
    while pair >= 0:
        qp = qps.qp[pair]
        if qp.una < qp.next_seq:  # else nothing that it has sent is unacknowledged
            if qp.deadline_ps <= now_ps:
                net.count.timeouts += 1
                qp.retries += 1
                if qp.retries > net.const.max_retries:
                    net.ctl.failed_queue_pair = pair
                if net.hooks.selective_sender != 0:
                    ask_sender(net, LOSE_ALL, pair, 0, now_ps, 0)
                    request_credit(net, npus, node, pair, 1)
                    qp.deadline_ps = now_ps + (net.const.rto_ps << min(np.int64(qp.retries), MAX_BACKOFF))
                    soonest = min(soonest, qp.deadline_ps)
                else:
                    go_back(qps, pair)
                update_control(net, qps, pair, state.CC_LOSS, now_ps, state.LOSS_TIMEOUT, 0, 0)
                find_port(net, npus, qps, node, pair)
                activate(net, npus, qps, node, pair)
            else:
                soonest = min(soonest, qp.deadline_ps)
            if net.const.sleek == 1:
                soonest = min(soonest, probe_if_due(net, npus, qps, node, pair, now_ps))
        elif net.hooks.credits != 0 and qp.next_seq < qp.end_seq and qp.deadline_ps < state.INF:
            # all that it has sent is acknowledged, and its request or the grant may be lost
            if qp.deadline_ps <= now_ps:
                qp.retries += 1
                if qp.retries > net.const.max_retries:
                    net.ctl.failed_queue_pair = pair
                request_credit(net, npus, node, pair, 1)
            soonest = min(soonest, qp.deadline_ps)
        pair = np.int64(qp.sibling)  # all of the NPU: timeouts are rare, so no heap orders deadlines
    if soonest < state.INF:
        set_timer(npus, node, soonest)
