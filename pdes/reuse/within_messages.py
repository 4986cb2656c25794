"""Recurrence with packets under way: what repeats within long messages is counted, and not simulated.

A message of hundreds of megabytes is packets that follow each other in a steady stream: with static windows, queues,
packets on links and queue pairs are soon the same again after each packet, or each few, but for the time and for
sequence numbers. If the whole state of the network is that of an earlier moment, a *period* later, and if all that has
happened in between are packets within messages, the same follows again, until a message ends or an NPU acts otherwise.
The run moves forward by whole periods up to then: times, sequence numbers, counters, and what switches have counted.
No message and no trace row ends in these periods, so that digest and tables of messages get nothing.

States are compared between two windows, which lie on a grid, and periods fit the grid only by chance. So cells are as
long as a part of the period while it is sought; no result depends on their length.
"""

from collections.abc import Callable

import numpy as np

from nadi.pdes.construction import packets as plain_packets
from nadi.pdes.construction.layout import Simulation
from nadi.pdes.core import Int64, packet, state as s
from nadi.pdes.reuse import under_way
from nadi.pdes.workers.team import Team

FEWEST_PERIODS = 2  # periods below which going forward is not worth it
SAMPLES = 48  # windows in which a port is watched, to guess a period
ALIKE = 3  # stretches of equally many packets that last equally long: then their length is guessed to be a period
STATES, MOST_STATES = 8, 128  # states of the first look, and of any: each that fails doubles those of the next
KEPT = 3  # latest states that are kept, beside the first
MOST_PARTS, MOST_MULTIPLES = 16, 32  # cells of a period, and periods that are whole cells together
LOOKS_APART = 512  # looks at a state from one look for a period to the next, if nothing recurs: 1 % of the time
SOON, TRIES = 8, 3  # likewise for so many looks after periods were found

# Optional parts of the engine whose state is not looked at here, by their hooks.
_OTHER_PARTS = (
    "congestion_control detour publish balancing telemetry discipline selective_sender credits paths nic_send act "
    "npus_with_flows settle"
)


