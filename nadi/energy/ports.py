"""Which ports of a fabric a run is charged for, by sort, and what they sent.

A fabric may be a part of a larger one, as the leaf switches of one host in a SuperPOD: their links to the spines are
there for other hosts, too. So a port between switches of different tiers counts as far as the run's NPUs can fill it:
by the rate of what comes from below over the rate of all ports to the tier above, at most whole.
"""

import numpy as np
from numpy.typing import NDArray

from nadi.energy.bill import PortUse

_Numbers = NDArray[np.integer]
_Mask = NDArray[np.bool_]


def port_uses(
    src: _Numbers,
    dst: _Numbers,
    is_npu: _Mask,
    is_nvswitch: _Mask,
    rate_bps: NDArray[np.number],
    tx_bytes: NDArray[np.number],
) -> tuple[dict[str, PortUse], int]:
    """Return the ports that send over the links by sort, and how many switches are left out.

    Ports of NPUs, and the ports of switches to NPUs, count whole. Those of switches that serve no NPU and sent nothing
    do not count. The others count by `shares`.

    Args:
        src: int[links], node at whose port a link begins.
        dst: int[links], node where it ends.
        is_npu: bool[nodes].
        is_nvswitch: bool[nodes].
        rate_bps: of the links.
        tx_bytes: that they sent, headers included.
    """
    nodes = len(is_npu)
    active = is_npu | (np.bincount(src, tx_bytes, nodes) > 0)
    active |= np.bincount(src, is_npu[dst], nodes) > 0
    sorts = {
        "nic": is_npu[src] & ~is_npu[dst] & ~is_nvswitch[dst],
        "direct_port": is_npu[src] & (is_npu[dst] | is_nvswitch[dst]),
        "nvswitch_port": is_nvswitch[src] & active[src],
        "switch_port": ~is_npu[src] & ~is_nvswitch[src] & active[src],
    }
    share = shares(src, dst, is_npu, rate_bps)
    found = {
        name: PortUse(
            float(share[of].sum()), float((share * rate_bps)[of].sum()), float(tx_bytes[of].sum()), int(of.sum())
        )
        for name, of in sorts.items()
    }
    sends = np.bincount(src, minlength=nodes) > 0
    return {name: ports for name, ports in found.items() if ports.present}, int((sends & ~active).sum())


def shares(src: _Numbers, dst: _Numbers, is_npu: _Mask, rate_bps: NDArray[np.number]) -> NDArray[np.float64]:
    """Return float64[links], the share of each link that a fabric's NPUs can fill, 0 to 1.

    The tier of a switch is its distance from the nearest NPU in links. Links of NPUs and between switches of one tier
    have 1. Those between a switch and the tier above have the rate of the switch's links from below, each by its own
    share, over the rate of all its links to the tier above.

    Args:
        src: int[links], node where a link begins.
        dst: int[links], node where it ends.
        is_npu: bool[nodes].
        rate_bps: Rates of the links in bits per second.
    """
    nodes = len(is_npu)
    tier = _tiers(src, dst, is_npu)
    share = np.ones(len(src), np.float64)
    rises, falls = tier[src] < tier[dst], tier[src] > tier[dst]
    for level in range(1, int(tier.max(initial=0))):
        up = rises & (tier[src] == level)
        below_bps = np.bincount(src, np.where(falls & (tier[src] == level), share * rate_bps, 0.0), nodes)
        above_bps = np.bincount(src, np.where(up, rate_bps, 0.0), nodes)
        of_switch = np.minimum(1.0, below_bps / np.maximum(above_bps, 1.0))
        down = falls & (tier[dst] == level)
        share[up] = of_switch[src[up]]
        share[down] = of_switch[dst[down]]
    return share


def _tiers(src: _Numbers, dst: _Numbers, is_npu: _Mask) -> NDArray[np.int64]:
    """Return int64[nodes], links from the nearest NPU; nodes that no NPU reaches have 0."""
    tier = np.where(is_npu, 0, -1)
    level = 0
    while True:
        reached = np.zeros(len(tier), np.bool_)
        reached[dst[tier[src] == level]] = True
        reached &= tier < 0
        if not reached.any():
            return np.maximum(tier, 0)
        level += 1
        tier[reached] = level
