"""Work of each node and link of a fabric: expected from packets under each kind of routing, assumed, or measured."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.errors import InputError
from nadi.topologies import NVSWITCH, RING, SINGLE, UNREACHABLE, DimensionRouting, Graph, TableRouting


class PartitionError(InputError):
    """A fabric cannot be divided as the user requests."""


# Packets of each link under TableRouting: all packets at a switch with the same target move on together.
#
# The target is the NPU's first switch, or the NPU itself if it has several. The packets farthest from their targets
# move first, so that every pair of switch and target is processed once, with all packets that ever get there.


_MAX_ENTRIES = 1 << 21  # (switch, target, link) triples per block, to bound memory
_MAX_DENSE = 1 << 23  # size of a table up to which sums use an array over all states


def table_loads(graph: Graph, routing: TableRouting, src: Int64, dst: Int64, packets: Float64) -> Float64:
    """Return float64[links]: packets of each link, shared among the links that `next_links` allows.

    Args:
        graph: The fabric (`Graph`).
        routing: Routing of the fabric by tables.
        src: int64[p], the sending NPU of each pair.
        dst: int64[p], the receiving NPU of each pair, another than `src`.
        packets: float64[p], packets of each pair.
    """
    return _Fluid(graph, routing).loads(src, dst, packets)


def has_way(routing: TableRouting, src: Int64, dst: Int64) -> NDArray[np.bool_]:
    """Return bool[p]: whether a path leads from an NPU to another; none leads to the memory of another host.

    Args:
        routing: Routing of the fabric by tables.
        src: int64[p], the first NPU of each pair.
        dst: int64[p], the other NPU of each pair.
    """
    # [p, H] homes of both NPUs, -1 unused; [p, H, H] hops between each two of them
    own, other = routing.home[src], routing.home[dst]
    row = routing.row[routing.home_node[own]]
    hops = routing.hops[row[:, :, None], other[:, None, :]]
    is_used = (own >= 0)[:, :, None] & (other >= 0)[:, None, :]
    return np.asarray((is_used & (hops < UNREACHABLE)).any(axis=(1, 2)))


class _Fluid:
    """Flow of packets through a fabric: its targets, and the loads of links so far."""

    def __init__(self, graph: Graph, routing: TableRouting) -> None:
        """Begin without packets; a target is a home node of packets' destination, or an NPU with several of them."""
        self._graph, self._routing = graph, routing
        self._load = np.zeros(graph.links)
        # Example: 4 homes and an NPU 7 with two homes: targets 0 to 3 are the homes, target 4 is NPU 7 (_npu_of[4] =
        # 7), and _homes_of[4] has both of its homes
        homes, several = len(routing.home_node), (routing.home >= 0).sum(axis=1) > 1
        self._target_of = np.where(several, homes + np.cumsum(several) - 1, routing.home[:, 0]).astype(np.int64)
        self._npu_of = np.concatenate([np.full(homes, -1), np.flatnonzero(several)])
        first = np.full((homes, routing.home.shape[1]), -1, np.int32)
        first[:, 0] = np.arange(homes)
        self._homes_of = np.concatenate([first, routing.home[several]])

    def loads(self, src: Int64, dst: Int64, packets: Float64) -> Float64:
        """Return float64[links], packets of each link; src, dst, packets: [p], NPUs and packets of each pair."""
        last_set = self._routing.attach_set[dst, 0]
        single = self._npu_of[self._target_of[dst]] < 0
        # the last link, to an NPU with one home, is the same on each path: it is counted at once, and packets need only
        # reach it
        self._load_sets(last_set[single], packets[single])
        # a state is place x targets + target, as one number: equal ones are merged by their sum
        state, amount = self._summed(src * len(self._npu_of) + self._target_of[dst], packets)
        state, amount = self._leave_npus(state, amount)
        while len(state):
            row, target = np.divmod(state, len(self._npu_of))
            distance = self._distance(row, target)
            # farthest first, so that each state moves once, with all packets that reach it
            now = distance == distance.max()
            if distance.max() == 0:
                self._arrive(row, target, amount)
                break
            moved = self._move(row[now], target[now], amount[now])
            state, amount = np.concatenate([state[~now], moved[0]]), np.concatenate([amount[~now], moved[1]])
            state, amount = self._summed(state, amount)
        return self._load

    def _distance(self, row: Int64, target: Int64) -> Int64:
        """Return int64[]: links from a switch to the nearest home of a target."""
        return self._hops(row, target).min(axis=1)

    def _hops(self, rows: Int64, targets: Int64) -> Int64:
        """Return int64[n, H]: links from each switch, a row of the tables, to each home of its target."""
        home = self._homes_of[targets]
        return np.where(home < 0, UNREACHABLE, self._routing.hops[rows[:, None], home]).astype(np.int64)

    def _leave_npus(self, states: Int64, packets: Float64) -> tuple[Int64, Float64]:
        """Move packets from (NPU, target) over the NPU's links that `next_links` allows, to (switch, target)."""
        # states: int64[n], node x targets + target. Returns such states and their packets.
        if not len(states):
            return states, packets
        npu, target = np.divmod(states, len(self._npu_of))
        # links by their source: the links of NPU n are order[ptr[n]:ptr[n + 1]]
        order = np.argsort(self._graph.link_src, kind="stable")
        ptr = np.searchsorted(self._graph.link_src[order], np.arange(self._graph.npus + 1))
        entry, at = _spans(ptr[npu], ptr[npu + 1])
        link = order[at]
        row = self._routing.row[self._graph.link_dst[link]].astype(np.int64)
        distance = self._distance(row, target[entry])
        # `entry` ascends, so each state's links are consecutive: reduceat takes the minimum of each stretch
        nearest = np.minimum.reduceat(distance, np.flatnonzero(np.diff(entry, prepend=-1)))
        use = distance == nearest[entry]
        inside = use & (distance == 0) & (self._graph.node_kind[self._graph.link_dst[link]] == NVSWITCH)
        # a link to the destination's own NVSwitch excludes all others, where an entry has one
        use &= inside | ~(np.bincount(entry, inside, len(states)) > 0)[entry]
        return self._split(link[use], entry[use], target, packets)

    def _move(self, rows: Int64, targets: Int64, packets: Float64) -> tuple[Int64, Float64]:
        """Move packets by one link from switches, rows of the tables equally far from their targets; return states."""
        states, amounts = [], []
        for block in self._blocks(rows):
            hops = self._hops(rows[block], targets[block])
            # pairs of a state and one of its nearest homes; packets may go to any of these
            entry, column = np.nonzero(hops == hops.min(axis=1)[:, None])
            home = self._homes_of[targets[block][entry], column]
            port_set = self._routing.next_set[rows[block][entry], home]
            # all links of all port sets, one after another, with the pair that each belongs to
            which, at = _spans(self._routing.set_ptr[port_set], self._routing.set_ptr[port_set + 1])
            entry, link = entry[which], self._routing.set_link[at].astype(np.int64)
            if self._homes_of.shape[1] > 1:  # two homes may lie behind the same link
                both = np.unique(entry * self._graph.links + link)
                entry, link = np.divmod(both, self._graph.links)
            state, moved = self._split(link, entry, targets[block], packets[block])
            states.append(state)
            amounts.append(moved)
        return np.concatenate(states), np.concatenate(amounts)

    def _blocks(self, rows: Int64) -> Iterator[slice]:
        """Yield slices of switches, rows of the tables, whose packets have at most about _MAX_ENTRIES links."""
        degree = np.bincount(self._graph.link_src, minlength=self._graph.nodes)[self._graph.npus :]
        ends = np.cumsum(degree[rows])
        # ends of blocks: where the running sum of links passes a multiple of _MAX_ENTRIES
        cuts = np.searchsorted(ends, np.arange(_MAX_ENTRIES, int(ends[-1]), _MAX_ENTRIES))
        bounds = np.unique(np.concatenate([[0], cuts, [len(rows)]])).tolist()
        yield from map(slice, bounds[:-1], bounds[1:])

    def _split(self, links: Int64, entry_of_link: Int64, targets: Int64, packets: Float64) -> tuple[Int64, Float64]:
        """Share each entry's packets among its links; return states (switch, target) at the ends, and packets."""
        weight = self._graph.port_shares[links]
        # max 1: an entry without a link loses its packets, and divides by nothing
        total = np.maximum(np.bincount(entry_of_link, weight, len(packets)), 1)
        share = weight * (packets / total)[entry_of_link]
        self._load += np.bincount(links, share, minlength=len(self._load))
        row = self._routing.row[self._graph.link_dst[links]].astype(np.int64)
        return self._summed(row * len(self._npu_of) + targets[entry_of_link], share)

    def _arrive(self, rows: Int64, targets: Int64, packets: Float64) -> None:
        """Move packets from homes, rows of the tables, to targets that are NPUs; others are counted already."""
        at_npu = np.flatnonzero(self._npu_of[targets] >= 0)
        # of several homes of the NPU, that at which the packets are: 0 hops
        column = np.argmin(self._hops(rows[at_npu], targets[at_npu]), axis=1)
        self._load_sets(self._routing.attach_set[self._npu_of[targets[at_npu]], column], packets[at_npu])

    def _load_sets(self, port_sets: NDArray[np.integer], packets: Float64) -> None:
        """Add packets to the links of port sets, shared equally within each set."""
        ptr = self._routing.set_ptr
        entry, at = _spans(ptr[port_sets], ptr[port_sets + 1])
        share = (packets / np.diff(ptr)[port_sets])[entry]
        self._load += np.bincount(self._routing.set_link[at], share, minlength=len(self._load))

    def _summed(self, state: Int64, packets: Float64) -> tuple[Int64, Float64]:
        """Return each distinct state once, and the sum of its packets, amount."""
        space = max(self._graph.npus, len(self._routing.hops)) * len(self._npu_of)
        if space <= _MAX_DENSE:
            # with a small space, an array over all states is faster than sorting them
            dense = np.asarray(np.bincount(state, packets), np.float64)
            states = np.flatnonzero(dense).astype(np.int64)
            return states, dense[states]
        states, number = np.unique(state, return_inverse=True)
        return states, np.asarray(np.bincount(number.reshape(-1), packets), np.float64)