class WithinMessages:
    """Finds and counts periods within long messages, in a run of one logical process."""

    def __init__(self, sim: Simulation, team: Team, hops_of_look: int, count: Callable[[int, int], None]) -> None:
        """Look at a Simulation run by a team; count: takes the number of periods counted, and their packet-hops.

        hops_of_look: packet-hops that take as long as a look at a state.
        """
        self._count = count
        self._team = team
        self._hops_of_look = hops_of_look
        self._states = STATES  # states of a look
        self._seen = 0  # states in this look so far
        self._tries = 0  # looks that follow soon
        self._own_cell_ps = 0  # length of cells while no period is sought
        self._port = -1  # the port that is watched, -1 none
        self._sent: Int64 | None = None  # packets that ports had sent
        self._samples: list[tuple[int, int]] = []  # packets that it had sent, and when the last one had left
        self._period_ps = 0  # period that is tried, 0 none
        self._instants: list[under_way.Instant] = []
        if may_look(sim):
            self._lp = sim.lps[0]
            self._wait(LOOKS_APART // 4 * hops_of_look)

    def _gap_hops(self) -> int:
        """Return the packet-hops from one look to the next if it fails."""
        return LOOKS_APART * self._states // STATES * self._hops_of_look

    def _wait(self, hops: int) -> None:
        """Look again after some packet-hops."""
        self._port, self._sent, self._samples, self._instants, self._period_ps = -1, None, [], [], 0
        self._seen = 0
        self._team.state.look_hops = int(self._team.state.hops) + 1 + hops

    def _go_on(self) -> None:
        """Look again after the next window in which packets arrive."""
        self._team.state.look_hops = int(self._team.state.hops) + 1

    def end(self, hops: int = 0) -> None:
        """End a look, and let cells be as long as before; hops: packet-hops until the next one."""
        if self._own_cell_ps:
            self._set_cells(self._own_cell_ps)
            self._own_cell_ps = 0
        if self._team.state.look_hops < s.INF:
            self._wait(hops)

    def serve(self) -> None:
        """Look at the state at the end of a window, at which all workers have stopped; go forward if possible."""
        if self._period_ps:
            self._seek()
        elif self._port >= 0:
            self._sample()
        elif self._is_steady():
            self._choose_port()
        else:
            self._wait(self._hops_of_look)

    def _is_steady(self) -> bool:
        """Return whether all open messages have many packets left, and nothing else is under way on links."""
        world = self._lp.world
        pairs = under_way.plain(world.qps.qp)[: int(world.net.ctl.queue_pairs)]
        is_open = pairs["una"] != pairs["end_seq"]
        if not is_open.any() or int(world.net.ctl.fault_ps) < s.INF:
            return False
        ctl, const = world.net.ctl, world.net.const
        if ctl.cell_ps != const.long_cell_ps or ctl.changes_cell:  # packets cross links of NVLink domains
            return False
        open_pairs = pairs[is_open]
        left = open_pairs["current_end"] - open_pairs["next_seq"]
        is_within = (open_pairs["current_message"] >= 0) & (open_pairs["head_message"] == open_pairs["current_message"])
        hops = int(left.sum())  # a packet takes more hops than one
        return bool(is_within.all()) and hops >= 2 * self._hops_of_look and int(left.min()) > FEWEST_PERIODS

    def _choose_port(self) -> None:
        """Choose the port of an NPU that has sent most packets since the last window."""
        net = self._lp.world.net
        ports = int(net.out_ptr[int(net.const.npus)])
        sent = packet.packets_sent(net.tx.sent_packets[:ports])
        if self._sent is not None and (sent > self._sent).any():
            self._port = int((sent - self._sent).argmax())
        self._sent = sent
        self._go_on()

    def _sample(self) -> None:
        """Watch the port for a period; seek one once there is a guess."""
        tx = self._lp.world.net.tx[self._port]
        self._samples.append((int(packet.packets_sent(int(tx.sent_packets))), int(tx.busy_ps)))
        guess_ps = guessed_period_ps(self._samples)
        cells = guess_ps and cells_of(guess_ps, int(self._lp.world.net.ctl.cell_ps))
        if cells:
            self._period_ps, cell_ps = cells
            self._own_cell_ps = int(self._lp.world.net.ctl.cell_ps)
            self._set_cells(cell_ps)
        elif len(self._samples) >= SAMPLES:
            self._fail()
            return
        self._go_on()

    def _fail(self) -> None:
        """Give up a look: the next one must wait for longer."""
        self._tries -= 1
        if self._tries >= 0:
            self.end(SOON * self._hops_of_look)
            return
        self._states = min(MOST_STATES, 2 * self._states)
        self.end(self._gap_hops())

    def _seek(self) -> None:
        """Compare the state with earlier ones, if it is whole periods later, and go forward if one is equal."""
        team, world = self._team, self._lp.world
        cell_ps = int(world.net.const.long_cell_ps)
        moment_ps = int(team.state.soonest_ps) // cell_ps * cell_ps
        first_ps = self._instants[0].moment_ps if self._instants else moment_ps
        if int(world.net.ctl.cell_ps) != cell_ps:
            self._fail()
            return
        self._go_on()
        if (moment_ps - first_ps) % self._period_ps:
            return
        if not self._is_steady():
            self._fail()
            return
        packets = under_way.take_off(self._lp)
        now = under_way.instant(self._lp, packets, moment_ps)
        pending_ps = under_way.pending_event_ps(world)
        found = [(under_way.repetitions(world, each, now, pending_ps), each) for each in self._instants]
        periods, earlier = max(found, key=lambda each: each[0], default=(0, now))
        if periods >= FEWEST_PERIODS:
            before = int(world.net.count.hops)
            under_way.go_forward(self._lp, packets, earlier, now, periods)
            self._count(periods, int(world.net.count.hops) - before)
            self._tries = TRIES
        self._set_down(packets)
        if periods >= FEWEST_PERIODS:
            self.end(self._hops_of_look)
            return
        # a state recurs after as many others as a period has: of these, each power of two is kept (Brent, 1980)
        if self._seen & (self._seen - 1) == 0:
            self._instants = [*self._instants[:1], *self._instants[1:][-KEPT:], now]
        self._seen += 1
        if self._seen >= self._states:
            self._fail()

    def _set_cells(self, cell_ps: int) -> None:
        """Let cells and windows be cell_ps long from the next window on."""
        lp, state = self._lp, self._team.state
        const, ctl = lp.world.net.const, lp.world.net.ctl
        packets = under_way.take_off(self._lp)
        if ctl.cell_ps == const.long_cell_ps:
            ctl.cell_ps = cell_ps
        if const.cell_ps == const.long_cell_ps:
            const.cell_ps = cell_ps
        const.long_cell_ps = const.lookahead_ps = state.cell_ps = state.window_ps = cell_ps
        self._set_down(packets)

    def _set_down(self, packets: Int64) -> None:
        """Let packets wait on their links; set the LP's earliest event."""
        plain_packets.put_back(self._lp, packets)
        net, team = self._lp.world.net, self._team
        soonest_ps = min(int(net.ctl.soonest_ps), int(net.next_time.min(initial=s.INF)))
        team.workers.soonest_ps = team.state.soonest_ps = soonest_ps  # of the one worker


def may_look(sim: Simulation) -> bool:
    """Return whether a run has one logical process and none of the parts whose state is not looked at.

    Args:
        sim: The run.
    """
    if sim.layout.lps > 1:
        return False
    net = sim.lps[0].world.net
    return (
        not any(net.hooks[name] for name in _OTHER_PARTS.split())
        and not net.const.extends_transport
        and not net.const.carries_send_time
        and not net.const.queues
        and not (net.link_class.error > 0).any()
        and not (net.link_class.special & s.CIRCUIT).any()
    )


def guessed_period_ps(samples: list[tuple[int, int]]) -> int:
    """Return the shortest time in which a port seems to repeat what it does, 0 = none.

    Args:
        samples: Number of packets that the port had sent, and when the last of them had left, at some moments.
    """
    sent, left_ps = np.array(samples, np.int64).T
    later, earlier = np.nonzero(np.tri(len(sent), k=-1, dtype=bool))
    packets, lengths_ps = sent[later] - sent[earlier], left_ps[later] - left_ps[earlier]
    for count in np.unique(packets[packets > 0]).tolist():
        own = lengths_ps[packets == count]
        if len(own) >= ALIKE and (own == own[0]).all():
            return int(own[0])
    return 0


def cells_of(period_ps: int, longest_ps: int) -> tuple[int, int] | None:
    """Return a multiple of a period, and the length of a cell that divides it.

    Args:
        period_ps: Length of the period in ps.
        longest_ps: Length in ps that cells may have at most.
    """
    first = max(1, longest_ps // period_ps)  # many short periods together, as short cells take time
    for multiple in range(first, first + MOST_MULTIPLES):
        whole_ps = multiple * period_ps
        fewest = -(-whole_ps // longest_ps)
        for parts in range(fewest, fewest + MOST_PARTS):
            if whole_ps % parts == 0:
                return whole_ps, whole_ps // parts
    return None
