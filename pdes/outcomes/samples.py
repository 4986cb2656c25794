"""Samples of links: from the log and the rows of each logical process to a table by link and interval."""

import numpy as np

from nadi.pdes.construction.simulation import LogicalProcess
from nadi.pdes.core import packet
from nadi.pdes.core.inputs import Array, Int64
from nadi.pdes.network.sampling import QUEUED, SENT

_ENTRY = ("link", "kind", "interval", "amount")  # words of SampleEntry
_LAST = {SENT: ("sent_interval", "sent_bytes"), QUEUED: ("queue_interval", "queue_bytes")}  # words of LinkSample


def samples_of(lp: LogicalProcess) -> Int64:
    """Return int64[k, 4] of an LP: link, begin of the interval (ps), bytes sent and maximum queue; one of both is 0."""
    net = lp.world.net
    if not net.const.sample_ps:
        return np.zeros((0, 4), np.int64)
    lp.take_samples()
    links = len(lp.part.links)
    parts = [np.stack([rows[word] for word in _ENTRY], axis=1) for rows in lp.samples]
    for kind, (interval, amount) in _LAST.items():  # the latest interval of each link, which is not in the log
        own = net.sample[:links]
        parts.append(np.stack([np.arange(links), np.full(links, kind), own[interval], own[amount]], axis=1))
    every = np.concatenate(parts).astype(np.int64)
    every = every[(every[:, 3] > 0) & (every[:, 0] < links)]  # not of the row that loses packets without a route
    link, kind, interval, amount = every.T
    sent, queued = (np.where(kind == wanted, amount, 0) for wanted in (SENT, QUEUED))
    table = np.stack([lp.part.links[link], interval * int(net.const.sample_ps), sent, queued], axis=1)
    return table.astype(np.int64)


def by_interval(samples: Int64) -> dict[str, Array]:
    """Return the table of samples by column, a row per link and interval, from int64[k, 4] of all LPs."""
    samples = samples[np.lexsort((samples[:, 1], samples[:, 0]))]
    link, time_ps, sent, queued = samples.T
    # first row of each (link, interval): an interval that has both kinds of entries becomes one row
    first = np.flatnonzero((np.diff(link, prepend=-1) != 0) | (np.diff(time_ps, prepend=-1) != 0))
    if len(first):
        sent, queued = np.add.reduceat(sent, first), np.maximum.reduceat(queued, first)
    return {"link": link[first], "time_ps": time_ps[first], "tx_bytes": sent, "queue_bytes": queued}


def stretches(watched: Int64, width_ps: int, name: str, merge_values: np.ufunc) -> dict[str, Array]:
    """Return a table with a row for each link and interval in which it was watched.

    Args:
        watched: int64[k, 3] of all LPs: link, begin of the interval in ps, value.
        width_ps: Width of the table's intervals in ps, that of the LP with the longest.
        name: Name of the column of values.
        merge_values: Function that merges the values of shorter intervals of other LPs within one of the table.
    """
    # those that begin at 1, 2 and 3 us are all in that of 0 to 4 us
    link, time, value = watched[:, 0], watched[:, 1] // width_ps * width_ps, watched[:, 2]
    order = np.lexsort((time, link))
    link, time, value = link[order], time[order], value[order]
    first = np.flatnonzero((np.diff(link, prepend=-1) != 0) | (np.diff(time, prepend=-1) != 0))
    joined = merge_values.reduceat(value, first) if len(first) else value
    return {"link": link[first], "time_ps": time[first], name: joined}


def pauses_of(log: Int64, count: int) -> dict[str, Array]:
    """Return the table of pauses by column, in the order of time.

    Args:
        log: int64[k, 2], the entries of all LPs' `Net.pause_log`.
        count: Number of pauses that the table holds, the first ones.
    """
    log = log[np.lexsort((log[:, 1], log[:, 0]))][:count]
    return {
        "time_ps": log[:, 0],
        "link": packet.logged_link(log[:, 1]),
        "data_class": packet.paused_class(log[:, 1]),
        "paused": packet.asks_to_pause(log[:, 1]).astype(bool),
    }
