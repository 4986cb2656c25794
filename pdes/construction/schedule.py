"""The fault schedule: failures, slowdowns and recoveries during a run, as a value and as the changes of each LP."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nadi.pdes.construction.routes import routing_tables
from nadi.pdes.core import state as s
from nadi.pdes.core.errors import ImpossibleRunError
from nadi.pdes.core.inputs import Array, Float64, Graph, Int64, Record, Rows, Setting, setting
from nadi.pdes.core.memory import aligned, row_of, rows_of, unused
from nadi.pdes.core.packet import link_meta
from nadi.pdes.core.rows.network import Change, LinkClass, OutgoingLink
from nadi.pdes.core.state import PS_PER_BYTE_AT_1_BPS
from nadi.pdes.network.routing import UNREACHABLE

if TYPE_CHECKING:
    from nadi.pdes.construction.fabric import Fabric
    from nadi.pdes.construction.layout import Part
    from nadi.pdes.construction.settings import Settings

ALWAYS_LOST = 1 << 32  # loss probability 1 in units of 2**-32
TABLES = {
    "table_node": ("node",),
    "table64": ("hop_row",),
    "table32": ("cell", "attach", "home", "link", "hop_column", "via"),
    "table8": ("hops",),
}  # routing tables that may differ between sets, in the order of pdes.network.faults.change_routes


@dataclass(frozen=True)
class LinkFault:
    """A fault of links from at_ps to before until_ps; a field that is 0 or False changes nothing."""

    links: tuple[int, ...]  # numbers of directed links
    at_ps: int
    until_ps: int = s.INF
    down: bool = False
    rate_bps: int = 0  # reduced or raised rate
    added_latency_ps: int = 0  # in addition to the propagation delay
    error_rate: float = 0.0  # probability that a packet is lost

    @property
    def is_lasting(self) -> bool:
        """Whether it holds from the begin of the run to its end, and loses no packet."""
        return self.at_ps == 0 and self.until_ps == s.INF and not self.down and self.error_rate == 0


@dataclass(frozen=True)
class NpuFault:
    """A slow NPU: compute that begins from at_ps to before until_ps takes `slowdown` times as long."""

    npu: int
    at_ps: int
    until_ps: int = s.INF
    slowdown: float = 1.0


@dataclass(frozen=True)
class PauseStorm:
    """A NIC that pauses the links to it (PFC) in all data classes from at_ps on, for ever."""

    links: tuple[int, ...]  # numbers of directed links to the NIC
    at_ps: int


@dataclass(frozen=True, eq=False)
class Faults:
    """The faults of a run."""

    links: tuple[LinkFault, ...] = setting((), "faults of links", is_given=False)
    npus: tuple[NpuFault, ...] = setting((), "faults of NPUs", is_given=False)
    detection_time_ps: int = setting(1_000_000_000, "time from a link's failure or recovery until routes change")
    routings: Mapping[frozenset[int], Any] = field(  # without each of the sets of links that `down_sets` returns
        default_factory=dict, metadata={"setting": Setting("routing without the links that are down", is_given=False)}
    )
    storms: tuple[PauseStorm, ...] = setting((), "NICs that pause links for ever", is_given=False)

    def __bool__(self) -> bool:
        return bool(self.links or self.npus or self.storms)

    @property
    def never_change(self) -> bool:
        """Whether links and NPUs are as slow from the begin of the run to its end, and no packet is lost."""
        spans = {(fault.at_ps, fault.until_ps) for fault in self.npus}
        return spans <= {(0, s.INF)} and not self.storms and all(fault.is_lasting for fault in self.links)

    def can_lose(self, settings: "Settings") -> bool:
        """Return whether packets may get lost.

        Args:
            settings: Settings of the run.
        """
        # With shared buffers any fault of a link counts: a pause that comes late, or a rate beyond the headroom, can
        # overflow a buffer.
        return any(f.down or f.error_rate > 0 or settings.switch is not None for f in self.links)


NO_FAULTS = Faults()
Fault = TypeVar("Fault", LinkFault, NpuFault)


def down_sets(links: Iterable[LinkFault]) -> list[tuple[int, frozenset[int]]]:
    """Return the links that are down after each change: (ps, frozenset of links) in time order."""
    times = sorted({t for f in links if f.down for t in (f.at_ps, f.until_ps) if t < s.INF})
    sets = []
    down: frozenset[int] = frozenset()
    # several faults of one link overlap: it is down while any of them holds
    for time in times:
        before, down = down, frozenset(n for f in links if f.down and f.at_ps <= time < f.until_ps for n in f.links)
        if down != before:
            sets.append((time, down))
    return sets


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
            np.minimum.at(fastest, list(fault.links), PS_PER_BYTE_AT_1_BPS / fault.rate_bps)
    return fastest


def slowest(faults: Faults, rate_bps: int) -> tuple[int, int]:
    """Return the lowest rate in bit/s, at most rate_bps, and the maximum latency in ps that faults add."""
    rates = [fault.rate_bps for fault in faults.links if fault.rate_bps]
    return min([rate_bps, *rates]), max([0, *(fault.added_latency_ps for fault in faults.links)])


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
    per_link = {"tx_dropped": 1, "port_ties": 1, "gate": int(shares), "sample": int(net.const.sample_ps > 0)}
    per_link |= {"depth": columns, "marks": columns * int(net.const.ecn == 1)}
    longer: dict[str, Any] = {name: _with_row(getattr(net, name), pit, entries) for name, entries in per_link.items()}
    jobs = net.jobs._replace(link_bytes=_with_row(net.jobs.link_bytes, pit, int(net.const.jobs)))
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
            class_row.ps_per_byte = PS_PER_BYTE_AT_1_BPS / fault.rate_bps
        class_row.delay_ps += fault.added_latency_ps
        if fault.down:
            class_row.error = ALWAYS_LOST
        elif fault.error_rate:
            class_row.error = max(int(class_row.error), round(fault.error_rate * 2**32))
    # losses are drawn only on links that have this flag
    class_row.special |= s.CARE * int(class_row.error > 0)
    return class_row


def scheduled(
    graph: Graph, fabric: "Fabric", part: "Part", settings: "Settings"
) -> tuple[s.Routes, list[int], s.FaultSchedule, int]:
    """Return the routes of an LP, [dimensions, homes], its FaultSchedule, and its number of routing-table sets.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        part: Nodes and links of the LP (`Part`).
        settings: Settings of the run.
    """
    faults = settings.faults
    routes, *routing = routing_tables(graph, fabric, part, settings)
    routings: list[frozenset[int]] = [frozenset()]
    # most runs have no changes, and a dictionary of all links takes time
    row = {link: i for i, link in enumerate(part.links.tolist())} if fabric.changes or faults.storms else {}
    changes = [(time, s.CHANGE_LINK, row[link], number) for time, link, number in fabric.changes if link in row]
    changes += _npu_changes(faults, fabric.cell_ps, part)
    paused = [(storm.at_ps, link) for storm in faults.storms for link in storm.links if link in row]
    changes += [(_cell_begin(time, fabric.cell_ps), s.CHANGE_PAUSE, row[link], 0) for time, link in paused]
    epoch_at = {}
    for time, down in down_sets(faults.links):
        if down not in routings:
            routings.append(down)
        # routes change once the fault is detected; of two at one time, the later counts
        epoch_at[_cell_begin(time + faults.detection_time_ps, fabric.cell_ps)] = routings.index(down)
    changes += [(time, s.CHANGE_ROUTES, 0, epoch) for time, epoch in epoch_at.items()]
    tables: dict[str, Array] = {}
    if len(routings) > 1:
        routes, tables = _epochs(graph, fabric, part, settings, routes, routings)
    change = rows_of(Change, len(changes))[: len(changes)]
    change[:] = np.array(sorted(changes), change.dtype)
    return routes, routing, unused(s.FaultSchedule)._replace(change=change, **tables), len(routings)


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
    settings: "Settings",
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
        tables, *_ = routing_tables(other, fabric, part, settings)
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
        hops=np.append(routes.hops, np.full(homes, UNREACHABLE, np.int8)),
    )
