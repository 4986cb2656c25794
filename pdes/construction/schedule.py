"""The routing tables of one logical process, and the schedule of faults, which change them, links and NPUs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nadi.pdes.construction.circuits import unrolled
from nadi.pdes.construction.detours import tables_of_detours, tables_of_lists
from nadi.pdes.construction.faults import Faults, LinkFault, NpuFault
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import Array, Float64, Graph, ImpossibleRunError, Int8, Int32, Int64, Record, Rows, state as s
from nadi.pdes.core.jit import aligned, row_of, rows_of, unused
from nadi.pdes.core.packet import link_meta
from nadi.pdes.core.rows.network import Change, Forwarding, LinkClass, OutgoingLink
from nadi.pdes.network.framing import NVSWITCH_KIND
from nadi.pdes.network.routing import SET_SHIFT, UNREACHABLE, salt_of

if TYPE_CHECKING:
    from nadi.pdes.construction.fabric import Fabric
    from nadi.pdes.construction.layout import Part

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


def routing_tables(
    graph: Graph, fabric: "Fabric", part: "Part", settings: Settings, down: frozenset[int] = frozenset()
) -> tuple[s.Routes, int, int]:
    """Return the routes of an LP, and the constants dimensions (0 = routing by tables) and homes per NPU.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        part: Nodes and links of the LP (`Part`).
        settings: Settings of the run.
        down: Links that are down, without which the fabric is routed.
    """
    routing: Any = graph.routing
    listed = graph.source_routes.without(down) if settings.routing.by_source and graph.source_routes else None
    if listed is not None:
        # further port sets, behind those of the tables
        set_ptr = np.append(routing.set_ptr, routing.set_ptr[-1] + listed.set_ptr[1:])
        more = {"set_ptr": set_ptr, "set_link": np.append(routing.set_link, listed.set_link)}
        graph = replace(graph, routing=replace(routing, **more))
    cells, link = _cells(graph, part)
    salt, first_link = salt_of(settings.seed, part.nodes), part.out_ptr[:-1]
    # one word per node: latency, whether it has a choice, whether it cuts through
    chooses = routing.choosing_nodes(graph.nodes)[part.nodes]
    rules = settings.balancings
    if len(rules) > 1 and not settings.entropy.act:
        chooses = chooses * np.array([rule.pick is not None for rule in rules])[fabric.rule[part.nodes]]
    forward = fabric.latency_ps[part.nodes] << 2 | chooses << 1 | fabric.cut[part.nodes]
    node = rows_of(Forwarding, len(part.nodes), salt=salt, first_link=first_link, forward=forward)
    fields = {"link": link, "node": node}
    if len(rules) > 1:
        fields["rule"] = fabric.rule[part.nodes]
    if any(rule.has_flowlets for rule in rules):
        fields["flowlet"] = np.zeros(len(node) * s.FLOWLETS * 2)
    if any(rule.by_host for rule in rules):
        fields["host"] = graph.host
    if routing.dimensions == 0:
        fields |= _by_table(graph, part, cells, node[: len(part.nodes)])
        if settings.routing.reorders:
            fields |= tables_of_detours(graph, part, down)
        if listed is not None:
            fields |= tables_of_lists(listed.rows(graph.link_src), part, cells[len(routing.set_ptr) - 1 :])
    else:
        fields |= {"cell": cells[routing.sets], "size": routing.sizes, "digit": routing.digit[: graph.npus]}
        fields |= {"here": routing.digit[part.nodes], "mode": routing.mode[part.nodes]}
        fields["offset"] = routing.offset[part.nodes]
    kinds = {name: array.__metadata__[0] for name, array in s.Routes.__annotations__.items()}
    routes = s.Routes(**{name: aligned(fields.get(name, ()), kind) for name, kind in kinds.items()})
    return routes, routing.dimensions, routing.homes_per_npu


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
    stretches, cell = _trimmed_rows(np.where(sets >= 0, cells[sets], NO_CELL))
    forwarding.first[switches], forwarding.last[switches], forwarding.default[switches], forwarding.row[switches] = (
        stretches
    )
    fields = {"cell": cell, "attach": np.where(r.attach_set >= 0, cells[r.attach_set], NO_CELL), "home": r.home}
    one_way = r.home.shape[1] == 1 and np.diff(part.out_ptr[: part.npus + 1]).max(initial=0) <= 1
    return fields if one_way else fields | _hops(graph, part, column)


def _trimmed_rows(cells: Int32) -> tuple[Int64, Int32]:
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
    only = _only_homes(r.home, hops, switch)
    return {"hops": hops, "hop_row": hop_row, "hop_column": own, "only_home": only, "via": via, "share": shares}


def _only_homes(home: Int32, hops: Int8, is_switch: Array) -> Int32:
    """Return int32[entries], the place among an NPU's homes of the only ones that an entry reaches, -1 = several."""
    # Planes have one of each NPU's homes each. home: int32[NPUs, places], columns. hops: int8[switches among the
    # entries, columns]. is_switch: bool[entries].
    reached = np.zeros((len(hops), home.shape[1]), bool)
    for place in range(home.shape[1]):
        columns = np.unique(home[:, place])
        reached[:, place] = (hops[:, columns[columns >= 0]] < UNREACHABLE).any(axis=1)
    only = np.full(len(is_switch), -1, np.int32)
    only[is_switch] = np.where(reached.sum(axis=1) <= 1, reached.argmax(axis=1), -1)
    return only


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


