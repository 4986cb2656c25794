"""Priority flow control (IEEE 802.1Qbb): the other end of a link pauses a class of this end's port, or resumes it.

A pause lasts until its resume: real ports refresh pauses before they expire.
"""

from pdes.core.jit import inline
from pdes.core.link_words import inbox_link, number_of
from pdes.core.packet import PAUSE, asks_to_pause, logged_pause, paused_class


@inline
def paused_link(net, record):
    """Return the own outgoing link that the pause frame in `record` concerns."""
    return net.facing[inbox_link(net.record[record].ready_ps)]


@inline
def on_pause(net, record, w2, now):
    """Apply a pause frame, log it while there is room, and return the link that it concerns."""
    link = paused_link(net, record)
    at = 2 * net.ctl.pauses
    net.ctl.pauses += 1
    if at + 1 < net.pause_log.shape[0]:
        net.pause_log[at] = now
        net.pause_log[at + 1] = logged_pause(number_of(net.tx[link].meta), w2)
    gate = net.gate[link]
    data_class = paused_class(w2)
    bit = 1 << data_class
    if asks_to_pause(w2) == PAUSE:
        gate.paused |= bit
        gate.since_ps[data_class] = now
    else:
        gate.paused &= ~bit
        gate.paused_ps += now - gate.since_ps[data_class]
    return link
