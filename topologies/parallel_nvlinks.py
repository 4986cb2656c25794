"""Parallel NVSwitches and NVLinks as one: a GPU stripes what it sends over all NVLinks that lead to the same GPUs.

NVLink interleaves addresses over the NVSwitches of a host, which no choice of a path by connection imitates. Source:
Foley and Danskin, "Ultra-Performance Pascal GPU and NVLink Interconnect" (IEEE Micro 37(2), 2017); NCCL takes all
NVSwitches of a host as one, too (NVIDIA/nccl, src/graph/topo.cc).
"""

import numpy as np

from nadi.topologies.graph import NPU, NVSWITCH, Int64


def same_switch(kind: Int64, cables: Int64) -> Int64:
    """Return int64[nodes]: for each node itself, for an NVSwitch the first one that joins exactly the same nodes.

    kind: int64[nodes], kind of each node; cables: int64[4, cables], two ends, rate in bps and delay in ps.
    """
    first = np.arange(len(kind))
    inside = (kind[cables[:2]] == NVSWITCH).any(axis=0)
    if (kind == NVSWITCH).sum() < 2 or not inside.any():
        return first
    ends = np.concatenate([cables[:2, inside], cables[1::-1, inside]], axis=1)
    ends = ends[:, kind[ends[0]] == NVSWITCH]
    switch, neighbour = np.divmod(np.unique(ends[0] * len(kind) + ends[1]), len(kind))
    bounds = np.flatnonzero(np.diff(switch, prepend=-1))
    seen: dict[bytes, int] = {}
    for number, joined in zip(switch[bounds].tolist(), np.split(neighbour, bounds[1:]), strict=True):
        first[number] = seen.setdefault(joined.tobytes(), number)
    return first


def striped(kind: Int64, cables: Int64) -> Int64:
    """Return the cables with all NVLinks between two nodes as one, of their rates together and of the longest delay.

    Cables between an NVSwitch and another switch stay as they are; arguments as of `same_switch`.
    """
    ends = kind[cables[:2]]
    nvlink = ((ends == NVSWITCH) | (ends == NPU)).all(axis=0)
    low, high = np.sort(cables[:2, nvlink], axis=0)
    pair, first, of_pair = np.unique(low * len(kind) + high, return_index=True, return_inverse=True)
    if len(pair) == len(low):
        return cables
    merged = cables[:, np.flatnonzero(nvlink)[first]]
    rate_bps = np.bincount(of_pair, cables[2, nvlink])  # exact below 2^53 bps, and checked against a lower maximum
    merged[2], merged[3] = np.minimum(rate_bps, 2**53), 0
    np.maximum.at(merged[3], of_pair, cables[3, nvlink])
    position = np.concatenate([np.flatnonzero(~nvlink), np.flatnonzero(nvlink)[first]])
    return np.concatenate([cables[:, ~nvlink], merged], axis=1)[:, np.argsort(position)]
