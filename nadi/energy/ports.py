"""Which ports of a fabric count, by sort, and what they sent."""

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
    """Ports that send over the links by sort, and how many switches are left out: they serve no NPU and sent nothing.

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
    found = {
        name: PortUse(int(of.sum()), float(rate_bps[of].sum()), float(tx_bytes[of].sum())) for name, of in sorts.items()
    }
    sends = np.bincount(src, minlength=nodes) > 0
    return {name: ports for name, ports in found.items() if ports.number}, int((sends & ~active).sum())
