"""Source routes as a value: the paths of pairs of NPUs as port sets of the switches on them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int32, Int64


class SourceRows(NamedTuple):
    """What each switch does with packets of each pair whose paths cross it."""

    node: Int32  # int32[rows], the switch
    src: Int32  # int32[rows], the sending NPU
    dst: Int32  # int32[rows], the receiving NPU
    ptr: Int64  # int64[rows + 1], see `port_set`
    port_set: Int32  # int32[], of row r, by a packet's entropy modulo their number: port set, -1 = as the tables say


@dataclass(frozen=True, eq=False)
class SourceRoutes:
    """The paths of pairs of NPUs, as port sets of the switches on them."""

    src: Int32  # int32[paths], the sending NPU of each path
    dst: Int32  # int32[paths], the receiving NPU of each path
    hop_ptr: Int64  # int64[paths + 1], see `hop_set`
    hop_set: Int32  # int32[], path p leaves its switches by the port sets hop_set[hop_ptr[p]:hop_ptr[p + 1]]
    set_ptr: Int32  # int32[sets + 1], see `set_link`
    set_link: Int32  # int32[], set s holds the links set_link[set_ptr[s]:set_ptr[s + 1]], ascending

    @property
    def longest_links(self) -> int:
        """Number of links of the longest path, links to NPUs included."""
        return 1 + int(np.diff(self.hop_ptr).max(initial=0))

    def without(self, links: Iterable[int]) -> "SourceRoutes":
        """Return the paths that are left while links are down; of parallel cables, those that are up.

        Args:
            links: Numbers of the links that are down.
        """
        up = ~np.isin(self.set_link, list(links))
        sets = len(self.set_ptr) - 1
        left = np.bincount(np.repeat(np.arange(sets), np.diff(self.set_ptr))[up], minlength=sets)
        hops = np.diff(self.hop_ptr)
        path = np.repeat(np.arange(len(hops)), hops)
        is_left = np.bincount(path, left[self.hop_set] == 0, minlength=len(hops)) == 0
        return SourceRoutes(
            self.src[is_left],
            self.dst[is_left],
            np.append(0, np.cumsum(hops[is_left])),
            self.hop_set[is_left[path]],
            np.append(0, np.cumsum(left)).astype(np.int32),
            self.set_link[up],
        )

    def hops(self, link_src: Int32) -> tuple[Int64, Int32]:
        """Return int64[hops] and int32[hops]: the path of each hop, and its switch.

        Args:
            link_src: int32[links], the sending node of each link of the network.
        """
        path = np.repeat(np.arange(len(self.src)), np.diff(self.hop_ptr))
        return path, link_src[self.set_link[self.set_ptr[self.hop_set]]]

    def rows(self, link_src: Int32) -> SourceRows:
        """Return what each switch does with packets of each pair, in the order of switches.

        Args:
            link_src: int32[links], the sending node of each link of the network.
        """
        path, node = self.hops(link_src)
        pairs, pair = np.unique(self.src.astype(np.int64) << 32 | self.dst, return_inverse=True)
        # paths of a pair from one first switch are a group, of which a packet takes that of its entropy
        first = node[self.hop_ptr[:-1]].astype(np.int64)
        group, sizes = np.unique(pair << 32 | first, return_inverse=True, return_counts=True)[1:]
        order = np.argsort(group, kind="stable")
        place = np.zeros(len(group), np.int64)
        place[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        keys, row = np.unique(node.astype(np.int64) * max(1, len(pairs)) + pair[path], return_inverse=True)
        low, high = np.full(len(keys), len(sizes)), np.full(len(keys), -1)
        np.minimum.at(low, row, group[path])
        np.maximum.at(high, row, group[path])
        # paths of several groups meet at the last switch alone, and leave it alike
        is_shared = low != high
        ptr = np.append(0, np.cumsum(np.where(is_shared, 1, sizes[high])))
        port_set = np.full(ptr[-1], -1, np.int32)
        port_set[ptr[row] + np.where(is_shared[row], 0, place[path])] = self.hop_set
        node_of, pair_of = np.divmod(keys, max(1, len(pairs)))
        ends = pairs[pair_of]
        return SourceRows(
            node_of.astype(np.int32), (ends >> 32).astype(np.int32), (ends & 0xFFFFFFFF).astype(np.int32), ptr, port_set
        )
