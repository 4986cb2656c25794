"""The routing tables of one logical process as cells of port sets (pdes/routing.py)."""

import numpy as np

from pdes import state as s
from pdes.jit import kernel
from pdes.memory import aligned
from pdes.results import RunError
from pdes.routing import MODE_DIMENSIONS, MODE_ONE_HOME, MODE_TABLE, SET_SHIFT, salt_of


@kernel
def fill_salts(salt, nodes, seed):
    """Salts of nodes by their numbers in the fabric."""
    for i in range(salt.shape[0]):
        salt[i] = salt_of(seed, nodes[i])


def _cells(routing, tx_of):
    """int32[sets]: a cell for each port set; and the members of sets as own links."""
    count = np.diff(routing.set_ptr).astype(np.int64)
    if len(count) and count.max() > s.MAX_SET:
        raise RunError(f"{count.max()} equal-cost links: at most {s.MAX_SET} are possible")
    link = tx_of[routing.set_link]
    first = routing.set_ptr[:-1].astype(np.int64)
    if len(link):
        first = np.where(count == 1, link[np.minimum(first, len(link) - 1)], first)
    return ((count << SET_SHIFT) | first).astype(np.int32), link.astype(np.int32)


def routing_tables(graph, part, seed):
    """Routes of the LP, and the constants mode, dimensions and homes."""
    routing = graph.routing
    cells, link = _cells(routing, part.tx_of(graph))
    salt = np.empty(max(1, len(part.nodes)), np.int64)
    fill_salts(salt[: len(part.nodes)], part.nodes, seed)
    fields = {name: np.zeros(1, dtype.__metadata__[0]) for name, dtype in s.Routes.__annotations__.items()}
    fields |= {"link": link, "salt": salt}
    if hasattr(routing, "home"):
        fields |= _by_table(graph, part, cells)
        constants = (MODE_ONE_HOME if routing.home.shape[1] == 1 else MODE_TABLE), 0, routing.home.shape[1]
    else:
        fields |= _by_dimension(graph, part, cells)
        constants = MODE_DIMENSIONS, len(routing.sizes), 1
    return s.Routes(**{name: aligned(values) for name, values in fields.items()}), *constants


def _by_table(graph, part, cells):
    """Rows of own switches, and of others that NPUs of several ports look at."""
    r = graph.routing
    ports = part.links[: part.out_ptr[part.npus]]
    several = np.diff(part.out_ptr[: part.npus + 1]).max(initial=0) > 1
    beyond = graph.link_dst[ports] if several else ports[:0]
    extra = np.unique(beyond[part.local[beyond] < 0])
    entries = np.concatenate([part.nodes, extra])
    via = np.zeros(len(ports), np.int32)
    if several:
        via = np.where(part.local[beyond] >= 0, part.local[beyond], len(part.nodes) + np.searchsorted(extra, beyond))
    switch = r.row[entries] >= 0
    kept = r.row[entries[switch]]
    homes = len(r.home_node)
    row = np.zeros(len(entries), np.int64)
    row[switch] = np.arange(len(kept)) * homes
    column = np.full(graph.nodes, -1, np.int32)
    column[r.home_node] = np.arange(homes)
    return {
        "row": row,
        "cell": _cell_or_none(cells, r.next_set[kept]),
        "hops": r.hops[kept].astype(np.int8),
        "attach": _cell_or_none(cells, r.attach_set),
        "home": r.home.astype(np.int32),
        "column": column[entries],
        "via": via.astype(np.int32),
    }


def _cell_or_none(cells, sets):
    return np.where(sets >= 0, cells[np.maximum(sets, 0)], np.int32(0))


def _by_dimension(graph, part, cells):
    """Own coordinates, and those of all destinations."""
    r = graph.routing
    return {
        "cell": cells[r.sets],
        "here": r.digit[part.nodes].astype(np.int32),
        "digit": r.digit[: graph.npus].astype(np.int32),
        "mode": r.mode[part.nodes].astype(np.int8),
        "offset": r.offset[part.nodes].astype(np.int64),
        "size": r.sizes.astype(np.int64),
    }
