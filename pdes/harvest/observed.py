"""What was watched of queues and pauses: out of the worlds, and into one table over any number of processes."""

import numpy as np

from pdes.build.simulation import LogicalProcess
from pdes.core import packet
from pdes.core.inputs import Array, Int64


def depth_rows(lp: LogicalProcess) -> tuple[Int64, int]:
    """int64[k, 3]: link, begin of the stretch (ps) and most bytes that waited; and how long a stretch is."""
    net = lp.world.net
    columns = int(net.const.depths)
    width_ps = int(net.ctl.depth_ps)
    if columns == 0:
        return np.zeros((0, 3), np.int64), width_ps
    depth = net.depth[: len(lp.part.links) * columns].reshape(-1, columns)
    link, column = np.nonzero(depth)
    return np.stack([lp.part.links[link], column * width_ps, depth[link, column]], axis=1).astype(np.int64), width_ps


def pause_rows(lp: LogicalProcess) -> Int64:
    """int64[k, 2]: the log of pauses."""
    net = lp.world.net
    rows = len(net.pause_log) // 2
    return net.pause_log[: 2 * rows].reshape(-1, 2)[: int(net.ctl.pauses)]


def queues(rows: Int64, width_ps: int) -> dict[str, Array]:
    """The table of queues; width_ps: the longest stretch of all LPs, to which shorter ones are joined."""
    link, time, most = rows[:, 0], rows[:, 1] // width_ps * width_ps, rows[:, 2]
    order = np.lexsort((time, link))
    link, time, most = link[order], time[order], most[order]
    first = np.flatnonzero((np.diff(link, prepend=-1) != 0) | (np.diff(time, prepend=-1) != 0))
    top = np.maximum.reduceat(most, first) if len(first) else most
    return {"link": link[first], "time_ps": time[first], "bytes": top}


def pauses(rows: Int64, kept: int) -> dict[str, Array]:
    """The table of pauses: the first `kept`."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))][:kept]
    return {
        "time_ps": rows[:, 0],
        "link": packet.logged_link(rows[:, 1]),
        "data_class": packet.paused_class(rows[:, 1]),
        "paused": packet.asks_to_pause(rows[:, 1]).astype(bool),
    }