# The fault schedule: failures, slowdowns and recoveries during a run as the changes of each LP.

ALWAYS_LOST = 1 << 32  # loss probability 1 in units of 2**-32
TABLES = {
    "table_node": ("node",),
    "table64": ("hop_row", "listed_pair"),
    "table32": (
        *("cell", "attach", "home", "link", "hop_column", "only_home", "via"),
        *("detour", "own_homes", "near_ptr", "near"),
        *("listed_ptr", "listed_cell_ptr", "listed_cell"),
    ),
    "table8": ("hops", "switch_hops", "home_hops"),
}  # routing tables that may differ between sets, in the order of pdes.network.routing.change_routes
Fault = TypeVar("Fault", LinkFault, NpuFault)


def with_lasting(graph: Graph, faults: Faults) -> Graph:
    """Return a fabric whose links have the rates and delays that lasting faults give them.

    Args:
        graph: The fabric (`Graph`).
        faults: Faults of the run.
    """
    lasting = [fault for fault in faults.links if fault.is_lasting]
    if not lasting:
        return graph
    rate_bps, delay_ps = graph.link_rate_bps.copy(), graph.link_delay_ps.copy()
    for fault in lasting:
        links = list(fault.links)
        # 0 means that the fault leaves the rate
        rate_bps[links] = fault.rate_bps or rate_bps[links]
        delay_ps[links] += fault.added_latency_ps
    return replace(graph, link_rate_bps=rate_bps, link_delay_ps=delay_ps)


def fastest_psb(psb: Float64, faults: Faults) -> Float64:
    """Return float64[links]: the minimum ps per byte of each link during the run; psb: [links], without faults."""
    fastest = psb.copy()
    for fault in faults.links:
        if fault.rate_bps:
            np.minimum.at(fastest, list(fault.links), s.PS_PER_BYTE_AT_1_BPS / fault.rate_bps)
    return fastest


def slowest(faults: Faults, rate_bps: int) -> tuple[int, int]:
    """Return the lowest rate in bit/s, at most rate_bps, and the maximum latency in ps that faults or circuits add."""
    rates = [fault.rate_bps for fault in faults.links if fault.rate_bps]
    waits = [faults.circuits.longest_wait_ps(), *(fault.added_latency_ps for fault in faults.links)]
    return min([rate_bps, *rates]), max(waits)


