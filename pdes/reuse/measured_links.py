"""What telemetry that queue pairs keep says of their links, relative to a moment.

HPCC keeps the telemetry of the latest acknowledgement: by hop a time, and the bytes that the port had sent by then. It
compares that with the next telemetry of the same links, so only two differences matter: the time since then, and the
bytes that each link has sent since then. Telemetry does not name its links, so they are found along the paths of the
queue pairs. Of one whose packets take several paths nothing is known.
"""

from typing import Any

import numpy as np

from nadi.pdes.construction.layout import Simulation
from nadi.pdes.core import Int64, packet
from nadi.pdes.core.rows import WordKind
from nadi.pdes.core.state import MAX_TELEMETRY_HOPS, TELEMETRY_CLASS_SHIFT, TELEMETRY_QUEUE_SHIFT
from nadi.pdes.reuse_kernels import quiescent
from nadi.pdes.reuse_kernels.path_links import SEVERAL, links_towards

TIME_MASK = (1 << TELEMETRY_CLASS_SHIFT) - 1
BYTES_MASK = (1 << TELEMETRY_QUEUE_SHIFT) - 1


class MeasuredLinks:
    """Links of which queue pairs keep telemetry, in a run whose LPs are all in this process."""

    def __init__(self, sim: Simulation) -> None:
        """Begin without a queue pair; sim: the run."""
        self._sim = sim
        self._have_one_path = True  # all queue pairs so far
        self._control = sim.settings.congestion_control.state
        kept = [name for name, word in self._control.declared.items() if word.kind is WordKind.TELEMETRY]
        self._kept = kept[0] if kept else ""  # word of the control that has telemetry
        self._links = [np.zeros((0, MAX_TELEMETRY_HOPS), np.int64) for _ in sim.lps]  # by queue pair and hop, -1 none
        self._owner = np.zeros(sim.graph.nodes, np.int64)  # place in sim.lps of the LP of each node
        self._measures = np.zeros(sim.graph.nodes, bool)  # switches that write telemetry
        for place, lp in enumerate(sim.lps):
            self._owner[lp.part.nodes] = place
            self._measures[lp.part.nodes] = lp.world.net.pool.shared_bytes[: len(lp.part.nodes)] > 0
        self._measures[: sim.graph.npus] = False

    def words_since(self, moment_ps: int) -> list[Int64] | None:
        """Return by LP what telemetry of queue pairs says, relative to the moment; None: some have several paths.

        Args:
            moment_ps: Time in ps at which no packet is under way.
        """
        found = []
        for place, lp in enumerate(self._sim.lps):
            self._follow(place, int(lp.world.net.ctl.queue_pairs) if self._kept else 0)
        if not self._have_one_path:
            return None
        for place, missing_bytes in enumerate(self.missing_bytes()):
            times, amounts, known = self._entries(place)
            age_ps = (moment_ps - times) & TIME_MASK
            others = times >> TELEMETRY_CLASS_SHIFT, amounts >> TELEMETRY_QUEUE_SHIFT
            words = [(each * known).reshape(-1) for each in (missing_bytes, age_ps, *others)]
            found.append(np.concatenate(words))
        return found

    def missing_bytes(self) -> list[Int64]:
        """Return by LP, queue pair and hop the bytes that links have sent since their telemetry, modulo its width."""
        sent_bytes = np.zeros(self._sim.graph.links, np.int64)
        for lp in self._sim.lps if self._kept else ():
            sent_bytes[lp.part.links] = packet.bytes_sent(lp.world.net.tx.sent_bytes[: len(lp.part.links)])
        found = []
        for place in range(len(self._sim.lps)):
            _, amounts, _ = self._entries(place)
            found.append((sent_bytes[self._links[place]] - amounts) & BYTES_MASK)
        return found

    def go_forward(self, shift_ps: int, missing_bytes: list[Int64]) -> None:
        """Let telemetry be later, and say as little less than its links have sent as before these have sent more.

        Args:
            shift_ps: Time in ps by which everything is later.
            missing_bytes: What `missing_bytes` returned before.
        """
        for place, (now, before) in enumerate(zip(self.missing_bytes(), missing_bytes, strict=True)):
            times, amounts, known = self._entries(place)
            times[known] += ((times + shift_ps) & TIME_MASK)[known] - (times & TIME_MASK)[known]
            amounts[known] += ((amounts + now - before) & BYTES_MASK)[known] - (amounts & BYTES_MASK)[known]

    def _entries(self, place: int) -> tuple[Any, Any, Any]:
        """Return of an LP the words with times, those with bytes, and which are used, by queue pair and hop."""
        lp, pairs = self._sim.lps[place], len(self._links[place])
        if not pairs:
            nothing = np.zeros((0, MAX_TELEMETRY_HOPS), np.int64)
            return nothing, nothing, nothing > 0
        _, rows = quiescent.controlled(lp.world, self._control)
        words = rows[self._kept][:pairs]
        hops = rows["hops"][:pairs]
        known = np.arange(MAX_TELEMETRY_HOPS) < hops[:, None]
        # a packet that a switch trimmed has met the first links of the path only
        if np.any(known & (self._links[place] < 0)):
            raise AssertionError("telemetry of another path than that of its queue pair: this is a defect")
        return words[:, 0::2], words[:, 1::2], known

    def _follow(self, place: int, pairs: int) -> None:
        """Find the links of an LP's queue pairs up to the number `pairs`."""
        first = len(self._links[place])
        if first == pairs or not self._have_one_path:
            return
        lp, graph = self._sim.lps[place], self._sim.graph
        rows = np.asarray(lp.world.qps.qp[first:pairs]).view(np.ndarray)
        found = np.full((pairs - first, MAX_TELEMETRY_HOPS), -1, np.int64)
        hops = np.zeros(len(found), np.int64)
        under_way = np.flatnonzero(rows["controlled"])
        link = lp.part.links[rows["port"][under_way]]
        dst, word2 = packet.destination(rows["w1"]), np.ascontiguousarray(rows["w2"])
        while len(under_way):
            node = graph.link_dst[link].astype(np.int64)
            is_on = node != dst[under_way]
            under_way, node = under_way[is_on], node[is_on]
            link = self._links_from(node, dst[under_way], word2[under_way])
            self._have_one_path &= not (link == SEVERAL).any()
            if not self._have_one_path:
                return
            writes = self._measures[node] & (hops[under_way] < MAX_TELEMETRY_HOPS)
            found[under_way[writes], hops[under_way[writes]]] = link[writes]
            hops[under_way] += writes
        self._links[place] = np.concatenate([self._links[place], found])

    def _links_from(self, node: Int64, dst: Int64, word2: Int64) -> Int64:
        """Return the links of the fabric by which nodes of any LP send packets to NPUs."""
        link = np.zeros(len(node), np.int64)
        for place, lp in enumerate(self._sim.lps):
            own = np.flatnonzero(self._owner[node] == place)
            local = np.zeros(len(own), np.int64)
            links_towards(lp.address, lp.part.local[node[own]], dst[own], word2[own], local)
            link[own] = np.where(local == SEVERAL, SEVERAL, lp.part.links[local])
        return link
