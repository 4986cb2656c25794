"""What was watched of queues and pauses: out of the worlds, and into one table over any number of processes."""

import numpy as np

from pdes.build.simulation import LogicalProcess
from pdes.core import packet
from pdes.core.inputs import Array, Int64


def watched(lp: LogicalProcess, table: Array | None) -> Int64:
    """int64[k, 3]: link, begin of the stretch of time (ps) and value, where that is not 0; of `depth` or `marks`."""
    net = lp.world.net
    columns = int(net.const.depths)
    if columns == 0 or table is None:
        return np.zeros((0, 3), np.int64)
    table = table[: len(lp.part.links) * columns].reshape(-1, columns)
    link, column = np.nonzero(table)
    return np.stack([lp.part.links[link], column * int(net.ctl.depth_ps), table[link, column]], axis=1).astype(np.int64)


def stretches(rows: Int64, width_ps: int, name: str, join: np.ufunc) -> dict[str, Array]:
    """A table with a row for each link and stretch.

    Args:
        rows: as `watched` gives them.
        width_ps: the longest stretch of all LPs, to which shorter ones are joined.
        name: of the values.
        join: what becomes of several.
    """
    link, time, value = rows[:, 0], rows[:, 1] // width_ps * width_ps, rows[:, 2]
    order = np.lexsort((time, link))
    link, time, value = link[order], time[order], value[order]
    first = np.flatnonzero((np.diff(link, prepend=-1) != 0) | (np.diff(time, prepend=-1) != 0))
    joined = join.reduceat(value, first) if len(first) else value
    return {"link": link[first], "time_ps": time[first], name: joined}


def logged_pauses(lp: LogicalProcess) -> Int64:
    """int64[k, 2]: the log of pauses."""
    net = lp.world.net
    return net.pause_log[: len(net.pause_log) // 2 * 2].reshape(-1, 2)[: int(net.ctl.pauses)]


def pauses(rows: Int64, kept: int) -> dict[str, Array]:
    """The table of pauses: the first `kept`."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))][:kept]
    return {
        "time_ps": rows[:, 0],
        "link": packet.logged_link(rows[:, 1]),
        "data_class": packet.paused_class(rows[:, 1]),
        "paused": packet.asks_to_pause(rows[:, 1]).astype(bool),
    }