def _cell_begin(time_ps: int, cell_ps: int) -> int:
    """Return the begin of the first cell that begins at or after a time."""
    return -(-time_ps // cell_ps) * cell_ps


def _stretches(faults: Sequence[Fault], cell_ps: int) -> Iterable[tuple[int, list[Fault]]]:
    """Yield each cell begin at which these faults change, and the faults that hold from then on; ascending."""
    times = sorted({time for fault in faults for time in (fault.at_ps, fault.until_ps) if time < s.INF})
    for begin, time in {_cell_begin(time, cell_ps): time for time in times}.items():  # the last change of a cell wins
        yield begin, [fault for fault in faults if fault.at_ps <= time < fault.until_ps]


def link_changes(
    faults: Faults, cell_ps: int, link_class: Int64, classes: Rows
) -> tuple[list[tuple[int, int, int]], Rows]:
    """Return changes of links, (ps, link, class) in time order, and the class table with the classes that they need.

    Args:
        faults: Faults of the run.
        cell_ps: Length of a cell in ps; changes happen at multiples of it.
        link_class: int64[links], each link's row of `classes`.
        classes: Link classes (rows of `LinkClass`) without faults.
    """
    table = list(classes)
    number = {row.tobytes(): i for i, row in enumerate(classes)}
    faults_of_link: dict[int, list[LinkFault]] = {}
    for fault in faults.links:
        for link in fault.links:
            faults_of_link.setdefault(link, []).append(fault)
    changes = []
    for link, own in sorted(faults_of_link.items()):
        current = int(link_class[link])
        for begin, holding in _stretches(own, cell_ps):
            row = _class_row(classes[link_class[link]], holding)
            new = number.setdefault(row.tobytes(), len(table))
            if new == len(table):
                table.append(row)
            if new != current:
                changes.append((begin, link, new))
                current = new
    if faults.links:
        table.append(row_of(LinkClass, error=ALWAYS_LOST, special=s.CARE))  # for `with_pit`: loses all packets
    return sorted(changes), np.array(table, classes.dtype).view(np.recarray)


def with_pit(net: s.Net, faults: Faults) -> s.Net:
    """Return Net with a link that loses all packets, where faults may cut a switch off from an NPU's homes.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        faults: Faults of the run.
    """
    if net.const.homes <= 1 or not any(fault.down for fault in faults.links):
        return net
    pit = len(net.tx)
    net.const.pit = pit
    # the last link class loses everything (`link_changes`)
    row = row_of(OutgoingLink, meta=link_meta(0, 0, len(net.link_class) - 1))
    shares, columns = net.hooks.shared_switches != 0 or len(net.gate) > 1, int(net.const.depths)
    per_link = {
        "tx_dropped": 1,
        "port_ties": 1,
        "gate": int(shares),
        "queue_log": int(net.const.routing_delay_ps > 0),
        "mark_draws": int(shares and net.const.ecn == 1),
        "sample": int(net.const.sample_ps > 0),
    }
    per_link |= {"depth": columns, "marks": columns * int(net.const.ecn == 1), "lane": int(net.const.queues)}
    longer: dict[str, Any] = {name: _with_row(getattr(net, name), pit, entries) for name, entries in per_link.items()}
    jobs = net.jobs._replace(link_bytes=_with_row(net.jobs.link_bytes, pit, int(net.const.jobs)))
    # what it loses takes no credits, but a lane sends only with some
    if net.const.queues > 0:
        longer["lane"].free_units[pit * int(net.const.queues) :] = s.INF
    return net._replace(tx=aligned(np.append(net.tx, row)), jobs=jobs, **longer)


def _with_row(array: Array, link: int, entries: int) -> Array:
    """Return an array with `entries` per link, 0 = not in use, that reaches to those of a link."""
    missing = (link + 1) * entries - len(array)
    return array if missing <= 0 else aligned(np.concatenate([array, np.zeros(missing, array.dtype)]))


def _class_row(class_row: Record, faults: Sequence[LinkFault]) -> Record:
    """Return the row of LinkClass of a link while `faults` hold; class_row: row without faults."""
    class_row = class_row.copy()
    for fault in faults:
        if fault.rate_bps:
            class_row.ps_per_byte = s.PS_PER_BYTE_AT_1_BPS / fault.rate_bps
        class_row.delay_ps += fault.added_latency_ps
        if fault.down:
            class_row.error = ALWAYS_LOST
        elif fault.error_rate:
            class_row.error = max(int(class_row.error), round(fault.error_rate * 2**32))
    # losses are drawn only on links that have this flag
    class_row.special |= s.CARE * int(class_row.error > 0)
    return class_row


def scheduled(
    graph: Graph, fabric: "Fabric", part: "Part", settings: Settings
) -> tuple[s.Routes, list[int], s.FaultSchedule, int, int]:
    """Return the routes of an LP, [dimensions, homes], its FaultSchedule, its number of routing-table sets.

    The last value is the number of changes that happen once; those after them happen again in every period of circuits.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        part: Nodes and links of the LP (`Part`).
        settings: Settings of the run.
    """
    faults = settings.faults
    routes, *routing = routing_tables(graph, fabric, part, settings)
    # most runs have no changes, and a dictionary of all links takes time
    has_rows = fabric.changes or faults.storms or faults.circuits
    row = {link: i for i, link in enumerate(part.links.tolist())} if has_rows else {}
    changes = [(time, s.CHANGE_LINK, row[link], number) for time, link, number in fabric.changes if link in row]
    changes += _npu_changes(faults, fabric.cell_ps, part)
    paused = [(storm.at_ps, link) for storm in faults.storms for link in storm.links if link in row]
    changes += [(_cell_begin(time, fabric.cell_ps), s.CHANGE_PAUSE, row[link], 0) for time, link in paused]
    once, repeated = faults.route_changes(fabric.cell_ps)
    number = {down: i for i, down in enumerate(dict.fromkeys([frozenset(), *(down for _, down in (*once, *repeated))]))}
    # of two at one time, the later counts
    epoch_at = {_cell_begin(time, fabric.cell_ps): number[down] for time, down in once}
    changes += [(time, s.CHANGE_ROUTES, 0, epoch) for time, epoch in epoch_at.items()]
    again = [(time, s.CHANGE_ROUTES, 0, number[down]) for time, down in repeated]
    if settings.fidelity.hooks.act:
        # flows have rates, which change; packets look at the time when they leave
        of_circuits = unrolled(faults.circuits.lit_changes(), faults.circuits.period_ps, faults.last_ps(fabric.cell_ps))
        for into, found in zip((changes, again), of_circuits, strict=True):
            into += [(time, s.CHANGE_CIRCUIT, row[link], 0) for time, link in found if link in row]
    tables: dict[str, Array] = {}
    if len(number) > 1:
        routes, tables = _epochs(graph, fabric, part, settings, routes, list(number))
    change = rows_of(Change, len(changes) + len(again))[: len(changes) + len(again)]
    change[:] = np.array([*sorted(changes), *sorted(again)], change.dtype)
    return routes, routing, unused(s.FaultSchedule, change=change, **tables), len(number), len(changes)


def slow_changes(faults: Sequence[NpuFault], cell_ps: int) -> list[tuple[int, int]]:
    """Return changes of an NPU's pace: (ps, duration in 1024ths of the nominal, 0 = nominal).

    Args:
        faults: Faults of one NPU.
        cell_ps: Length of a cell in ps; changes happen at multiples of it.
    """
    return [(begin, round(1024 * held[0].slowdown) if held else 0) for begin, held in _stretches(faults, cell_ps)]


def _npu_changes(faults: Faults, cell_ps: int, part: "Part") -> list[tuple[int, int, int, int]]:
    """Return (ps, CHANGE_NPU, number of the NPU in `part`, duration in 1024ths, 0 = nominal) of each NPU's change."""
    changes = []
    for npu in sorted({fault.npu for fault in faults.npus}):
        own = [fault for fault in faults.npus if fault.npu == npu]
        local = int(part.local[npu])
        if local >= 0:
            changes += [(begin, s.CHANGE_NPU, local, slow) for begin, slow in slow_changes(own, cell_ps)]
    return changes


def _epochs(
    graph: Graph,
    fabric: "Fabric",
    part: "Part",
    settings: Settings,
    routes: s.Routes,
    down_of_epoch: list[frozenset[int]],
) -> tuple[s.Routes, dict[str, Any]]:
    """Return routes with room for every set of tables, and the tables of all sets, by fields of FaultSchedule."""
    # down_of_epoch: the links that are down under each set of tables, none under the first, whose tables are `routes`.
    all_routes = [routes]
    for down in down_of_epoch[1:]:
        if down not in settings.faults.routings:
            raise ImpossibleRunError(f"no routing is given without the {len(down)} links that are down")
        other = replace(graph, routing=settings.faults.routings[down])
        tables, *_ = routing_tables(other, fabric, part, settings, down)
        all_routes.append(_without_ports(tables, part, down))
    grown, packed = {}, {}
    for into, names in TABLES.items():
        blocks = []
        for name in names:
            arrays = [getattr(tables, name) for tables in all_routes]
            length = max(len(array) for array in arrays)
            padded = [np.concatenate([array, np.zeros(length - len(array), array.dtype)]) for array in arrays]
            grown[name] = aligned(padded[0])
            blocks += padded
        packed[into] = aligned(np.concatenate(blocks))
    return routes._replace(**grown), packed


def _without_ports(routes: s.Routes, part: "Part", down_links: frozenset[int]) -> s.Routes:
    """Return routes in which the ports of NPUs that are among `down_links` lead to a switch far from everything."""
    ports = part.links[: part.out_ptr[part.npus]]
    dead = np.isin(ports, list(down_links))
    if len(routes.via) != len(ports) or len(ports) == part.npus or not dead.any():
        return routes
    homes = int(routes.home.max()) + 1
    via = routes.via.copy()
    # a row of distances behind all others, from which nothing can be reached
    via[dead] = len(routes.hop_row)
    return routes._replace(
        via=via,
        hop_row=np.append(routes.hop_row, len(routes.hops)),
        hop_column=np.append(routes.hop_column, np.int32(-1)),
        only_home=np.append(routes.only_home, np.int32(0)),
        hops=np.append(routes.hops, np.full(homes, UNREACHABLE, np.int8)),
    )
