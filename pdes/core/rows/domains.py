"""Rows of NVLink domains: NVLink domains whose collectives are simulated once and replayed (pdes/reuse)."""

from nadi.pdes.core.rows.row import Row, word


class ReplayedDomain(Row, words=8):
    """An NVLink domain whose NPUs and NVSwitch belong to one LP."""

    packet_rows = word("count", "trace rows under way whose packets cross the domain's links in this world")
    off = word("flag", "nothing more is replayed, once nothing is under way", rest="same")
    drain_ps = word(
        "duration", "time after which an idle link's packets have arrived and ties are forgotten", is_built=True
    )
    first_aggregator = word(
        "npu", "first NPU that is an aggregator: it sends nothing before it receives", is_built=True
    )


class DomainMember(Row, words=8):
    """An NPU of an LP in its domain: what keeps its links busy."""

    # links are busy with packets (packet_rows > 0, or crossed_ps not long ago), with a replayed collective (waiting >
    # 0, or until busy_until_ps), or with nothing; both at a time means that the replay was wrong: is_disturbed
    waiting = word("count", "replayed collectives that some members have started, and others have not", rest="same")
    packet_rows = word("count", "trace rows under way, of all NPUs, whose packets may cross its links in this world")
    had_packets = word("flag", "packets of this world have crossed its links", rest="same")
    crossed_ps = word("time", "end of the latest of these rows", rest="recent")
    busy_until_ps = word(
        "time", "time from which the latest replayed collective no longer affects others", begins=-1, rest="future"
    )
    is_disturbed = word("flag", "packets are to cross its links while replayed collectives are under way")
    link_out = word("link", "row of `tx` of its link to the switch", is_built=True)
    link_in = word("link", "row of `tx` of the link from the switch", is_built=True)
