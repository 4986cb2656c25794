"""What was watched of queues and pauses: out of the worlds, and into one table over any number of processes."""

import numpy as np

from pdes.build.simulation import LogicalProcess
from pdes.core import packet
from pdes.core.inputs import Array, Int64


def depth_rows(lp: LogicalProcess) -> tuple[Int64, int]:
    """int64[k, 3]: link, begin of the stretch (ps) and most bytes that waited; and how long a stretch is."""
    return _rows(lp, lp.world.net.depth), int(lp.world.net.ctl.depth_ps)


def mark_rows(lp: LogicalProcess) -> Int64:
    """int64[k, 3]: link, begin of the stretch (ps), packets that were marked in it."""
    return _rows(lp, lp.world.net.marks) if lp.world.net.const.ecn == 1 else np.zeros((0, 3), np.int64)


def _rows(lp: LogicalProcess, watched: Array) -> Int64:
    """int64[k, 3]: link, begin of the stretch (ps) and value, where it is not 0."""
    net = lp.world.net
    columns = int(net.const.depths)
    if columns == 0:
        return np.zeros((0, 3), np.int64)
    table = watched[: len(lp.part.links) * columns].reshape(-1, columns)
    link, column = np.nonzero(table)
    return np.stack([lp.part.links[link], column * int(net.ctl.depth_ps), table[link, column]], axis=1).astype(np.int64)


def pause_rows(lp: LogicalProcess) -> Int64:
    """int64[k, 2]: the log of pauses."""
    net = lp.world.net
    rows = len(net.pause_log) // 2
    return net.pause_log[: 2 * rows].reshape(-1, 2)[: int(net.ctl.pauses)]


def queues(rows: Int64, width_ps: int) -> dict[str, Array]:
    """The table of queues; width_ps: the longest stretch of all LPs, to which shorter ones are joined."""
    return _joined(rows, width_ps, "bytes", np.maximum)


def marks(rows: Int64, width_ps: int) -> dict[str, Array]:
    """The table of marks; width_ps: as for `queues`."""
    return _joined(rows, width_ps, "packets", np.add)


def _joined(rows: Int64, width_ps: int, name: str, join: np.ufunc) -> dict[str, Array]:
    """A row for each link and stretch; join: what becomes of several values."""
    link, time, value = rows[:, 0], rows[:, 1] // width_ps * width_ps, rows[:, 2]
    order = np.lexsort((time, link))
    link, time, value = link[order], time[order], value[order]
    first = np.flatnonzero((np.diff(link, prepend=-1) != 0) | (np.diff(time, prepend=-1) != 0))
    joined = join.reduceat(value, first) if len(first) else value
    return {"link": link[first], "time_ps": time[first], name: joined}


def pauses(rows: Int64, kept: int) -> dict[str, Array]:
    """The table of pauses: the first `kept`."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))][:kept]
    return {
        "time_ps": rows[:, 0],
        "link": packet.logged_link(rows[:, 1]),
        "data_class": packet.paused_class(rows[:, 1]),
        "paused": packet.asks_to_pause(rows[:, 1]).astype(bool),
    }
