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
from typing import Any

import numpy as np

from nadi.pdes.construction.layout import Simulation
from nadi.pdes.core import Int64, packet, state as s
from nadi.pdes.reuse import under_way
from nadi.pdes.workers.team import Team

FEWEST_PERIODS = 2  # periods below which going forward is not worth it
SAMPLES = 48  # windows in which a port is watched, to guess a period
ALIKE = 3  # stretches of equally many packets that last equally long: then their length is guessed to be a period
STATES, MOST_STATES = 8, 128  # states of the first look, and of any: each that fails doubles those of the next
FEWEST_RETURNS = 4  # times that counts of ties must return within a message, for a look to wait for them
STATES_WITH_TIES = 3  # states that are looked at once they differ in counts of ties alone
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
    """Finds and counts periods within long messages, in a run of one process."""

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
        # lengths of cells and windows while no period is sought, None while one is
        self._own_lengths: tuple[int, int] | None = None
        self._port = -1  # the port that is watched, of those of all NPUs; -1 none
        self._sent: Int64 | None = None  # packets that ports had sent
        self._samples: list[tuple[int, int]] = []  # packets that it had sent, and when the last one had left
        self._period_ps = 0  # period that is tried, 0 none
        self._instants: list[under_way.Instant] = []
        if may_look(sim):
            self._sim = sim
            self._net: Any = sim.lps[0].world.net  # cells are equally long in all
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
        if self._own_lengths:
            self._set_cells(*self._own_lengths)
            self._own_lengths = None
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
        packets = 0
        for lp in self._sim.lps:
            net = lp.world.net
            if int(net.ctl.fault_ps) < s.INF:
                return False
            if net.ctl.cell_ps != net.const.long_cell_ps or net.ctl.changes_cell:  # packets cross NVLinks
                return False
            pairs = under_way.queue_pairs_of(lp.world)
            pairs = pairs[pairs["una"] != pairs["end_seq"]]
            left = pairs["current_end"] - pairs["next_seq"]
            is_within = (pairs["current_message"] >= 0) & (pairs["head_message"] == pairs["current_message"])
            if not is_within.all() or (left <= FEWEST_PERIODS).any():
                return False
            packets += int(left.sum())
        # none if no message is open; a packet takes more hops than one
        return packets >= max(1, 2 * self._hops_of_look)

    def _ports(self) -> Any:
        """Return the rows of the outgoing links of all NPUs."""
        nets: list[Any] = [lp.world.net for lp in self._sim.lps]
        return np.concatenate([under_way.plain(net.tx[: int(net.out_ptr[int(net.const.npus)])]) for net in nets])

    def _choose_port(self) -> None:
        """Choose the port of an NPU that has sent most packets since the last window."""
        sent = packet.packets_sent(self._ports()["sent_packets"])
        if self._sent is not None and (sent > self._sent).any():
            self._port = int((sent - self._sent).argmax())
        self._sent = sent
        self._go_on()

    def _sample(self) -> None:
        """Watch the port for a period; seek one once there is a guess."""
        tx = self._ports()[self._port]
        self._samples.append((int(packet.packets_sent(int(tx["sent_packets"]))), int(tx["busy_ps"])))
        guess_ps = guessed_period_ps(self._samples)
        longest_ps = int(self._net.ctl.cell_ps)
        cells = guess_ps and cells_of(guess_ps, longest_ps)
        if cells:
            self._period_ps, cell_ps = cells
            self._own_lengths = longest_ps, int(self._team.state.window_ps)
            self._set_cells(cell_ps, cell_ps)
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
        sim, team = self._sim, self._team
        cell_ps = int(self._net.const.long_cell_ps)
        moment_ps = int(team.state.soonest_ps) // cell_ps * cell_ps
        first_ps = self._instants[0].moment_ps if self._instants else moment_ps
        if any(int(lp.world.net.ctl.cell_ps) != cell_ps for lp in sim.lps):
            self._fail()
            return
        self._go_on()
        if (moment_ps - first_ps) % self._period_ps:
            return
        if not self._is_steady():
            self._fail()
            return
        packets = under_way.take_off(sim)
        now = under_way.instant(sim, packets, moment_ps)
        pending_ps = under_way.pending_event_ps(sim)
        # in the order of `_instants`, of which the first is the earliest
        returns = [under_way.stretches_to_return(each, now) for each in self._instants]
        left = [
            under_way.stretches_left(sim, each, now, pending_ps) // stretches if stretches else 0
            for each, stretches in zip(self._instants, returns, strict=True)
        ]
        found = [
            (count, each)
            for count, each, stretches in zip(left, self._instants, returns, strict=True)
            if stretches == 1
        ]
        periods, earlier = max(found, key=lambda each: each[0], default=(0, now))
        if periods >= FEWEST_PERIODS:
            before = self._hops()
            under_way.go_forward(sim, packets, earlier, now, periods)
            self._count(periods, self._hops() - before)
            self._tries = TRIES
        self._set_down(packets)
        if periods >= FEWEST_PERIODS:
            self.end(self._hops_of_look)
            return
        if self._awaits_ties(now, returns, left):
            return
        # a state recurs after as many others as a period has: of these, each power of two is kept (Brent, 1980)
        if self._seen & (self._seen - 1) == 0:
            self._instants = [*self._instants[:1], *self._instants[1:][-KEPT:], now]
        self._seen += 1
        if self._seen >= self._states:
            self._fail()

    def _awaits_ties(self, now: under_way.Instant, returns: list[int], left: list[int]) -> bool:
        """If a state differs from an earlier one in counts of ties alone, seek only where these return.

        returns, left: for each of `_instants`, after how many stretches to `now` it returns, and how often it can.
        """
        # the latest first, as the shortest stretch
        for earlier, stretches, times in reversed(list(zip(self._instants, returns, left, strict=True))):
            if stretches > 1 and times >= FEWEST_RETURNS:
                self._period_ps = stretches * (now.moment_ps - earlier.moment_ps)
                self._instants = [now]
                self._seen = self._states - STATES_WITH_TIES
                return True
        return False

    def _hops(self) -> int:
        """Return the packet-hops of all logical processes."""
        return sum(int(lp.world.net.count.hops) for lp in self._sim.lps)

    def _set_cells(self, cell_ps: int, window_ps: int) -> None:
        """Let cells be cell_ps long from the next window on, and windows window_ps."""
        packets = under_way.take_off(self._sim)
        for lp in self._sim.lps:
            const, ctl = lp.world.net.const, lp.world.net.ctl
            if ctl.cell_ps == const.long_cell_ps:
                ctl.cell_ps = cell_ps
            if const.cell_ps == const.long_cell_ps:
                const.cell_ps = cell_ps
            const.long_cell_ps, const.lookahead_ps = cell_ps, window_ps
        state = self._team.state
        state.cell_ps, state.window_ps = cell_ps, window_ps
        self._set_down(packets)
        # workers that stop for a checkpoint have read the begin of the next window, which must be that of a cell
        self._team.workers.begin_ps = state.begin_ps = int(state.soonest_ps) // cell_ps * cell_ps

    def _set_down(self, packets: Int64) -> None:
        """Let packets wait on their links; set the earliest event of the run."""
        soonest_ps = under_way.set_down(self._sim, packets)
        self._team.workers.soonest_ps = self._team.state.soonest_ps = soonest_ps  # of all workers together


def may_look(sim: Simulation) -> bool:
    """Return whether a run has one process and none of the parts whose state is not looked at.

    Args:
        sim: The run.
    """
    if len(sim.lps) < sim.layout.lps:
        return False
    net = sim.lps[0].world.net
    return (
        not any(net.hooks[name] for name in _OTHER_PARTS.split())
        and not net.const.extends_transport
        and not net.const.carries_send_time
        and not net.const.queues
        and not any((lp.world.net.link_class.error > 0).any() for lp in sim.lps)
        and not any((lp.world.net.link_class.special & s.CIRCUIT).any() for lp in sim.lps)
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
