"""The routes' arrays of routing that is not minimal (pdes/network/detours): detours, and paths that are listed."""

from typing import TYPE_CHECKING, Any

import numpy as np

from nadi.pdes.core import Array, Graph, ImpossibleRunError, Int32, Record
from nadi.pdes.core.jit import rows_of, zeros
from nadi.pdes.core.packet import COLUMN_BITS, header
from nadi.pdes.core.rows.network import QueueLog

if TYPE_CHECKING:
    from nadi.pdes.construction.layout import Part
    from nadi.pdes.construction.settings import Settings

SWITCH_KIND = 1  # word of graph.node_kind that marks a switch outside hosts


def queues_of_detours(part: "Part", const: Record, settings: "Settings") -> dict[str, Any]:
    """Return the arrays of an LP by which rules know queues of before, or of other switches.

    Args:
        part: Nodes and links of the LP (`Part`).
        const: Its row `Constants`.
        settings: Settings of the run.
    """
    logged = len(part.links) if const.routing_delay_ps > 0 else 1
    shown = (len(part.links) + 1) * bool(settings.routing.publish)  # one more for `with_pit`
    return {"queue_log": rows_of(QueueLog, logged), "published_ps": zeros(shown)}


def tables_of_detours(graph: Graph, part: "Part", down: frozenset[int]) -> dict[str, Array]:
    """Return the routes' arrays for detours over homes of other groups.

    Args:
        graph: The fabric (`Graph`).
        part: Nodes and links of the LP (`Part`).
        down: Links that are down.
    """
    r: Any = graph.routing
    columns = len(r.home_node)
    if columns > 1 << COLUMN_BITS:
        raise ImpossibleRunError(f"{columns} switches with NPUs: at most {1 << COLUMN_BITS} are possible with detours")
    # without groups, each switch of the fabric is one; NVSwitches of hosts are in none
    group = graph.group
    if (group < 0).all():
        group = np.where(graph.node_kind == SWITCH_KIND, np.arange(graph.nodes), -1).astype(np.int32)
    column_group, own, ends = group[r.home_node], group[part.nodes], group[graph.link_dst[part.links]]
    # switches that paths join are named by their first home: detours lead over these alone
    is_joined = r.hops < r.cut_hops
    joined = np.where(is_joined.any(axis=1), is_joined.argmax(axis=1), -1)
    # a packet leaves its detour when it enters a group: where groups have several homes, the last link to the home, and
    # the like from there, count once
    several = len(np.unique(column_group)) < columns
    hops_after = np.maximum(r.hops[r.row[r.home_node]] - several, 0)
    stride = graph.nodes + 1  # above all groups
    here = np.where(r.row[part.nodes] >= 0, joined[r.row[part.nodes]], -1).astype(np.int64) * stride
    key = joined[r.row[r.home_node]].astype(np.int64) * stride + column_group
    ordered = np.argsort(key, kind="stable")
    detour = ordered[column_group[ordered] >= 0]
    bounds = [np.searchsorted(key[detour], here + own, side) for side in ("left", "right")]
    bounds += [np.searchsorted(key[detour], here + more) for more in (0, graph.nodes)]
    # a home of the group at the other end of each link to another group
    owner = np.repeat(np.arange(len(part.nodes)), np.diff(part.out_ptr))[: len(part.links)]
    place = np.searchsorted(key[detour], here[owner] + ends)
    leads = np.append(key[detour], -2)[place] == here[owner] + ends
    leads &= (ends >= 0) & (own[owner] >= 0) & (ends != own[owner]) & ~np.isin(part.links, list(down))
    switches = np.flatnonzero(r.row[part.nodes] >= 0)
    row = np.zeros(len(part.nodes), np.int64)
    row[switches] = np.arange(len(switches)) * columns
    return {
        "group": own,
        "column_group": column_group,
        "detour": detour,
        "own_homes": np.stack(bounds, axis=1),
        "near_ptr": np.searchsorted(owner[leads], np.arange(len(part.nodes) + 1)),
        "near": detour[place[leads]],
        "switch_row": row,
        "switch_hops": r.hops[r.row[part.nodes[switches]]],
        "home_hops": hops_after,
    }


def tables_of_lists(rows: Any, part: "Part", cells: Int32) -> dict[str, Array]:
    """Return the routes' arrays for source routes.

    Args:
        rows: What each switch of the fabric does with packets of listed pairs (SourceRows).
        part: Nodes and links of the LP (`Part`).
        cells: int32[sets], the cell of each port set of the lists.
    """
    own = np.flatnonzero(part.local[rows.node] >= 0)
    pair = header(rows.dst[own], rows.src[own].astype(np.int64), 0, 0)
    own, pair = (each[np.lexsort((pair, part.local[rows.node[own]]))] for each in (own, pair))
    counts = np.diff(rows.ptr)[own]
    ptr = np.append(0, np.cumsum(counts))
    port_set = rows.port_set[np.arange(ptr[-1]) + np.repeat(rows.ptr[own] - ptr[:-1], counts)]
    return {
        "listed_ptr": np.searchsorted(part.local[rows.node[own]], np.arange(len(part.nodes) + 1)),
        "listed_pair": pair,
        "listed_cell_ptr": ptr,
        "listed_cell": np.where(port_set >= 0, np.append(cells, 0)[port_set], -1),
    }
