"""Rows of islands: NVLink domains whose collectives are simulated once and replayed (pdes/reuse)."""

from pdes.core.rows.row import Row, word


class Island(Row, words=16, written_by="build.islands npu.islands npu.quiet reuse.replay"):
    """An NVLink domain whose NPUs and NVSwitch belong to one LP."""

    open_members = word("count", "members that have started replayed collectives for which others have not started")
    packet_rows = word("count", "trace rows under way whose packets cross the domain's links in this world")
    had_packets = word("flag", "packets of this world have crossed the domain's links")
    busy_until_ps = word("time", "time from which the latest replayed collectives no longer affect others", begins=-1)
    off = word("flag", "nothing more is replayed, once nothing is under way")
    first_link = word("place", "first of its links in `link`")
    links = word("count", "number of its links")
    drain_ps = word("duration", "time after which an idle link's packets have arrived and ties are forgotten")
    first_aggregator = word("npu", "first NPU that is an aggregator: it sends nothing before it receives")
