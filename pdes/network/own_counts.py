"""Own counts of nodes and ports, from which its choices among equal packets or links follow as if at random.

They depend neither on the time since the run's begin nor on the place of the node in the fabric. It forgets them
after a pause (`const.tie_pause_ps`), so that later choices follow from what happens then.
"""

from nadi.pdes.core.jit import inline


@inline
def count_tie(net, own, now_ps):
    """Count a tie in the row of a node or of a port; return how many it has had since its last pause without any.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        own: Counts of the node or port (a row `NodeCounts` or `PortTies`).
        now_ps: Time of the tie in ps.
    """
    # after a pause without ties a node is in the state in which it began, whatever it did before: states recur
    if now_ps - own.last_tie_ps > net.const.tie_pause_ps:
        own.ties = 0
    own.last_tie_ps = now_ps
    own.ties += 1
    return own.ties


@inline
def count_choice(net, node, now_ps):
    """Count a choice of a link at a node; return how many it has made since its last pause without any.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        node: Number of the node.
        now_ps: Current time in ps.
    """
    own = net.counts[node]
    if now_ps - own.last_choice_ps > net.const.tie_pause_ps:
        own.choices = 0
        # the number of pauses makes counts of before recognisable as outdated (pdes/network/balancing/adaptive.py)
        own.pauses += 1
    own.last_choice_ps = now_ps
    own.choices += 1
    return own.choices
