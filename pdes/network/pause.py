"""Priority flow control (IEEE 802.1Qbb): the other end of a link pauses a class of this end's port, or lets it go on.

A pause lasts until its resume: real ports refresh theirs before it runs out.
"""

from pdes.core.jit import inline
from pdes.network.link import LINK_MASK

PAUSE, RESUME = 1, 0


@inline
def pause_word(data_class, ask):
    """Word 2 of a pause frame."""
    return data_class << 1 | ask


@inline
def paused_link(net, record):
    """The own outgoing link that the pause frame in `record` is about."""
    return net.facing[net.record[record].ready_ps & LINK_MASK]


@inline
def log_pause(net, link, w2, now):
    """Note a pause or resume, as long as there is room."""
    at = 2 * net.ctl.pauses
    net.ctl.pauses += 1
    if at + 1 < net.pause_log.shape[0]:
        net.pause_log[at] = now
        net.pause_log[at + 1] = ((net.tx[link].meta >> 22) & LINK_MASK) << 2 | (w2 & 3)


@inline
def on_pause(net, record, w2, now):
    """A pause frame has come; returns the link that it is about."""
    link = paused_link(net, record)
    log_pause(net, link, w2, now)
    gate = net.gate[link]
    data_class = w2 >> 1
    bit = 1 << data_class
    if w2 & 1 == PAUSE:
        gate.paused |= bit
        gate.since_ps[data_class] = now
    else:
        gate.paused &= ~bit
        gate.paused_ps += now - gate.since_ps[data_class]
    return link
