"""The routing tables of one logical process as cells of port sets (pdes/network/routing.py)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from nadi.pdes.core import state as s
from nadi.pdes.core.errors import ImpossibleRunError
from nadi.pdes.core.inputs import Array, Graph, Int8, Int32, Int64, Rows
from nadi.pdes.core.memory import aligned, rows_of
from nadi.pdes.core.rows.network import Forwarding
from nadi.pdes.network.framing import NVSWITCH_KIND
from nadi.pdes.network.routing import SET_SHIFT, UNREACHABLE, salt_of

if TYPE_CHECKING:
    from nadi.pdes.construction.fabric import Fabric
    from nadi.pdes.construction.layout import Part
    from nadi.pdes.construction.settings import Settings

NO_CELL = np.int32(0)  # cell of the switch itself or of an unreachable home


def _cells(graph: Graph, part: "Part") -> tuple[Int32, Int32]:
    """Return int32[sets], the cell of each port set of the part's links, and the members of sets of several links."""
    routing: Any = graph.routing
    count = np.diff(routing.set_ptr).astype(np.int64)
    if len(count) and count.max() > s.MAX_SET:
        raise ImpossibleRunError(f"{count.max()} equal-cost links: at most {s.MAX_SET} are possible")
    own = np.full(graph.links, -1, np.int64)
    # numbers from each node's first link, as cells have them
    own[part.links] = np.arange(len(part.links)) - np.repeat(part.out_ptr[:-1], np.diff(part.out_ptr))
    member = own[routing.set_link].astype(np.int32)
    first = np.zeros(len(count), np.int64)
    used = np.flatnonzero(count)
    # sets of nodes of other LPs have no members here
    used = used[member[routing.set_ptr[used]] >= 0]
    single = used[count[used] == 1]
    first[single] = member[routing.set_ptr[single]]
    lists = _ListStore()
    for i in used[count[used] > 1].tolist():
        first[i] = lists.place(member[routing.set_ptr[i] : routing.set_ptr[i + 1]])
    return ((count << SET_SHIFT) | first).astype(np.int32), lists.values()


class _ListStore:
    """A store of int32 lists in one array, which holds equal lists once."""

    def __init__(self) -> None:
        """Begin without lists."""
        self._at: dict[bytes, int] = {}
        self._parts: list[Int32] = []
        self._length = 0

    def place(self, values: Int32) -> int:
        """Return the offset of the list `values` in the array of all lists, to which a new one is added."""
        key = values.tobytes()
        if key not in self._at:
            self._at[key] = self._length
            self._parts.append(values)
            self._length += len(values)
        return self._at[key]

    def values(self) -> Int32:
        """Return the array of all lists."""
        return np.concatenate([np.zeros(0, np.int32), *self._parts])


def routing_tables(graph: Graph, fabric: "Fabric", part: "Part", settings: "Settings") -> tuple[s.Routes, int, int]:
    """Return the routes of an LP, and the constants dimensions (0 = routing by tables) and homes per NPU.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        part: Nodes and links of the LP (`Part`).
        settings: Settings of the run.
    """
    routing: Any = graph.routing
    cells, link = _cells(graph, part)
    salt, first_link = salt_of(settings.seed, part.nodes), part.out_ptr[:-1]
    # one word per node: latency, whether it has a choice, whether it cuts through
    forward = fabric.latency_ps[part.nodes] << 2 | has_choice(graph)[part.nodes] << 1 | fabric.cut[part.nodes]
    node = rows_of(Forwarding, len(part.nodes), salt=salt, first_link=first_link, forward=forward)
    fields = {"link": link, "node": node}
    if settings.load_balancing.has_flowlets:
        fields["flowlet"] = np.zeros(len(node) * s.FLOWLETS * 2)
    if settings.load_balancing.by_host:
        fields["host"] = graph.host
    if hasattr(routing, "home"):
        fields |= _by_table(graph, part, cells, node[: len(part.nodes)])
        constants = 0, routing.home.shape[1]
    else:
        fields |= {"cell": cells[routing.sets], "size": routing.sizes, "digit": routing.digit[: graph.npus]}
        fields |= {"here": routing.digit[part.nodes], "mode": routing.mode[part.nodes]}
        fields["offset"] = routing.offset[part.nodes]
        constants = len(routing.sizes), 1
    kinds = {name: array.__metadata__[0] for name, array in s.Routes.__annotations__.items()}
    return s.Routes(**{name: aligned(fields.get(name, ()), kind) for name, kind in kinds.items()}), *constants


def has_choice(graph: Graph) -> Int64:
    """Return int64[nodes]: 1 for nodes that may have several equal links to some NPU.

    Args:
        graph: The fabric (`Graph`).
    """
    r: Any = graph.routing
    # any node may have a choice, unless the tables of a switch show that it has none
    found = np.ones(graph.nodes, np.int64)
    if hasattr(r, "home"):
        is_several = np.append(np.diff(r.set_ptr) > 1, False)  # a set of -1 is none
        switches = np.flatnonzero(r.row >= 0)
        found[switches] = is_several[r.next_set].any(axis=1)[r.row[switches]]
        found[r.home_node[r.home[is_several[r.attach_set]]]] = 1
    return found