def _spans(begins: NDArray[np.integer], ends: NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Return all numbers of ranges [begins[i], ends[i]), one after another: int64[], the range i, and the number."""
    # Example: begins 2, 7 and ends 4, 8: sizes 2, 1; row = 0 0 1; numbers = 0 1 2 + (2 - 0) (2 - 0) (7 - 2) = 2 3 7
    sizes = (ends - begins).astype(np.int64)
    row = np.repeat(np.arange(len(sizes)), sizes)
    return row, np.arange(len(row)) + (begins - np.cumsum(sizes) + sizes)[row]


# Packets of each link under DimensionRouting: one dimension after another, all pairs at once.
#
# On a ring, a pair's packets cover consecutive links; such runs are added up as differences at their two ends, so that
# the length of a path does not matter for the cost.


_MAX_PAIRS = 1 << 20  # per block, to bound memory


def dimension_loads(graph: Graph, routing: DimensionRouting, src: Int64, dst: Int64, packets: Float64) -> Float64:
    """Return float64[links]: packets of each link, shared equally among the links that `next_links` allows.

    Args:
        graph: The fabric (`Graph`).
        routing: Routing of the fabric by dimensions.
        src: int64[p], the sending NPU of each pair.
        dst: int64[p], the receiving NPU of each pair, another than `src`.
        packets: float64[p], packets of each pair.
    """
    packets_of_set = np.zeros(len(routing.set_ptr) - 1)
    for begin in range(0, len(src), _MAX_PAIRS):
        block = slice(begin, begin + _MAX_PAIRS)
        packets_of_set += _set_loads(graph, routing, src[block], dst[block], packets[block])
    sizes = np.diff(routing.set_ptr)
    # set_ptr is a CSR of links: set s has links set_link[set_ptr[s]:set_ptr[s + 1]], each with an equal part
    per_link = np.repeat(packets_of_set / sizes, sizes)
    return np.asarray(np.bincount(routing.set_link, per_link, minlength=graph.links), np.float64)


def _set_loads(graph: Graph, routing: DimensionRouting, src: Int64, dst: Int64, packets: Float64) -> Float64:
    """Return float64[sets]: packets of each port set, from NPUs src to dst, int64[p], with packets float64[p]."""
    packets_of_set = np.zeros(len(routing.set_ptr) - 1)
    # sizes (4, 2, 3): strides (1, 4, 8), as an NPU's number is digit 0 + 4 x digit 1 + 8 x digit 2
    stride = np.cumprod(np.append(1, routing.sizes[:-1]), dtype=np.int64)
    here = src.copy()
    for d in range(len(routing.sizes)):
        goal = routing.digit[dst, d].astype(np.int64)
        moves = np.flatnonzero(routing.digit[here, d] != goal)
        mode = routing.mode[0, d]  # the same for all NPUs
        if mode == RING:
            packets_of_set += _ring_loads(routing, d, int(stride[d]), here[moves], goal[moves], packets[moves])
        else:
            node = here[moves]
            if mode == SINGLE:
                up = routing.sets[routing.offset[node, d]]
                packets_of_set += np.bincount(up, packets[moves], minlength=len(packets_of_set))
                # the packets are at that switch now, from where one more link leads to the NPU with the goal's digit
                node = graph.link_dst[routing.set_link[routing.set_ptr[up]]]
            across = routing.sets[routing.offset[node, d] + goal[moves]]
            packets_of_set += np.bincount(across, packets[moves], minlength=len(packets_of_set))
        # all pairs are where their packets enter the next dimension
        here[moves] += (goal[moves] - routing.digit[here[moves], d]) * stride[d]
    return packets_of_set


def _ring_loads(
    routing: DimensionRouting, dimension: int, stride: int, here: Int64, goal: Int64, packets: Float64
) -> Float64:
    """Return float64[sets]: packets of each port set from moves in a Ring dimension, the shorter way."""
    # stride: distance of neighbours' numbers; here, goal, packets: [p], NPU, target digit and packets of each move.
    size = int(routing.sizes[dimension])
    npus = int(np.prod(routing.sizes, dtype=np.int64))
    digit = routing.digit[here, dimension].astype(np.int64)
    ahead = (goal - digit) % size
    # [p, 2]: number of links towards +1 and -1, by which the opposite node's packets are shared
    links = np.diff(routing.set_ptr)[routing.sets[routing.offset[here, dimension][:, None] + np.array([0, 1])]]
    up = np.where(2 * ahead == size, packets * links[:, 0] / links.sum(axis=1), np.where(2 * ahead < size, packets, 0))
    down = packets - up

    npu = np.arange(npus)
    # rings of the dimension: NPUs that differ in this digit only; line_of numbers them, [npus]
    line_of = npu // (stride * size) * stride + npu % stride
    digit_of = npu // stride % size
    line, lines = line_of[here], npus // size
    upwards = _runs(lines, size, line, digit, ahead, up)[line_of, digit_of]
    # towards -1 from digit a to b uses the sets of a, a - 1, .., b + 1: a run that begins at b + 1
    downwards = _runs(lines, size, line, (goal + 1) % size, (digit - goal) % size, down)[line_of, digit_of]
    offset = routing.offset[:npus, dimension]
    sets = np.concatenate([routing.sets[offset], routing.sets[offset + 1]])
    packets_of = np.bincount(sets, np.concatenate([upwards, downwards]), minlength=len(routing.set_ptr) - 1)
    return np.asarray(packets_of, np.float64)


def _runs(rings: int, ring_size: int, ring_of_run: Int64, begin: Int64, length: Int64, packets: Float64) -> Float64:
    """Return float64[rings, ring_size]: packets of runs of a length from `begin` on, which wrap around, per place."""
    # Example: a ring of 4, a run of 3 packets from place 3, 2 links long: +3 at 3, -3 at 5 of twice the ring; the
    # running sum is 0 0 0 3 3 0 0 0, and both halves added give 3 0 0 3: links 3 and 0.
    first = ring_of_run * 2 * ring_size + begin
    steps = np.bincount(first, packets, minlength=2 * rings * ring_size)
    steps -= np.bincount(first + length, packets, minlength=2 * rings * ring_size)
    twice = np.cumsum(steps.reshape(rings, 2 * ring_size), axis=1)
    return np.maximum(twice[:, :ring_size] + twice[:, ring_size:], 0)  # rounding must not leave negative values


_STRIDE_RATIO = 8  # ratio between the distances at which `uniform` traffic flows
_UNIFORM_MESSAGES = 1000  # packets of each pair of `uniform` traffic; only the proportions matter


class TrafficWeights(NamedTuple):
    """Numbers of packets, data and acknowledgements together."""

    node: Int64  # [nodes] packets that arrive at a node: its events
    link: Int64  # [links] packets that a directed link carries


def expected(
    graph: Graph,
    src: ArrayLike,
    dst: ArrayLike,
    bytes: ArrayLike,  # noqa: A002 - as the field of workload.Traffic
    messages: ArrayLike,
    *,
    mtu_bytes: int = 4096,
) -> TrafficWeights:
    """Return the packets of traffic between NPUs, spread evenly over all equal-cost links like a fluid.

    Every packet is acknowledged by one that travels back as traffic from dst to src would.

    Args:
        graph: The fabric (`Graph`).
        src: int[p], the sending NPU of each pair.
        dst: int[p], the receiving NPU of each pair; a pair with `src` itself is ignored.
        bytes: int[p], payload of each pair in bytes.
        messages: int[p], number of messages of each pair, which are assumed to be of equal size.
        mtu_bytes: Payload in bytes of a packet; an empty message has one packet.
    """
    from_npu, to_npu = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    count = np.maximum(np.asarray(messages, np.int64), 1)
    # messages of equal size, each rounded up to whole packets
    packets = count * np.maximum(-(-np.asarray(bytes, np.int64) // (count * mtu_bytes)), 1)
    leaves = from_npu != to_npu
    from_npu, to_npu, packets = from_npu[leaves], to_npu[leaves], packets[leaves].astype(np.float64)
    # data one way, and as many acknowledgements back
    both = np.concatenate([from_npu, to_npu]), np.concatenate([to_npu, from_npu]), np.tile(packets, 2)
    return _weights(graph, link_loads(graph, *both))


def link_loads(graph: Graph, src: ArrayLike, dst: ArrayLike, loads: ArrayLike) -> Float64:
    """Return float64[links]: the load of each link, spread evenly over all equal-cost links like a fluid.

    Args:
        graph: The fabric (`Graph`).
        src: int[p], the sending NPU of each pair.
        dst: int[p], the receiving NPU of each pair, another than `src`.
        loads: float[p], load of each pair, as packets or bytes.
    """
    pairs = np.asarray(src, np.int64), np.asarray(dst, np.int64), np.asarray(loads, np.float64)
    if isinstance(graph.routing, DimensionRouting):
        return dimension_loads(graph, graph.routing, *pairs)
    return table_loads(graph, graph.routing, *pairs)


def uniform(graph: Graph) -> TrafficWeights:
    """Return the weights of an unknown run: each NPU sends equally to those 1, 8, 64, ... further that it can reach.

    Args:
        graph: The fabric (`Graph`).
    """
    npus = graph.npus
    # near and far peers, as rings and trees of collectives have them
    strides = _STRIDE_RATIO ** np.arange(20)
    strides = strides[strides < npus]
    src = np.tile(np.arange(npus), len(strides))
    dst = (src + np.repeat(strides, npus)) % npus
    if isinstance(graph.routing, TableRouting):
        reaches = has_way(graph.routing, src, dst)
        src, dst = src[reaches], dst[reaches]
    messages = np.full(len(src), _UNIFORM_MESSAGES)
    return expected(graph, src, dst, messages, messages)


def from_links(graph: Graph, tx_packets: ArrayLike) -> TrafficWeights:
    """Return weights measured in an earlier run on the same fabric; PartitionError if the number of links differs.

    Args:
        graph: The fabric (`Graph`).
        tx_packets: int[links], packets that each link sent: column tx_packets of the run's links.parquet.
    """
    sent = np.asarray(tx_packets, np.float64)
    if sent.shape != (graph.links,):
        raise PartitionError(f"{graph.name}: packets of {sent.size} links; expected {graph.links}, one for each link")
    return _weights(graph, sent)


def _weights(graph: Graph, link: Float64) -> TrafficWeights:
    # a packet is an event at the node at the end of the link
    node = np.bincount(graph.link_dst, link, minlength=graph.nodes)
    return TrafficWeights(np.rint(node).astype(np.int64), np.rint(link).astype(np.int64))
