"""What telemetry that queue pairs keep says of their links, relative to a moment.

HPCC keeps the telemetry of the latest acknowledgement: by hop a time, and the bytes that the port had sent by then. It
compares that with the next telemetry of the same links, so only two differences matter: the time since then, and the
bytes that each link has sent since then. Telemetry does not name its links, so they are found along the paths of the
queue pairs, in all processes of the run. Of one whose packets take several paths nothing is known.
"""

from collections.abc import Callable
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
    """Links of which queue pairs keep telemetry. All processes of a run call each function together."""

    def __init__(self, sim: Simulation, number: int, of_all: Callable[[Any], list[Any]]) -> None:
        """Begin without a queue pair.

        Args:
            sim: Part of the run in this process.
            number: Number of this process.
            of_all: Returns the value of each process for its argument (`Mailbox.of_all`).
        """
        self._sim, self._number, self._of_all = sim, number, of_all
        self._have_one_path = True  # all queue pairs so far
        self._control = sim.settings.congestion_control.state
        kept = [name for name, word in self._control.declared.items() if word.kind is WordKind.TELEMETRY]
        self._kept = kept[0] if kept else ""  # word of the control that has telemetry
        self._links = [np.zeros((0, MAX_TELEMETRY_HOPS), np.int64) for _ in sim.lps]  # by queue pair and hop, -1 none
        self._owner = np.full(sim.graph.nodes, -1)  # place in sim.lps of the LP of each node, -1 in another process
        measures = np.zeros(sim.graph.nodes, bool)
        for place, lp in enumerate(sim.lps):
            self._owner[lp.part.nodes] = place
            measures[lp.part.nodes] = lp.world.net.pool.shared_bytes[: len(lp.part.nodes)] > 0
        measures[: sim.graph.npus] = False
        # switches that write telemetry
        self._measures = np.logical_or.reduce(of_all(measures)) if self._kept else measures

    def words_since(self, moment_ps: int) -> list[Int64] | None:
        """Return by LP what telemetry of queue pairs says, relative to the moment; None: some have several paths.

        Either all processes get None, or none.

        Args:
            moment_ps: Time in ps at which no packet is under way.
        """
        found = []
        if self._kept:
            self._follow()
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
        if self._kept:
            sent_bytes = np.sum(self._of_all(sent_bytes), axis=0)  # each process has those of its own links
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

    def _follow(self) -> None:
        """Find the links of the queue pairs that were opened since the last time."""
        opened = [
            np.asarray(lp.world.qps.qp[len(links) : int(lp.world.net.ctl.queue_pairs)]).view(np.ndarray)
            for lp, links in zip(self._sim.lps, self._links, strict=True)
        ]
        if not self._have_one_path or not sum(self._of_all(sum(map(len, opened)))):
            return
        rows = np.concatenate(opened)
        found = np.full((len(rows), MAX_TELEMETRY_HOPS), -1, np.int64)
        hops = np.zeros(len(rows), np.int64)
        first = [lp.part.links[own["port"]] for lp, own in zip(self._sim.lps, opened, strict=True)]
        under_way = np.flatnonzero(rows["controlled"])
        link = np.concatenate(first)[under_way]
        dst, word2 = packet.destination(rows["w1"]), rows["w2"]
        while True:
            node = self._sim.graph.link_dst[link].astype(np.int64)
            is_on = node != dst[under_way]
            under_way, node = under_way[is_on], node[is_on]
            asked = self._of_all(np.stack([node, dst[under_way], word2[under_way]]))
            if not sum(each.shape[1] for each in asked):
                break
            link = self._links_from(asked, len(node))
            self._have_one_path = all(self._of_all(not (link == SEVERAL).any()))
            if not self._have_one_path:
                return
            writes = self._measures[node] & (hops[under_way] < MAX_TELEMETRY_HOPS)
            found[under_way[writes], hops[under_way[writes]]] = link[writes]
            hops[under_way] += writes
        ends = np.cumsum([len(own) for own in opened])[:-1]
        pairs = zip(self._links, np.split(found, ends), strict=True)
        self._links = [np.concatenate([links, more]) for links, more in pairs]

    def _links_from(self, asked: list[Int64], own: int) -> Int64:
        """Return the links of the fabric by which nodes send packets to NPUs, for what this process has asked.

        asked: by process int64[3, n], what each asks: nodes, NPUs, and words 2 of packets; own: length of its own.
        """
        before = np.cumsum([0, *(each.shape[1] for each in asked)])
        node, dst, word2 = np.concatenate(asked, axis=1)
        link = np.zeros(len(node), np.int64)
        for place, lp in enumerate(self._sim.lps):
            at = np.flatnonzero(self._owner[node] == place)
            local = np.zeros(len(at), np.int64)
            links_towards(lp.address, lp.part.local[node[at]], dst[at], word2[at], local)
            link[at] = np.where(local == SEVERAL, SEVERAL, lp.part.links[local])
        # each question is answered by one process, and 0 by the others
        link = np.sum(self._of_all(link), axis=0)
        number = self._number
        return link[before[number] : before[number] + own]
