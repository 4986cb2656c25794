"""Samples of links: from the log and the rows of each logical process to a table by link and interval."""

import numpy as np

from nadi.pdes.build.simulation import LogicalProcess
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
