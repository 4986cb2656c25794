"""Max-min fair rates once more, the slow way: progressive filling in fractions."""

from fractions import Fraction


def rates(capacity, flows):
    """Return the rate of each flow.

    capacity: load that each link carries; flows: (cap, {link: weight}) of each flow. All rates rise together; a flow
    stops at its cap, or when a link of it is full.
    """
    found = {}
    while len(found) < len(flows):
        moving = [f for f in range(len(flows)) if f not in found]
        level = {}
        for link, load in enumerate(capacity):
            weight = sum(flows[f][1].get(link, 0) for f in moving)
            if weight:
                used = sum(found[f] * flows[f][1].get(link, 0) for f in found)
                level[link] = (load - used) / Fraction(weight)
        lowest = min([*level.values(), *(flows[f][0] for f in moving)])
        for f in moving:
            cap, links = flows[f]
            if cap == lowest or any(level[link] == lowest for link in links):
                found[f] = Fraction(lowest)
    return [found[f] for f in range(len(flows))]
