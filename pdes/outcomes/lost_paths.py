"""What faults have down at a moment, by name, and between which NPUs they have left no path."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nadi.pdes.construction.schedule import Faults
from nadi.pdes.core.inputs import Bools, Graph, Int64
from nadi.pdes.network.framing import AGGREGATOR_KIND

PS_PER_MS = 10**9
MAX_PLACES = 8  # places that a message lists


class LostPaths:
    """The fabric of a run at a moment: the links that are down, and the paths that are left."""

    def __init__(self, graph: Graph, faults: Faults, now_ps: int) -> None:
        """Keep the inputs; faults: faults of the run; now_ps: the moment, in picoseconds."""
        self._graph, self._now_ps = graph, now_ps
        self._faults = [fault for fault in faults.links if fault.down or fault.error_rate == 1]
        self._lossy = [fault for fault in faults.links if 0 < fault.error_rate < 1]

    def clause(self) -> str:
        """Return a clause that lists the switches and links that are down or lose packets, by name; "" without any."""
        down = self._names(self._down_at(self._now_ps))
        held = [fault for fault in self._lossy if fault.at_ps <= self._now_ps < fault.until_ps]
        lossy = [f"{name} (error_rate {fault.error_rate:g})" for fault in held for name in self._names(fault.links)]
        places = {"down by faults": down, "lossy by faults": lossy}
        return "".join(f"; {what}: {listed(names, ', ')}" for what, names in places.items() if names)

    def between(self, src: int, dst: int) -> str:
        """Return a clause that says since when NPU src has no path to NPU dst, and why; "" if faults left one."""
        since_ps = None
        # since_ps is the begin of the last stretch without a path
        for time_ps in self._times_ps:
            if self._is_cut(time_ps, src, dst):
                since_ps = time_ps if since_ps is None else since_ps
            else:
                since_ps = None
        # -1: before all faults; a path that never existed was not lost by them
        if since_ps is None or self._is_cut(-1, src, dst):
            return ""
        new = np.setdiff1d(self._down_at(since_ps), self._down_at(since_ps - 1))
        ends = f"{end_name(self._graph, src)} has no path to {end_name(self._graph, dst)}"
        return f"{ends} since {listed(self._names(new), ' and ')} went down at {since_ps / PS_PER_MS:g} ms"

    def of_npu(self, npu: int, peers: Sequence[int]) -> str:
        """Return `between` of an NPU and the first of several others, or aggregator next to it, that it has lost.

        Args:
            npu: Number of the NPU.
            peers: Numbers of the other NPUs.
        """
        if not self._faults:
            return ""
        graph = self._graph
        # aggregators are endpoints in the switches next to an NPU
        # two links away: NPU -> switch -> its other neighbours
        near = [node for link in graph.out_links(npu) for node in graph.link_dst[graph.out_links(graph.link_dst[link])]]
        reducing = [node for node in near if node < graph.npus and graph.node_kind[node] == AGGREGATOR_KIND]
        clauses = (self.between(npu, peer) for peer in [*peers, *reducing] if peer != npu)
        return next((clause for clause in clauses if clause), "")

    def _down_at(self, time_ps: int) -> Int64:
        """Return int64[k]: the links that are down at a time, ascending."""
        held = [fault.links for fault in self._faults if fault.at_ps <= time_ps < fault.until_ps]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(np.array(links, np.int64) for links in held)]))

    @cached_property
    def _times_ps(self) -> list[int]:
        """Return the times until now at which links went down or came up, in ascending order."""
        times = {time for fault in self._faults for time in (fault.at_ps, fault.until_ps)}
        return sorted(time for time in times if time <= self._now_ps)

    @cached_property
    def _parts(self) -> dict[int, tuple[Bools, Int64]]:
        """Return the results of `_parts_at` by time in picoseconds, -1 = before all faults."""
        return {time_ps: self._parts_at(time_ps) for time_ps in [-1, *self._times_ps]}

    def _parts_at(self, time_ps: int) -> tuple[Bools, Int64]:
        """Return bool[links], the links that are up at a time, and int64[nodes], the connected part of each switch."""
        graph = self._graph
        is_up = np.ones(graph.links, np.bool_)
        is_up[self._down_at(time_ps)] = False
        between = np.flatnonzero(is_up & (graph.link_src >= graph.npus) & (graph.link_dst >= graph.npus))
        # label propagation: each switch takes the smallest label among its neighbours until none changes; NPUs pass
        # nothing on, so only links between switches count
        part = np.arange(graph.nodes)
        while True:
            before = part.copy()
            np.minimum.at(part, graph.link_dst[between], part[graph.link_src[between]])
            # pointer jumping, so that long chains take few rounds
            part = part[part]
            if np.array_equal(part, before):
                return is_up, part

    def _is_cut(self, time_ps: int, src: int, dst: int) -> bool:
        """Return whether no path leads from NPU src to NPU dst at a time; NPUs pass nothing on."""
        graph = self._graph
        is_up, part = self._parts[time_ps]
        out, back = graph.out_links(src), graph.out_links(dst)
        # `link ^ 1` is the other direction of a cable: the links into dst are the reverses of those out of it
        leaves, enters = graph.link_dst[out[is_up[out]]], graph.link_dst[back[is_up[back ^ 1]]]
        return dst not in leaves and not np.intersect1d(part[leaves], part[enters]).size

    def _names(self, links: Int64 | Sequence[int]) -> list[str]:
        """Return names of links, int64[k], as [[faults]] takes them; a switch without another link is named instead."""
        graph = self._graph
        both, is_down = np.asarray(links, np.int64), np.zeros(graph.links, np.bool_)
        is_down[both] = is_down[both ^ 1] = True
        alive = graph.link_src[~is_down & (graph.node_kind[graph.link_dst] != AGGREGATOR_KIND)]
        # all its links are down, which a fault of the switch itself does
        is_dead = (np.arange(graph.nodes) >= graph.npus) & (np.bincount(alive, minlength=graph.nodes) == 0)
        is_dead &= np.bincount(graph.link_src, minlength=graph.nodes) > 0
        names = [graph.node_name(node) for node in np.flatnonzero(is_dead).tolist()]
        # [::2]: both directions of a cable are down, and one name is enough
        rest = np.flatnonzero(is_down & ~is_dead[graph.link_src] & ~is_dead[graph.link_dst])[::2]
        for link in rest.tolist():
            a, b = int(graph.link_src[link]), int(graph.link_dst[link])
            cables = np.flatnonzero((graph.link_src == a) & (graph.link_dst == b))
            which = "" if is_down[cables].all() else f" cable {cables.tolist().index(link)}"
            names.append(f"link {graph.node_name(a)} - {graph.node_name(b)}{which}")
        return list(dict.fromkeys(names))


def end_name(graph: Graph, npu: int) -> str:
    """Return the name of an NPU, or of the aggregator in a switch, which is an endpoint, too.

    Args:
        graph: The fabric (`Graph`).
        npu: Number of the NPU.
    """
    if graph.node_kind[npu] != AGGREGATOR_KIND:
        return graph.node_name(npu)
    return f"the reduction in {graph.node_name(int(graph.link_dst[graph.out_links(npu)[0]]))}"


def listed(names: Sequence[str], last: str) -> str:
    """Return the first names, separated by commas and, before the last one, by `last`."""
    if len(names) > MAX_PLACES:
        names, last = [*names[:MAX_PLACES], f"{len(names) - MAX_PLACES} more"], " and "
    return last.join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
