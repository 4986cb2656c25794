"""The ports of a fabric that a run is charged for, by sort, and the bytes that they sent.

A fabric may be a part of a larger one. The leaf switches of one host in a SuperPOD, for example, serve other hosts
through the same links to the spines. Therefore a port between switches of different tiers counts only by the share
that the run's NPUs can fill: the rate from below divided by the rate of all ports to the tier above, at most 1.
"""

import numpy as np
from numpy.typing import NDArray

from nadi.energy.bill import PortUse
from nadi.topologies import links_to_npus

_Numbers = NDArray[np.integer]
_Mask = NDArray[np.bool_]


def port_uses(
    src_of_link: _Numbers,
    dst_of_link: _Numbers,
    is_npu: _Mask,
    is_nvswitch: _Mask,
    rate_bps: NDArray[np.number],
    tx_bytes: NDArray[np.number],
) -> tuple[dict[str, PortUse], int]:
    """Return the sending ports by sort, and the number of switches that do not count.

    Ports of NPUs, and the ports of switches to NPUs, count fully. Ports of switches that serve no NPU and sent nothing
    do not count. Other ports count by `shares`. Arrays are bool[nodes], and ends, rate and bytes with headers of links.

    Args:
        src_of_link: int[links], the sending node of each link.
        dst_of_link: int[links], the receiving node of each link.
        is_npu: bool[nodes], whether each node is an NPU.
        is_nvswitch: bool[nodes], whether each node is an NVSwitch.
        rate_bps: The rate of each link in bits per second, [links].
        tx_bytes: The bytes that each link sent, [links].
    """
    nodes = len(is_npu)
    active = is_npu | (np.bincount(src_of_link, tx_bytes, nodes) > 0)
    active |= np.bincount(src_of_link, is_npu[dst_of_link], nodes) > 0
    sorts = {
        "nic": is_npu[src_of_link] & ~is_npu[dst_of_link] & ~is_nvswitch[dst_of_link],
        "direct_port": is_npu[src_of_link] & (is_npu[dst_of_link] | is_nvswitch[dst_of_link]),
        "nvswitch_port": is_nvswitch[src_of_link] & active[src_of_link],
        "switch_port": ~is_npu[src_of_link] & ~is_nvswitch[src_of_link] & active[src_of_link],
    }
    share = shares(src_of_link, dst_of_link, is_npu, rate_bps)
    uses = {}
    for sort, mask in sorts.items():
        if mask.any():
            number, rate, sent = (float(values[mask].sum()) for values in (share, share * rate_bps, tx_bytes))
            uses[sort] = PortUse(number, rate, sent, int(mask.sum()))
    sends = np.bincount(src_of_link, minlength=nodes) > 0
    return uses, int((sends & ~active).sum())


def shares(src: _Numbers, dst: _Numbers, is_npu: _Mask, rate_bps: NDArray[np.number]) -> NDArray[np.float64]:
    """Return the share of each link that the fabric's NPUs can fill, float64[links] from 0 to 1.

    The tier of a switch is its distance in links from the nearest NPU. Links of NPUs and links between switches of one
    tier have share 1. The share of a link between a switch and the tier above is the rate of the switch's links from
    below, each times its own share, divided by the rate of all the switch's links to the tier above. The arguments are
    those of `port_uses`.

    Args:
        src: int[links], the sending node of each link.
        dst: int[links], the receiving node of each link.
        is_npu: bool[nodes], whether each node is an NPU.
        rate_bps: The rate of each link in bits per second, [links].
    """
    nodes = len(is_npu)
    tier = links_to_npus(src, dst, is_npu)
    share = np.ones(len(src), np.float64)
    rises, falls = tier[src] < tier[dst], tier[src] > tier[dst]
    for level in range(1, int(tier.max(initial=0))):
        up = rises & (tier[src] == level)
        below_bps = np.bincount(src, np.where(falls & (tier[src] == level), share * rate_bps, 0.0), nodes)
        above_bps = np.bincount(src, np.where(up, rate_bps, 0.0), nodes)
        switch_share = np.minimum(1.0, below_bps / np.maximum(above_bps, 1.0))
        down = falls & (tier[dst] == level)
        share[up] = switch_share[src[up]]
        share[down] = switch_share[dst[down]]
    return share
