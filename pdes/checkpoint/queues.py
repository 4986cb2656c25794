"""Queues of packet records (pdes/core/fifo.py) of one world as plain arrays, and back into the pool of another."""

import numpy as np

from nadi.pdes.construction.layout import offsets
from nadi.pdes.construction.simulation import LogicalProcess
from nadi.pdes.core.inputs import Int64
from nadi.pdes.core.jit import kernel
from nadi.pdes.core.state import BLOCK_RECORDS, BLOCK_SHIFT, INF, NEED_BLOCKS, Net


@kernel
def follow_queues(ready_ps, block_next, heads, tails, records, ends):
    """Write the records of queues, in their order, and where those of each end.

    Args:
        ready_ps: int64[records], times of the packets; INF marks the place behind the last of some queues.
        block_next: int64[blocks], the block that follows each in its queue.
        heads: int64[queues], first record of each queue.
        tails: int64[queues], place behind the last record; -1 = the queue ends at a time INF.
        records: int64[n], output: the records of all queues, queue by queue.
        ends: int64[queues], output: end of each queue in `records`.
    """
    count = 0
    for queue in range(heads.shape[0]):
        record = heads[queue]
        while record >= 0 and record != tails[queue]:
            # a queue whose end is not given ends at a record that is never ready
            if tails[queue] < 0 and ready_ps[record] == INF:
                break
            records[count] = record
            count += 1
            record += 1
            if record & (BLOCK_RECORDS - 1) == 0:
                record = block_next[(record >> BLOCK_SHIFT) - 1] << BLOCK_SHIFT
        ends[queue] = count
    return 0


def queues_of(net: Net, heads: Int64, tails: Int64) -> tuple[Int64, Int64]:
    """Return the records of queues, in their order, and int64[queues], their numbers.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        heads: int64[queues], first record of each queue.
        tails: int64[queues], place behind the last record; -1 = the queue ends at a time INF.
    """
    records, ends = np.zeros(len(net.record) + 1, np.int64), np.zeros(max(1, len(heads)), np.int64)
    # contiguous copies, which compiled code can take
    ready_ps = np.array(net.record.ready_ps)
    block_next = net.block_next.astype(np.int64)
    heads, tails = (np.ascontiguousarray(each, np.int64) for each in (heads, tails))
    if len(heads):
        follow_queues(ready_ps, block_next, heads, tails, records, ends)
    ends = ends[: len(heads)]
    return records[: ends[-1] if len(ends) else 0], np.diff(ends, prepend=0)


def words_of_packets(net: Net, records: Int64) -> tuple[Int64, Int64]:
    """Return int64[n, 4], the words of packet records, and int64[n, words], their telemetry, without words if none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        records: int64[n], numbers of packet records.
    """
    packets = net.record[records].view(np.ndarray).view(np.int64).reshape(-1, 4)
    telemetry = np.zeros((len(records), 0), np.int64)
    if len(net.telemetry) == len(net.record):
        words = net.telemetry.itemsize // np.int64().itemsize
        telemetry = net.telemetry[records].view(np.ndarray).view(np.int64).reshape(len(records), words)
    return packets, telemetry


def make_blocks(lp: LogicalProcess, blocks: int) -> None:
    """Let the pool of an LP have `blocks` free blocks beside those that an action may use.

    Args:
        lp: The logical process.
        blocks: Number of free blocks that the caller needs.
    """
    lp.make_room("free_blocks", NEED_BLOCKS, blocks + int(lp.world.net.const.reserve_blocks))


def put_in_queues(lp: LogicalProcess, counts: Int64, packets: Int64, telemetry: Int64) -> tuple[Int64, Int64]:
    """Put packets into new queues of an LP; return the first record of each and the place behind its last.

    Args:
        lp: The logical process.
        counts: int64[queues], number of packets of each queue, above 0.
        packets: int64[n, 4], words of the packets, queue by queue.
        telemetry: int64[n, words], their telemetry as `words_of_packets` returns it.
    """
    blocks = counts // BLOCK_RECORDS + 1  # the place behind the last is in a block, too
    first = offsets(blocks)
    make_blocks(lp, int(first[-1]))
    net = lp.world.net
    free = int(net.ctl.free_blocks)
    own = net.block_free[free - int(first[-1]) : free][::-1].astype(np.int64)
    net.ctl.free_blocks = free - int(first[-1])
    within = np.arange(int(counts.sum())) - np.repeat(offsets(counts)[:-1], counts)
    at = own[np.repeat(first[:-1], counts) + within // BLOCK_RECORDS] * BLOCK_RECORDS + within % BLOCK_RECORDS
    rows = np.ascontiguousarray(packets).view(net.record.dtype).reshape(-1)
    net.record[at] = rows
    if telemetry.shape[1] and len(at):
        net.telemetry[at] = np.ascontiguousarray(telemetry).view(net.telemetry.dtype).reshape(-1)
    is_last = np.zeros(len(own), bool)
    is_last[first[1:] - 1] = True
    net.block_next[own[:-1][~is_last[:-1]]] = own[1:][~is_last[:-1]]
    tails = own[first[1:] - 1] * BLOCK_RECORDS + counts % BLOCK_RECORDS
    return own[first[:-1]] * BLOCK_RECORDS, tails
