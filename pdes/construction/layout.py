"""The layout of a run: which logical process (LP) owns which nodes and links, the window length, outboxes, and LPs.

All workers agree on the layout. An LP numbers its own nodes in the order of their numbers in the whole fabric, so its
NPUs come first, and its outgoing links node by node. The links that come from other LPs follow, neighbour by neighbour.
Links between two LPs are numbered, on both sides, in the order of their numbers in the whole fabric.

An outbox has a list of packets for each neighbour; the LPs of another team (the ranks of another node) share one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from nadi.pdes.construction.domains import Domain, all_domains, long_cell_ps, may_replay
from nadi.pdes.construction.fabric import Fabric
from nadi.pdes.construction.schedule import with_lasting
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import Graph, Int64, Program, Rows, state as s
from nadi.pdes.core.declared import grow
from nadi.pdes.core.jit import Directory, hook_address, rows_of, zeros
from nadi.pdes.core.packet import FAR_LP, FAR_WINDOWS, HEADER_WORDS, WORD_BYTES, link_meta
from nadi.pdes.core.rows.network import OutgoingLink


def offsets(counts: ArrayLike) -> Int64:
    """Return the CSR offsets of counts[n]: int64[n + 1], 0 and the sums of the first 1 to n counts."""
    return np.append(0, np.cumsum(counts, dtype=np.int64))


def numbers_in_teams(team_of_lp: Int64) -> Int64:
    """Return int64[lps]: number of each LP in its team; team_of_lp: int64[lps], number of its team."""
    order = np.argsort(team_of_lp, kind="stable")
    begins = offsets(np.bincount(team_of_lp))
    numbers = np.empty_like(team_of_lp)
    numbers[order] = np.arange(len(team_of_lp)) - begins[team_of_lp[order]]
    return numbers


class Part:
    """Nodes and links of one LP, which has a number."""

    def __init__(self, graph: Graph, fabric: Fabric, owner: Int64, number: int, lookahead_ps: int) -> None:
        """Take the part of LP `number`; owner: int64[nodes], each node's LP; lookahead_ps: length of a window."""
        self.number = number
        self.crossing_words = fabric.crossing_words
        self.has_tags = fabric.has_tags
        self.nodes = np.flatnonzero(owner == number)  # int64[n], own nodes' numbers in the fabric, ascending
        self.npus = int(np.searchsorted(self.nodes, graph.npus))  # own NPUs, which come first
        self.local = np.full(graph.nodes, -1, np.int64)  # own number of each node of the fabric, -1 = another LP's
        self.local[self.nodes] = np.arange(len(self.nodes))
        src, dst = graph.link_src, graph.link_dst
        own = np.flatnonzero(owner[src] == number)
        self.links = own[np.argsort(self.local[src[own]], kind="stable")]  # own outgoing links, node by node
        # int64[n + 1], own outgoing links of a node
        self.out_ptr = offsets(np.bincount(self.local[src[self.links]], minlength=len(self.nodes)))
        leaving = own[owner[dst[own]] != number]
        coming = np.flatnonzero((owner[dst] == number) & (owner[src] != number))
        self.neighbours = np.unique(owner[dst[leaving]]).tolist()  # LPs that own links lead to, ascending
        # per neighbour, links to it and from it, ascending, and the maximum of packets over them in a window
        self.links_out = [leaving[owner[dst[leaving]] == other] for other in self.neighbours]
        self.links_in = [coming[owner[src[coming]] == other] for other in self.neighbours]
        packet_ps = np.maximum((fabric.smallest_bytes * fabric.fastest_psb + 0.5).astype(np.int64), 1)
        max_packets = FAR_WINDOWS * lookahead_ps // packet_ps + 2
        self.rooms = [int(max_packets[links].sum()) for links in self.links_out]
        self.rooms_in = [int(max_packets[links].sum()) for links in self.links_in]
        self.list_of = np.arange(len(self.neighbours))  # per neighbour, its list in the outbox
        self.first_far = np.zeros(len(self.neighbours), np.int64)  # per neighbour, name of the first link to it (`far`)
        self.outer = len(self.nodes)  # first switch that acts before all other nodes; number of nodes = no such switch
        self.splits = False  # whether only these switches send to other nodes of a cluster, see `send_first`

    def send_first(self, graph: Graph, remote_lps: Collection[int]) -> None:
        """Let switches with links to the LPs `remote_lps` act before other nodes, unless an NPU has such links.

        Args:
            graph: The fabric (`Graph`).
            remote_lps: Numbers of the LPs of other teams.
        """
        # The first of them and all nodes with higher numbers count as such switches: builders of fabrics number the
        # switches of higher tiers, which have the links between parts, after the others.
        links = [links for other, links in zip(self.neighbours, self.links_out, strict=True) if other in remote_lps]
        senders = self.local[graph.link_src[np.concatenate([*links, np.zeros(0, np.int64)]).astype(np.int64)]]
        first = int(senders.min(initial=len(self.nodes)))
        if first >= self.npus:
            self.outer, self.splits = first, True

    def join_teams(self, graph: Graph, owner: Int64, team_of_lp: Int64) -> None:
        """Let the LPs of each other team share a list; neighbours of the LP's own team then come first.

        Args:
            graph: The fabric (`Graph`).
            owner: int64[nodes], LP of each node.
            team_of_lp: int64[lps], number of each LP's team.
        """
        here = team_of_lp[self.number]
        teams = team_of_lp[np.array(self.neighbours, np.int64)]
        near = int(np.count_nonzero(teams == here))
        # the own team first, then team by team, each in the old order
        order = np.argsort(np.where(teams == here, -1, teams), kind="stable").tolist()
        for name in ("neighbours", "links_out", "links_in", "rooms", "rooms_in"):
            setattr(self, name, [getattr(self, name)[place] for place in order])
        self.list_of = np.append(np.arange(near), near + np.unique(teams[order][near:], return_inverse=True)[1])
        numbers = numbers_in_teams(team_of_lp)
        src, dst = owner[graph.link_src], owner[graph.link_dst]
        before = np.bincount(dst[(team_of_lp[src] == here) & (src < self.number)], minlength=len(team_of_lp))
        far_lps = self.neighbours[near:]
        self.first_far[near:] = numbers[far_lps] << FAR_LP | before[far_lps]

    @property
    def lists(self) -> int:
        """Number of lists of the outbox."""
        return int(self.list_of.max(initial=-1)) + 1

    def list_of_neighbour(self) -> dict[int, int]:
        """Return the list of each neighbour, by the number of the neighbour."""
        return dict(zip(self.neighbours, self.list_of.tolist(), strict=True))

    def half_words(self, packets: int) -> int:
        """Return the number of words of half an outbox for `packets` packets, whole cache lines."""
        return -(-(HEADER_WORDS + packets * self.crossing_words) // 8) * 8

    def outbox_at(self) -> Int64:
        """Return int64[lists x 2 + 1]: the begin of each half, then the length of the outbox."""
        rooms = np.bincount(self.list_of, self.rooms, self.lists).astype(np.int64)
        return offsets([self.half_words(room) for room in rooms.tolist() for _ in range(2)])

    def tx_rows(self, graph: Graph, fabric: Fabric, owner: Int64) -> Rows:
        """Return the table `tx`: own outgoing links, then those from other LPs.

        Args:
            graph: The fabric (`Graph`).
            fabric: Links of the fabric by class, and their times (`Fabric`).
            owner: int64[nodes], LP of each node.
        """
        links = np.concatenate([self.links, *self.links_in]).astype(np.int64)
        list_of_lp = np.full(int(owner.max()) + 1, -1, np.int64)
        list_of_lp[self.neighbours] = self.list_of
        dst = graph.link_dst[links]
        node = np.where(self.local[dst] >= 0, self.local[dst], len(self.nodes) + list_of_lp[owner[dst]])
        return rows_of(OutgoingLink, len(links), meta=link_meta(node, links, fabric.link_class[links]))

    def far(self, graph: Graph) -> Int64:
        """Return int64[own links]: what names each link in a list.

        This is the index of the link among the links to its neighbour. For a link to another team, it is the index
        among the links from all LPs of the own team to the LP at its end, and from bit FAR_LP on the number of that LP
        in its team.

        Args:
            graph: The fabric (`Graph`).
        """
        place = np.zeros(graph.links, np.int64)
        for links, first in zip(self.links_out, self.first_far.tolist(), strict=True):
            place[links] = first + np.arange(len(links))
        return place[self.links]

    def ghost(self) -> Int64:
        """Return int64[lists]: `tx` row of the first link that comes from the neighbours that share each list."""
        counts = np.bincount(self.list_of, [len(links) for links in self.links_in], self.lists).astype(np.int64)
        return len(self.links) + offsets(counts)[:-1]


class Outboxes:
    """Outboxes of LPs in memory that this process can access; memory: allocator, words -> int64[words] of zeros."""

    def __init__(self, parts: Sequence[Part], memory: Callable[[int], Int64] = zeros) -> None:
        """Take the memory of all outboxes of LPs' parts from `memory`, which returns int64[words] of zeros."""
        self._lists = {part.number: part.list_of_neighbour() for part in parts}
        self._at = {part.number: part.outbox_at() for part in parts}
        self.outbox = {number: memory(int(at[-1])) for number, at in self._at.items()}

    def address(self, sender: int, receiver: int, half: int) -> int:
        """Return the address of a half, 0 or 1, of the outbox of LP `sender` for LP `receiver`."""
        at = self._at[sender][2 * self._lists[sender][receiver] + half]
        return self.outbox[sender].ctypes.data + WORD_BYTES * int(at)


def share(lps: int, workers: int, number: int) -> range:
    """Return the range of LPs, of `lps`, of process or rank `number` of `workers`: about as many for each."""
    return range(lps * number // workers, lps * (number + 1) // workers)


def shares(owner: ArrayLike, workers: int) -> Int64:
    """Return int64[nodes], the process or rank of each node out of `workers`; owner: int[nodes], each node's LP."""
    owner = np.asarray(owner, np.int64)
    lps = int(owner.max()) + 1
    of_lp = np.concatenate([np.full(len(share(lps, workers, worker)), worker) for worker in range(workers)])
    return of_lp[owner]


class Layout:
    """A fabric divided among LPs, and what all workers of a run have decided besides its settings.

    `control` is the congestion control, RATE_LIMITED in place of none where lanes are limited to shares; `reuses` is
    whether the run reuses what repeats, which ends where it was disturbed.
    """

    def __init__(self, graph: Graph, settings: Settings, owner: ArrayLike | None = None) -> None:
        """Divide the fabric; owner: int[nodes], the LP of each node, from 0 without gaps; None = one LP."""
        self.graph = graph
        self.lasting = with_lasting(graph, settings.faults)  # the fabric with what faults change for all of the run
        self.owner = np.zeros(graph.nodes, np.int64) if owner is None else np.asarray(owner, np.int64)
        self.lps = int(self.owner.max()) + 1
        self.fabric = Fabric(graph, settings)
        cut = self.owner[graph.link_src] != self.owner[graph.link_dst]
        self.control, self.reuses = settings.congestion_control, settings.reuse
        self._may_replay = may_replay(graph, settings)
        self.domains = all_domains(graph, settings, self.owner)  # NVLink domains with collectives that may be replayed
        # windows begin at multiples of the longest cell, and a window is whole cells, at most the reach of any link
        # between LPs; a cell without such links
        self.grid_ps = cell_ps = long_cell_ps(graph, settings, self.fabric, self.domains)
        shortest_ps = int(self.fabric.reach_ps[cut].min()) if cut.any() else cell_ps
        self.lookahead_ps = max(1, shortest_ps // cell_ps) * cell_ps

    @property
    def replays(self) -> bool:
        """Whether collectives of NVLink domains may be replayed."""
        return self.reuses and self._may_replay

    def part(self, number: int) -> Part:
        """Return the part of LP number `number`."""
        return Part(self.graph, self.fabric, self.owner, number, self.lookahead_ps)

    def pairs(self) -> Int64:
        """Return int64[m, 2]: pairs of LPs with links from the first to the second, sorted."""
        src, dst = (self.owner[ends].astype(np.int64) for ends in (self.graph.link_src, self.graph.link_dst))
        pairs = np.unique((src * self.lps + dst)[src != dst])
        return np.stack([pairs // self.lps, pairs % self.lps], axis=1)

    def share(self, workers: int, number: int) -> range:
        """Return the range of LPs of process or rank `number` out of `workers`."""
        return share(self.lps, workers, number)


# A run under way: the logical processes of this process, and the results taken from them so far.


class Replayer(Protocol):
    """Interface of pdes.reuse.replay.Replay, which finds the ends of replayed collectives."""

    def serve(self) -> None:
        """Find the ends of collectives that members have started."""

    def finish(self, before_ps: int = s.INF) -> None:
        """Count the episodes that are over before a time.

        Args:
            before_ps: Time in ps; INF = count all episodes.
        """

    @property
    def replayed_hops(self) -> int:
        """Packet-hops that this process has replayed."""

    @property
    def has_stopped(self) -> bool:
        """Whether collectives of these domains seldom repeat, so that all that start go by packets."""


class LogicalProcess:
    """One LP: its part of the fabric, its world, and the flow records taken from it."""

    def __init__(self, part: Part, world: s.World, row_ptr: Int64, hooks: Mapping[str, Callable[..., Any]]) -> None:
        """Take the state; row_ptr: int64[own NPUs + 1], its NPUs' trace rows; hooks: functions by names of `Hooks`."""
        self.part = part
        self.row_ptr = row_ptr
        self.flows_out: list[Rows] = []  # records of posted messages
        self.flows_in: list[Rows] = []  # records of complete messages
        self.samples: list[Rows] = []  # entries of the log of samples
        self._world = world
        self._directory = Directory(world, f"LP {part.number}")
        self.domains: list[Domain] = []  # NVLink domains whose collectives may be replayed
        self.replay: Replayer | None = None  # of the episodes in these domains
        self.back: LogicalProcess | None = (
            None  # LP of the whole fabric, where kernels look up acknowledgements' routes
        )
        world.net.const.address = self.address = self._directory.address  # of the world, for kernels
        for name, function in hooks.items():
            world.net.hooks[name] = hook_address(function)

    @property
    def world(self) -> s.World:
        """The LP's whole state; replaced by one with longer arrays when a pool grows."""
        return self._world

    @world.setter
    def world(self, world: s.World) -> None:
        self._world = world
        self._directory.update(world)

    def check_guards(self) -> None:
        """Raise MemoryDamageError if a kernel wrote past an end of any array of the world."""
        self._directory.check_guards()
        if self.back is not None:
            self.back.check_guards()

    def make_room(self, counter: str, need: int, rows: int) -> None:
        """Let a pool have at least `rows` free rows; counter: their word of `ctl`; need: NEED_* of the pool."""
        while self._world.net.ctl[counter] < rows:
            self._world.net.ctl.need = need
            self.world = grow(self._world)

    def take_samples(self) -> None:
        """Move the entries of the log of samples out of the world."""
        net = self._world.net
        if net.const.sample_ps:
            self.samples.append(net.sample_log[net.ctl.free_samples :].copy())
            net.ctl.free_samples = len(net.sample_log)

    def take_flows(self) -> None:
        """Move the flow records out of the world."""
        qps, ctl = self._world.qps, self._world.net.ctl
        for name, rows in (("flows_out", qps.flow_out), ("flows_in", qps.flow_in)):
            if ctl[name]:
                getattr(self, name).append(rows[: ctl[name]].copy())
                ctl[name] = 0


@dataclass
class Simulation:
    """A run, or this process's part of it."""

    layout: Layout
    program: Program
    settings: Settings
    lps: list[LogicalProcess]
    setup_s: float

    @property
    def graph(self) -> Graph:
        """The fabric."""
        return self.layout.graph


class LeastWaiting(NamedTuple):
    """The worker of a team that has waited least: the others have waited for it."""

    rank: int  # its MPI rank
    worker: int  # its number in the team
    waiting_share: float  # share of the time since the first window that it waited, 0 to 1
    mean_waiting_share: float  # mean of that share over the team


@dataclass(frozen=True)
class Snapshot:
    """Progress of a run."""

    now_ps: int
    packet_hops: int
    nodes_done: int
    nodes_total: int
    wall_s: float
    messages: int | None = None  # number of messages received, at message level
    slowest: LeastWaiting | None = None  # of the team of the first worker; None = it has one worker
    stopped_replaying: bool = False  # whether collectives of NVLink domains seldom repeat, so that all go by packets
    counted_hops: int = 0  # packet-hops that were counted with periods of the run, outside of replayed collectives
    replayed_hops: int = 0  # those of replayed collectives of the first process, in these periods, too


Progress = Callable[[Snapshot], None]  # callback that receives a snapshot from time to time
