"""Restoring a run that divides the fabric in another way than its checkpoint: each LP from all that it had parts of."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from nadi.pdes.checkpoint.moving import move, move_rows, own_pairs, own_receivers
from nadi.pdes.checkpoint.numbering import QueuePairs, Shared, shared_by
from nadi.pdes.checkpoint.packets import LINK, put_on_links, queues_of, words_of_packets
from nadi.pdes.checkpoint.saved_state import Checkpoints, SavedState, array_list, as_world, load_domain, load_routes
from nadi.pdes.construction.domains import all_domains
from nadi.pdes.construction.layout import LogicalProcess, Part, Simulation
from nadi.pdes.core import AgreedRunError, Int64, Rows
from nadi.pdes.core import state as s
from nadi.pdes.core.declared import grow
from nadi.pdes.core.jit import words_of
from nadi.pdes.core.packet import inbox_later_ps, inbox_link, number_of
from nadi.pdes.core.rows import Row, RowsOf
from nadi.pdes.core.rows.network import FlowIn, FlowOut, SampleEntry
from nadi.pdes.network.link import inbox_of
from nadi.pdes.reuse.replay import Replay

# lists of blocks of rows that an LP holds outside its world
ROW_LISTS: dict[str, type[Row]] = {"flows_out": FlowOut, "flows_in": FlowIn, "samples": SampleEntry}
SUMMED_JOB_WORDS = ("digest_a", "digest_b", "messages_a", "messages_b", "messages", "trace_rows")


class OtherDivisionError(AgreedRunError):
    """A run cannot continue with this division of the fabric; every process finds this."""

    exit_code = 2


class Redivision:
    """A checkpoint as the LPs of another division take it up."""

    def __init__(self, checkpoints: Checkpoints, sim: Simulation, owner: Int64, begin_ps: int) -> None:
        """Take the checkpoint; owner: int64[nodes], LP of each node in it; begin_ps: begin of the next window."""
        self._checkpoints, self._sim, self._owner, self._begin_ps = checkpoints, sim, owner, begin_ps
        numbers = range(int(owner.max()) + 1)
        names = [checkpoints.read(f"names-{number}").arrays["npu_of_pair"] for number in numbers]
        self._pairs = QueuePairs(names, owner, sim.layout.owner, sim.graph.npus)
        self._states: dict[int, SavedState] = {}
        self._parts: dict[int, Part] = {}
        self._domains = all_domains(sim.graph, sim.settings, owner)
        own = [domain.switch for domain in sim.layout.domains]
        # replays of a domain can neither be divided nor turn into packets here
        if [domain.switch for domain in self._domains] != own:
            raise OtherDivisionError(
                "--resume: found NVLink domains with replayed collectives that are cut in another way than in the "
                "checkpoint; expected the same division"
            )

    def _old(self, number: int) -> tuple[Part, SavedState]:
        """Return the part and the state of an LP of the checkpoint."""
        if number not in self._parts:
            layout = self._sim.layout
            self._states[number] = self._checkpoints.read(f"lp-{number}")
            self._parts[number] = Part(layout.graph, layout.fabric, self._owner, number, layout.lookahead_ps)
        return self._parts[number], self._states[number]

    def restore(self, lp: LogicalProcess) -> None:
        """Restore an LP that was just built.

        Args:
            lp: The logical process, which was just built.
        """
        incoming = np.concatenate([*lp.part.links_in, np.zeros(0, np.int64)]).astype(np.int64)
        sources = self._owner[self._sim.graph.link_src[incoming]]
        # the old LPs of its nodes, and those that send to it: their packets may be under way
        numbers = np.union1d(self._owner[lp.part.nodes], sources).tolist()
        slot_ptr = np.asarray(self._sim.program.slot_ptr)
        olds = []
        for number in numbers:
            part, state = self._old(number)
            world = as_world(lp.world, state.arrays)
            olds.append(shared_by(part, world, lp, slot_ptr, self._pairs))
        self._make_room(lp, olds)
        for shared in olds:
            if (shared.node >= 0).any():
                self._move(shared)
        ctl, npus = lp.world.net.ctl, lp.part.npus
        ctl.rows_left = lp.world.npus.npu.rows_left[:npus].sum()
        ctl.now_ps, ctl.check = self._begin_ps, 1
        changes: Rows = lp.world.schedule.change
        made = int((changes.begin_ps <= self._begin_ps).sum()) if ctl.fault_ps < s.INF else 0
        ctl.fault_at = made
        ctl.fault_ps = changes[made].begin_ps if made < len(changes) and ctl.fault_ps < s.INF else s.INF
        load_routes(lp.world)
        self._settle_cells(lp, olds)
        self._put_on_wires(lp, olds)

    @staticmethod
    def _make_room(lp: LogicalProcess, olds: Sequence[Shared]) -> None:
        """Let the tables of queue pairs have room for all that come."""
        pairs = sum(len(own_pairs(shared)[0]) for shared in olds)
        receivers = sum(len(own_receivers(shared)) for shared in olds)
        const, ctl = lp.world.net.const, lp.world.net.ctl
        while len(lp.world.qps.qp) < pairs + int(const.reserve_queue_pairs):
            ctl.need = s.NEED_QPS
            lp.world = grow(lp.world)
        # the table of receivers is a map, at most half full
        while len(lp.world.qps.rxqp) < 2 * (receivers + int(const.reserve_queue_pairs) + 1):
            ctl.need = s.NEED_RXQPS
            lp.world = grow(lp.world)
        ctl.queue_pairs, ctl.receivers = pairs, receivers

    def _move(self, shared: Shared) -> None:
        """Move what an old LP and a new one have in common, and the old one's sums, if the new one is their home."""
        move(shared)
        state = self._states[shared.part.number]
        self._move_domains(shared, state)
        samples: Rows = state.arrays["samples"].view(SampleEntry.dtype).view(np.recarray)
        if len(samples):
            samples = samples[shared.link[np.minimum(samples.link, len(shared.link) - 1)] >= 0].copy()
            # the last row may be the link that loses all packets
            samples = samples[samples.link < len(shared.link)]
            samples.link = shared.link[samples.link]
            shared.lp.samples.append(samples)
        if shared.node[0] >= 0:
            self._move_sums(shared, state)

    @staticmethod
    def _move_sums(shared: Shared, state: SavedState) -> None:
        """Move counters, digests and logs of an old LP."""
        old, lp = shared.world, shared.lp
        new = lp.world
        # all LPs have the same windows, so these do not add up
        windows = max(int(old.net.count.windows), int(new.net.count.windows))
        words_of(new.net.count)[:] += np.asarray(old.net.count.base).view(np.int64).reshape(-1)
        new.net.count.windows = windows
        new.net.ctl.finish_ps = max(int(new.net.ctl.finish_ps), int(old.net.ctl.finish_ps))
        new.net.ctl.is_disturbed = max(int(new.net.ctl.is_disturbed), int(old.net.ctl.is_disturbed))
        for word in SUMMED_JOB_WORDS:
            new.net.jobs.total[word] += old.net.jobs.total[word]
        for name in ("flows_out", "flows_in"):
            rows: Rows = state.arrays[name].view(ROW_LISTS[name].dtype).view(np.recarray)
            if len(rows):
                getattr(lp, name).append(rows.copy())
        room = len(new.net.pause_log) // 2
        logs = [
            net.pause_log[: 2 * min(int(net.ctl.pauses), len(net.pause_log) // 2)].reshape(-1, 2)
            for net in (new.net, old.net)
        ]
        log = np.concatenate(logs)
        # the log keeps the first pauses, in order of time
        log = log[np.argsort(log[:, 0], kind="stable")][:room]
        new.net.pause_log[: 2 * len(log)] = log.reshape(-1)
        new.net.ctl.pauses += old.net.ctl.pauses

    def _move_domains(self, shared: Shared, state: SavedState) -> None:
        """Move NVLink domains whose collectives are replayed."""
        lp = shared.lp
        mine = {domain.switch: number for number, domain in enumerate(lp.domains)}
        domains = [domain for domain in self._domains if self._owner[domain.switch] == shared.part.number]
        arrays = array_list(state)
        for number, domain in enumerate(domains):
            if domain.switch not in mine:
                continue
            to = mine[domain.switch]
            move_rows(shared, RowsOf.DOMAIN, np.array([number]), np.array([to]))
            replayed = cast("Replay", lp.replay).domains[to]
            load_domain(replayed, state.values["domains"][number], arrays)
            for running in (one for episode in replayed.episodes for one in episode.together):
                begun = int(np.flatnonzero(running.rows >= 0)[0])
                npu = lp.world.npus.npu[running.group.nodes[begun]]
                schedule = int(lp.world.trace.schedule[int(npu.trace_base) + int(running.rows[begun])])
                # programs of two processes may number their schedules differently
                running.collective = running.collective._replace(schedule=schedule)
            groups = np.array([group.number for group in replayed.groups], np.int64)
            move_rows(shared, RowsOf.GROUP, groups, groups)

    @staticmethod
    def _settle_cells(lp: LogicalProcess, olds: Sequence[Shared]) -> None:
        """Let cells be short if they are in any old LP."""
        ctl, const = lp.world.net.ctl, lp.world.net.const
        if not lp.domains:
            return
        shared = [each.world.net.ctl for each in olds if (each.node >= 0).any()]
        ctl.replay_starts = max(int(old.replay_starts) for old in shared)
        # packets may cross NVLink domains of one of the old LPs, so all cells are short
        ctl.cell_ps = min(int(old.cell_ps) for old in shared)
        ctl.packet_rows = lp.world.nvlink.domain.packet_rows[: len(lp.domains)].sum()
        if ctl.cell_ps < const.long_cell_ps and ctl.packet_rows == 0:
            times = [int(old.retry_ps) for old in shared if old.cell_ps == ctl.cell_ps and old.retry_ps < s.INF]
            ctl.retry_ps = max([int(ctl.now_ps), *times])

    def _put_on_wires(self, lp: LogicalProcess, olds: Sequence[Shared]) -> None:
        """Let all packets that are on their way to nodes of an LP wait on its links."""
        owner, graph, part = self._sim.layout.owner, self._sim.graph, lp.part
        found = [packets_on_wires(shared, part.crossing_words) for shared in olds]
        for shared in olds:
            sent = self._checkpoints.read(f"sent-{shared.part.number}").arrays["packets"]
            found.append(sent.reshape(-1, part.crossing_words))
        packets = np.concatenate(found)
        packets = packets[owner[graph.link_dst[packets[:, LINK]]] == part.number]
        packets[:, 2] = self._pairs.renumbered(packets[:, 1], packets[:, 2])
        links = np.concatenate([part.links, *part.links_in]).astype(np.int64)
        # from the link's number in the fabric to its row of `tx`
        row = np.zeros(graph.links, np.int64)
        row[links] = np.arange(len(links))
        packets[:, LINK] = row[packets[:, LINK]]
        # links need their packets in the order of arrival
        put_on_links(lp, packets[np.argsort(packets[:, 0], kind="stable")])


def packets_on_wires(shared: Shared, columns: int) -> Int64:
    """Return int64[n, columns]: packets of an old LP in inboxes and on links, as of `sent_packets`.

    Args:
        shared: The old LP and what it has in common with a new one.
        columns: Number of words of a packet in the result.
    """
    net: Any = shared.world.net
    ctl, nodes = net.ctl, len(shared.part.nodes)
    box = inbox_of(np.arange(nodes)[:, None], np.arange(s.SIDES)).reshape(-1)
    side = np.tile(np.arange(s.SIDES), nodes)
    used = net.inbox[box] >= 0
    box, side = box[used], side[used]
    records, counts = queues_of(net, net.inbox[box], net.inbox[box + 1])
    packets, telemetry = words_of_packets(net, records)
    # begin of the cell whose packets the inbox collects
    begin_ps = ctl.now_ps + ((side - ctl.side) & (s.SIDES - 1)) * ctl.cell_ps
    in_inboxes = _crossing(packets, telemetry, inbox_link(packets[:, 0]), columns)
    in_inboxes[:, 0] = np.repeat(begin_ps, counts) + inbox_later_ps(packets[:, 0])
    links = np.flatnonzero(net.wait_head >= 0)
    records, counts = queues_of(net, net.wait_head[links], np.full(len(links), -1))
    packets, telemetry = words_of_packets(net, records)
    numbers = np.repeat(number_of(net.tx.meta[links]), counts)
    return np.concatenate([in_inboxes, _crossing(packets, telemetry, numbers, columns)])


def _crossing(packets: Int64, telemetry: Int64, links: Int64, columns: int) -> Int64:
    """Return packets with their links as between worlds (pdes/core/packet.py)."""
    rows = np.zeros((len(packets), columns), np.int64)
    rows[:, :LINK], rows[:, LINK] = packets, links
    rows[:, LINK + 1 :] = telemetry[:, : columns - LINK - 1]
    return rows