def _by_table(graph: Graph, part: "Part", cells: Int32, forwarding: Rows) -> dict[str, Array]:
    """Fill the rows `forwarding` of own switches; return the routes' arrays for routing by tables, by name."""
    # Hops of other LPs' switches are included where NPUs with several ports compare them. cells: int32[sets].
    r: Any = graph.routing
    homes = len(r.home_node)
    column = np.full(graph.nodes, -1, np.int32)
    column[r.home_node] = np.arange(homes)
    forwarding.column = column[part.nodes]
    switches = np.flatnonzero(r.row[part.nodes] >= 0)
    sets = r.next_set[r.row[part.nodes[switches]]]
    stretches, cell = _stretches(np.where(sets >= 0, cells[sets], NO_CELL))
    forwarding.first[switches], forwarding.last[switches], forwarding.default[switches], forwarding.row[switches] = (
        stretches
    )
    fields = {"cell": cell, "attach": np.where(r.attach_set >= 0, cells[r.attach_set], NO_CELL), "home": r.home}
    one_way = r.home.shape[1] == 1 and np.diff(part.out_ptr[: part.npus + 1]).max(initial=0) <= 1
    return fields if one_way else fields | _hops(graph, part, column)


def _stretches(cells: Int32) -> tuple[Int64, Int32]:
    """Return the rows of routing cells, int32[rows, homes], without those at both ends that equal a row's default."""
    # Returns int64[4, rows]: first and last + 1 column, default cell and the (virtual) place of column 0; and the array
    # of stretches, equal ones once. An entry without a cell (NO_CELL: the switch itself, or unreachable) matches any
    # other.
    rows, homes = cells.shape
    has_cell = cells != NO_CELL
    best = np.array([np.zeros(rows, np.int64), np.full(rows, homes + 1), np.zeros(rows, np.int64)])
    for column in (has_cell.argmax(axis=1), homes - 1 - has_cell[:, ::-1].argmax(axis=1)):
        default = cells[np.arange(rows), column]
        differs = has_cell & (cells != default[:, None])
        any_differs = differs.any(axis=1)
        first = np.where(any_differs, differs.argmax(axis=1), 0)
        last = np.where(any_differs, homes - differs[:, ::-1].argmax(axis=1), 0)
        best = np.where(last - first < best[1] - best[0], (first, last, default), best)
    shared = _ListStore()
    row = [shared.place(cells[i, first:last]) - first for i, (first, last) in enumerate(best[:2].T.tolist())]
    return np.array([*best, row], np.int64), shared.values()


def _hops(graph: Graph, part: "Part", column: Int32) -> dict[str, Array]:
    """Return the routes' arrays of hops to homes, from own switches and from those at the other end of NPUs' ports."""
    # column: int32[nodes], number of the home that a node is, -1 = none.
    r: Any = graph.routing
    beyond = graph.link_dst[part.links[: part.out_ptr[part.npus]]]
    extra = np.unique(beyond[part.local[beyond] < 0])
    entries = np.concatenate([part.nodes, extra])
    switch = r.row[entries] >= 0
    kept = r.row[entries[switch]]
    hop_row = np.zeros(len(entries), np.int64)
    hop_row[switch] = np.arange(len(kept)) * len(r.home_node)
    via = np.where(part.local[beyond] >= 0, part.local[beyond], len(part.nodes) + np.searchsorted(extra, beyond))
    hops, own = r.hops[kept].astype(np.int8), column[entries]
    shares = graph.port_shares[part.links[: part.out_ptr[part.npus]]]
    if _shares_leaves(graph):
        hops, own = _nvswitches_first(graph, entries, hops, own)
    return {"hops": hops, "hop_row": hop_row, "hop_column": own, "via": via, "share": shares}


def _shares_leaves(graph: Graph) -> bool:
    """Return whether NPUs behind one NVSwitch share another home, which is then as near as the NVSwitch."""
    r: Any = graph.routing
    home, kind = r.home, graph.node_kind[r.home_node]
    inside = np.where((home >= 0) & (kind[home] == NVSWITCH_KIND), home, -1).max(axis=1)
    npu, at = np.nonzero((home >= 0) & (kind[home] != NVSWITCH_KIND) & (inside >= 0)[:, None])
    pairs = inside[npu].astype(np.int64) * len(kind) + home[npu, at]
    return len(np.unique(pairs)) < len(pairs)


def _nvswitches_first(graph: Graph, entries: Int64, hops: Array, own_column: Array) -> tuple[Int8, Int32]:
    """Return hops doubled, with 1 in place of 0 at homes other than NVSwitches, so that NPUs prefer NVSwitches."""
    # NPUs compare hops; a switch recognises itself as a home by its own column, so that of the others becomes -1.
    # graph: Graph of the fabric. entries: int64[n], nodes. hops: int8[switches among them, homes]. own_column:
    # int32[n], column of the home that the node is, -1 = none.
    later = (own_column >= 0) & (graph.node_kind[entries] != NVSWITCH_KIND)
    r: Any = graph.routing
    row = np.cumsum(r.row[entries] >= 0) - 1
    twice = np.where(hops < UNREACHABLE, 2 * hops.astype(np.int64), UNREACHABLE)
    if twice[hops < UNREACHABLE].max(initial=0) >= UNREACHABLE:
        raise ImpossibleRunError(f"{graph.name}: a path of more than {UNREACHABLE // 2} links between switches")
    twice[row[later], own_column[later]] = 1
    return twice.astype(np.int8), np.where(later, -1, own_column).astype(np.int32)
