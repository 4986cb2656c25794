"""Routing: the links that a packet may take, the lengths of many paths, and the construction of `TableRouting`.

`next_links` and `route` are the reference in plain Python: the kernels of the engine follow the same rules; tests and
closed forms use these functions. Tables come from a breadth-first search over the switches, for all homes at once.
`routing_without` makes the tables of the fabric that remains when links are down, with the same nodes and links.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from nadi.inputs.arrays import Int8, Int32, Int64
from nadi.topologies.graph import (
    NONE,
    NVSWITCH,
    RING,
    SINGLE,
    TABLE,
    UNREACHABLE,
    DimensionRouting,
    Graph,
    TableRouting,
    TopologyError,
)

Choose = Callable[[Sequence[int]], int]


def route(graph: Graph, src: int, dst: int, choose: Choose = min) -> list[int]:
    """Return the links from NPU src to another NPU, dst, in order.

    Raises TopologyError: src or dst is no NPU, or they are equal.

    Args:
        graph: The network, whose routing has a path between the two NPUs.
        src: The number of the sending NPU.
        dst: The number of the receiving NPU.
        choose: A function that picks one link among equal-cost links, which it gets in ascending order.
    """
    for npu in (src, dst):
        if not 0 <= npu < graph.npus:
            raise TopologyError.at(graph.name, f"no npu {npu}", f"0 to {graph.npus - 1}")
    if src == dst:
        raise TopologyError.at(graph.name, f"route from npu {src} to itself", "two different NPUs")
    links: list[int] = []
    node = src
    while node != dst:
        if len(links) > graph.nodes:
            raise AssertionError(f"{graph.name}: packets from npu {src} to npu {dst} go in circles")
        links.append(choose(next_links(graph, node, dst)))
        node = int(graph.link_dst[links[-1]])
    return links


def next_links(graph: Graph, node: int, dst: int) -> list[int]:
    """Return the equal-cost links on which a packet at `node` may proceed towards NPU dst, ascending.

    Under TableRouting, an NPU takes the outgoing links with the smallest 1 + hops from the neighbouring switch to the
    nearest home of dst, only those to an NVSwitch if that is a home of dst; a switch takes the attach set if it is a
    home of dst, else the next sets of all nearest homes.
    Under DimensionRouting, the first dimension with different digits decides.

    Args:
        graph: The network in which packets travel.
        node: The number of the NPU or switch that has the packet.
        dst: The number of the NPU to which the packet travels.
    """
    if isinstance(graph.routing, DimensionRouting):
        return _by_dimension(graph.routing, node, dst)
    if node < graph.npus:
        return _from_npu(graph, graph.routing, node, dst)
    return _from_switch(graph.routing, node, dst)


def _from_npu(graph: Graph, routing: TableRouting, npu: int, dst: int) -> list[int]:
    """Return the links on which NPU `npu` may send a packet to NPU `dst`, ascending; see `next_links`."""
    hops = {int(link): _hops_to(routing, int(graph.link_dst[link]), dst) for link in graph.out_links(npu)}
    nearest = min(hops.values())
    links = [link for link, distance in hops.items() if distance == nearest]
    inside = [link for link in links if graph.node_kind[graph.link_dst[link]] == NVSWITCH] if nearest == 0 else []
    return inside or links


def _hops_to(routing: TableRouting, switch: int, dst: int) -> int:
    """Return the number of links from a switch to the nearest home of dst."""
    row = routing.row[switch]
    return min((int(routing.hops[row, home]) for home in routing.home[dst] if home >= 0), default=UNREACHABLE)


def _from_switch(routing: TableRouting, switch: int, dst: int) -> list[int]:
    """Return the links on which a switch may send a packet to NPU `dst`, ascending; see `next_links`."""
    row, nearest = routing.row[switch], _hops_to(routing, switch, dst)
    links: set[int] = set()
    for home, attach_set in zip(routing.home[dst], routing.attach_set[dst], strict=True):
        if home >= 0 and routing.hops[row, home] == nearest:
            links.update(_links_of(routing, attach_set if nearest == 0 else routing.next_set[row, home]))
    return sorted(links)


def _by_dimension(routing: DimensionRouting, node: int, dst: int) -> list[int]:
    """Return the links on which a node may send a packet to NPU `dst` under dimension routing; see `next_links`."""
    dimension = next(d for d in range(len(routing.sizes)) if routing.digit[node, d] != routing.digit[dst, d])
    mode, offset = routing.mode[node, dimension], routing.offset[node, dimension]
    if mode == NONE:
        raise AssertionError(f"node {node} cannot correct dimension {dimension} on the way to npu {dst}")
    if mode == RING:
        size = int(routing.sizes[dimension])
        ahead = int(routing.digit[dst, dimension] - routing.digit[node, dimension]) % size
        # The set at `offset` leads ahead, the next one back. In a ring of 8, 3 places ahead is forwards, 5 is
        # backwards, and for 4 both directions are shortest.
        ways = [offset] * (2 * ahead <= size) + [offset + 1] * (2 * ahead >= size)
        return sorted({link for way in ways for link in _links_of(routing, routing.sets[way])})
    if mode == TABLE:
        offset += routing.digit[dst, dimension]
    return _links_of(routing, routing.sets[offset])


def _links_of(routing: TableRouting | DimensionRouting, port_set: int) -> list[int]:
    return [int(link) for link in routing.set_link[routing.set_ptr[port_set] : routing.set_ptr[port_set + 1]]]


def path_links(graph: Graph, src: npt.ArrayLike, dst: npt.ArrayLike) -> Int64:
    """Return int64[p]: number of links of the paths from NPUs src to NPUs dst, int[p] each; 0 from one to itself.

    Args:
        graph: The network in which packets travel.
        src: int[p], the NPUs at which the paths begin.
        dst: int[p], the NPUs at which the paths end.
    """
    begin, end = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    if isinstance(graph.routing, DimensionRouting):
        links = _links_by_dimension(graph.routing, begin, end)
    else:
        links = _links_by_table(graph.routing, begin, end)
    return np.where(begin == end, 0, links)


def _links_by_table(routing: TableRouting, src: Int64, dst: Int64) -> Int64:
    """Return int64[p]: number of links of the shortest path between any switches of NPUs src and dst, and to them."""
    # an NPU has few homes (NICs), so that the loop is short and each round handles all pairs
    nearest = np.full(len(src), np.iinfo(np.int64).max)
    for out in range(routing.home.shape[1]):
        for into in range(routing.home.shape[1]):
            here, there = routing.home[src, out], routing.home[dst, into]
            known = (here >= 0) & (there >= 0)
            row = routing.row[routing.home_node[here[known]]]
            # 2: the links from the source to its switch, and from the last switch to the destination
            nearest[known] = np.minimum(nearest[known], 2 + routing.hops[row, there[known]].astype(np.int64))
    return nearest


def _links_by_dimension(routing: DimensionRouting, src: Int64, dst: Int64) -> Int64:
    """Return int64[p]: number of links from NPUs src to dst over all dimensions: around rings, one, or up and down."""
    links = np.zeros(len(src), np.int64)
    for d, size in enumerate(routing.sizes.tolist()):
        # int64, as a difference of int32 digits would be negative before the remainder
        ahead = (routing.digit[dst, d].astype(np.int64) - routing.digit[src, d]) % size
        mode = routing.mode[0, d]
        # a dimension with a switch takes two links, up to it and down; a full mesh takes one
        across = np.minimum(ahead, size - ahead) if mode == RING else np.where(mode == SINGLE, 2, 1) * (ahead > 0)
        links += across
    return links


_MAX_ENTRIES = 2**29
_MAX_HOPS = UNREACHABLE - 2


# Length of a link between groups, in links within groups: a path takes as few links between groups as it can, and then
# as few others. More than the links within groups of any path: a dragonfly's has two.
GLOBAL_LENGTH = 16


def build_table_routing(
    npus: int, nodes: int, link_src: Int32, link_dst: Int32, group: Int32 | None = None
) -> TableRouting:
    """Return shortest paths by hop count, with all equal-cost links; a set includes parallel links.

    With groups, the shortest paths are among those with the fewest links between groups: in a dragonfly, a path over a
    third group may have fewer links in all, but takes twice the capacity between groups (Kim et al., ISCA 2008).
    NPUs are the nodes 0 .. npus-1 and carry no transit. With each link, its reverse is included. Raises TopologyError:
    two NPUs are linked
    directly, or the tables would not fit in memory.

    Args:
        npus: The number of NPUs.
        nodes: The number of NPUs and switches.
        link_src: int32[links], the sending node of each link.
        link_dst: int32[links], the receiving node of each link.
        group: int32[nodes], the group of each switch, -1 = none; None = no switch has one.
    """
    _refuse_direct_links(npus, link_src, link_dst)
    # row of the table of each node: switch `npus + i` has row i, NPUs have none
    row = np.arange(-npus, nodes - npus, dtype=np.int32)
    row[:npus] = -1
    # the search goes link by link in order of the sending switch, so that its links are one run of the array
    between = np.flatnonzero((link_src >= npus) & (link_dst >= npus))
    between = between[np.argsort(link_src[between], kind="stable")]
    src, dst = link_src[between] - npus, link_dst[between] - npus

    # only switches with NPUs are destinations of the search: a column for every switch would square the table
    down = np.flatnonzero(link_dst < npus)
    home_node, attach_home = np.unique(link_src[down], return_inverse=True)
    rows = nodes - npus
    if rows * len(home_node) > _MAX_ENTRIES:
        raise TopologyError(
            f"a routing table of {rows} switches by {len(home_node)} first switches is too large; "
            f"expected at most {_MAX_ENTRIES} entries"
        )
    length = _lengths(link_src[between], link_dst[between], group)
    distance = all_distances(rows, home_node - npus, src, dst, length)
    sets = PortSets()
    home, attach_set = _attach(npus, link_dst[down], attach_home, down, sets)
    next_set = next_sets(distance, src, dst, length, between, sets)
    hops = _links_of_distance(distance, length)
    set_ptr, set_link = sets.arrays()
    return TableRouting(home_node.astype(np.int32), home, attach_set, row, hops, next_set, set_ptr, set_link)


def unreachable_pair(npus: int, routing: TableRouting) -> tuple[int, int] | None:
    """Return the first two NPUs that no path of switches connects, or None.

    Args:
        npus: The number of NPUs, which are the first nodes.
        routing: The tables of the network.
    """
    if npus == 1:
        return None
    # one column per connected part: all homes of a part have the same first home that they reach
    joined_homes = routing.hops[routing.row[routing.home_node]] < UNREACHABLE
    # the last entry answers for unused homes, whose number is -1
    component = np.append(joined_homes.argmax(axis=1), -1)
    of_npu = np.sort(component[routing.home], axis=1)
    # NPUs in the same parts are alike, so that pairs of kinds replace pairs of NPUs, of which there may be 10^11
    kinds, first = np.unique(of_npu, axis=0, return_index=True)
    if any(c >= 0 and (kinds == c).any(axis=1).all() for c in kinds[0]):
        return None
    for kind, npu in zip(kinds, first, strict=True):
        joined = np.isin(kinds, kind[kind >= 0]).any(axis=1)
        if not joined.all():
            a, b = sorted((int(npu), int(first[np.argmin(joined)])))
            return a, b
    return None


def _refuse_direct_links(npus: int, link_src: Int32, link_dst: Int32) -> None:
    """Raise TopologyError if a link, from int32[links] to int32[links], joins two NPUs."""
    direct = np.flatnonzero((link_src < npus) & (link_dst < npus))
    if len(direct):
        a, b = link_src[direct[0]], link_dst[direct[0]]
        raise TopologyError(
            f"npu {a} and npu {b} are linked directly; expected a switch between them, as NPUs carry no transit "
            "(only ring, fully-connected, torus and stack link NPUs directly)"
        )


def _lengths(src: Int32, dst: Int32, group: Int32 | None) -> Int64:
    """Return int64[links]: GLOBAL_LENGTH for links between switches of two groups, 1 for others."""
    if group is None:
        return np.ones(len(src), np.int64)
    is_global = (group[src] >= 0) & (group[dst] >= 0) & (group[src] != group[dst])
    return np.where(is_global, GLOBAL_LENGTH, 1)


def _links_of_distance(distance: Int8, length: Int64) -> Int8:
    """Return int8[switches, homes]: numbers of links from distances; length: int64[links] of links between switches."""
    if length.max(initial=1) == 1:
        return distance
    links = distance // GLOBAL_LENGTH + distance % GLOBAL_LENGTH
    return np.where(distance == UNREACHABLE, UNREACHABLE, links).astype(np.int8)


def all_distances(switches: int, home_row: Int32, src: Int32, dst: Int32, length: Int64) -> Int8:
    """Return int8[switches, homes]: distances from every switch to every home.

    The homes that reach a switch are a row
    of bits, so that one level of all searches is one pass over the links.

    Args:
        switches: The number of switches.
        home_row: int32[homes], the switches that have NPUs, counted from the first switch.
        src: int32[links], the sending switch of each link between switches, ascending.
        dst: int32[links], the receiving switch of each link.
        length: int64[links], the length of each link, 1 or GLOBAL_LENGTH.
    """
    homes = len(home_row)
    seen = np.zeros((switches, (homes + 7) // 8), np.uint8)
    columns = np.arange(homes)
    # bit 7 of a byte is its first column, as np.unpackbits reads them
    np.bitwise_or.at(seen, (home_row, columns // 8), (128 >> (columns % 8)).astype(np.uint8))
    distance = np.full((switches, homes), UNREACHABLE, np.int8)
    distance[home_row, columns] = 0
    if not len(src):
        return distance
    # links by length; begin of each switch's run of links, for reduceat, which combines a run at once
    kinds = [(int(kind), src[length == kind], dst[length == kind]) for kind in np.unique(length)]
    runs = [(kind, a[first := np.flatnonzero(np.diff(a, prepend=-1))], b, first) for kind, a, b in kinds]
    # what each of the last levels reached first: a longer link leads on from an earlier one
    frontiers = {0: seen.copy()}
    last = 0
    for level in range(1, UNREACHABLE + 1):
        reached = np.zeros_like(seen)
        for kind, owner, ends, first in runs:
            if level - kind in frontiers:
                reached[owner] |= np.bitwise_or.reduceat(frontiers[level - kind][ends], first, axis=0)
        frontier = reached & ~seen
        frontiers.pop(level - runs[-1][0], None)
        if frontier.any():
            last = level
            frontiers[level] = frontier
        elif level - last >= runs[-1][0]:
            return distance
        else:
            continue
        if level > _MAX_HOPS:
            break
        # one assignment per level writes all pairs at that distance; a queue per home would be a Python loop
        seen |= frontier
        distance[np.unpackbits(frontier, axis=1, count=homes).view(bool)] = level
    raise TopologyError(f"a path of more than {_MAX_HOPS} links between switches; expected a shorter one")


class PortSets:
    """A list of port sets under construction; sets are numbered in the order of their addition."""

    def __init__(self) -> None:
        """Begin without sets."""
        self.count = 0
        self._sizes: list[npt.NDArray[np.intp]] = []
        self._links: list[npt.NDArray[np.intp]] = []

    def add(self, sizes: npt.NDArray[np.intp], links: npt.NDArray[np.intp]) -> int:
        """Add sets of `sizes` links each, whose links are concatenated; return the number of the first set.

        Args:
            sizes: int[sets], the number of links of each set.
            links: int[], the links of all sets, concatenated.
        """
        first = self.count
        self.count += len(sizes)
        self._sizes.append(sizes)
        self._links.append(links)
        return first

    def arrays(self) -> tuple[Int32, Int32]:
        """Return set_ptr and set_link."""
        set_ptr = np.zeros(self.count + 1, np.int32)
        np.cumsum(np.concatenate(self._sizes), out=set_ptr[1:])
        return set_ptr, np.concatenate(self._links).astype(np.int32)


def _attach(
    npus: int, npu: Int32, column: npt.NDArray[np.intp], link: npt.NDArray[np.intp], sets: PortSets
) -> tuple[Int32, Int32]:
    """Return fields home and attach_set, int32[npus, H] each, and add to `sets` the port sets from homes to NPUs."""
    # npu, column, link: NPU, column of the home and number of each link from a home to an NPU.
    # by NPU, then home, then link: parallel links to one home become one set, in ascending order
    order = np.lexsort((link, column, npu))
    key = np.stack([npu[order], column[order]])
    first = np.flatnonzero((np.diff(key, axis=1, prepend=-1) != 0).any(axis=0))
    number = sets.add(np.diff(first, append=len(order)), link[order])
    owner, home_column = key[:, first]
    # place among the homes of the same NPU, since `owner` is sorted
    slot = np.arange(len(first)) - np.searchsorted(owner, owner)
    width = int(slot.max(initial=0)) + 1
    home = np.full((npus, width), -1, np.int32)
    attach_set = np.full((npus, width), -1, np.int32)
    home[owner, slot] = home_column
    attach_set[owner, slot] = number + np.arange(len(first))
    return home, attach_set


def next_sets(
    distance: Int8, src: Int32, dst: Int32, length: Int64, link: npt.NDArray[np.intp], sets: PortSets
) -> Int32:
    """Return int32[switches, homes]: the set of links that lead nearer to the home; a switch's equal sets are one.

    Args:
        distance: int8[switches, homes], distance from each switch to each home.
        src: int32[links], the sending switch of each link between switches, ascending.
        dst: int32[links], the receiving switch of each link.
        length: int64[links], the length of each link.
        link: int[links], the number of each of these links in the network.
        sets: The list to which the new port sets are added.
    """
    next_set = np.full(distance.shape, -1, np.int32)
    bounds = np.searchsorted(src, np.arange(len(distance) + 1))
    for row, low, high in zip(range(len(distance)), bounds[:-1], bounds[1:], strict=True):
        if low == high:
            continue
        # bool[links of the switch, homes]: whether the link's end is nearer to the home by the link's length. int16, as
        # UNREACHABLE less a length may be a distance; no link counts as nearer to a home that cannot be reached.
        after = distance[dst[low:high]] + length[low:high, None].astype(np.int16)
        nearer = (after == distance[row]) & (distance[row] < UNREACHABLE)
        # homes behind the same links share one set: a leaf of a fat tree has two, whatever the number of homes
        patterns, pattern_of = _distinct_columns(nearer)
        sizes = patterns.sum(axis=0)
        used = np.flatnonzero(sizes)
        # patterns: bool[links of the switch, sets]. The stable sort by set keeps a set's links in ascending order.
        port, member = np.nonzero(patterns[:, used])
        number = np.full(len(sizes), -1, np.int32)
        number[used] = np.arange(len(used)) + sets.add(
            sizes[used], link[low:high][port[np.argsort(member, kind="stable")]]
        )
        next_set[row] = number[pattern_of]
    return next_set


def _distinct_columns(bits: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], Int64]:
    """Return the distinct columns of a matrix of bits, and the index of each column among them."""
    # columns as words of 64 bits: np.unique compares a word at a time, and sorts a single one without a record type
    packed = np.packbits(bits, axis=0).T
    padded = np.zeros((packed.shape[0], -(-packed.shape[1] // 8) * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    words = padded.view(np.uint64)
    if words.shape[1] == 1:
        _, first, inverse = np.unique(words[:, 0], return_index=True, return_inverse=True)
    else:
        _, first, inverse = np.unique(words, axis=0, return_index=True, return_inverse=True)
    return bits[:, first], inverse.reshape(-1)


def routing_without(graph: Graph, links: Collection[int]) -> TableRouting:
    """Return shortest paths of the complete fabric without the given links and their reverse links.

    Homes and their columns stay, so all tables have the same shape. Packets without a path are sent as in the complete
    fabric's tables, so that they reach a link that is down and are lost there, never in loops: such paths follow all
    others in `hops`, in the order of the complete fabric's hops. An NPU loses the homes to which all its links are
    down, unless these are all of its homes. Raises TopologyError: the fabric has dimension routing, which has only one
    path; or a detour is too long.

    Args:
        graph: The complete network, which is routed by tables.
        links: Numbers of the links that are down.
    """
    original = graph.routing
    if not isinstance(original, TableRouting):
        raise TopologyError(f"{graph.name} is routed by dimensions, which have no way around a link that is down")
    up = np.ones(graph.links, bool)
    up[list(links)] = False
    between = np.flatnonzero(up & (graph.link_src >= graph.npus) & (graph.link_dst >= graph.npus))
    between = between[np.argsort(graph.link_src[between], kind="stable")]
    src, dst = graph.link_src[between] - graph.npus, graph.link_dst[between] - graph.npus
    # the old sets keep their numbers, so that rows of the old tables stay valid where a path is lost
    sets = PortSets()
    sets.add(np.diff(original.set_ptr), original.set_link.astype(np.intp))
    length = _lengths(graph.link_src[between], graph.link_dst[between], graph.group)
    distance = all_distances(graph.nodes - graph.npus, original.home_node - graph.npus, src, dst, length)
    next_set = next_sets(distance, src, dst, length, between, sets)
    hops = _links_of_distance(distance, length)
    # pairs that the failure separates
    cut = (hops == UNREACHABLE) & (original.hops < UNREACHABLE)
    if cut.any():
        behind = 1 + int(hops[hops < UNREACHABLE].max())  # above the hops of every path that is left
        if behind + int(original.hops[cut].max()) >= UNREACHABLE:
            raise TopologyError(f"a detour of {behind - 1} links between switches; expected a shorter one")
        hops[cut] = original.hops[cut] + behind
        next_set[cut] = original.next_set[cut]
    home, attach_set = _attached_without(original, up, sets)
    set_ptr, set_link = sets.arrays()
    return TableRouting(original.home_node, home, attach_set, original.row, hops, next_set, set_ptr, set_link)


def _attached_without(original: TableRouting, is_up: np.ndarray, sets: PortSets) -> tuple[Int32, Int32]:
    """Return fields home and attach_set of the original routing without links that are down."""
    home, attach_set = original.home.copy(), original.attach_set.copy()
    set_of_link = np.repeat(np.arange(len(original.set_ptr) - 1), np.diff(original.set_ptr))
    # few NPUs have a link that is down, so that a loop over them is short
    touched = np.unique(set_of_link[~is_up[original.set_link]])
    for npu in np.flatnonzero(np.isin(original.attach_set, touched).any(axis=1)).tolist():
        slots = [slot for slot in range(home.shape[1]) if home[npu, slot] >= 0]
        left = {slot: _links_up(original, int(attach_set[npu, slot]), is_up) for slot in slots}
        if not any(len(members) for members in left.values()):
            continue
        for slot, members in left.items():
            if len(members):
                attach_set[npu, slot] = sets.add(np.array([len(members)]), members)
            else:
                home[npu, slot] = attach_set[npu, slot] = -1
    return home, attach_set


def _links_up(original: TableRouting, set_number: int, is_up: np.ndarray) -> np.ndarray:
    """Return the links of a port set that are up (True in is_up, bool[links])."""
    members = original.set_link[original.set_ptr[set_number] : original.set_ptr[set_number + 1]].astype(np.intp)
    return members[is_up[members]]
