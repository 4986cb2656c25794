"""What bounds promise to be carried is carried."""

from nadi.configuration import MAX_WINDOW_PACKETS, MAX_WIRE_BYTES
from nadi.inputs import limits as quantities
from nadi.pdes import Settings, build_world, fidelity, run
from nadi.topologies import build
from nadi.workload import pairs_program


def test_the_largest_numbers_are_carried_whole():
    """The largest packets, the most bytes of one message and link, the widest window."""
    graph = build("switch:npus=2,rate=1000Tbps,delay=1us")

    def one_message(size_bytes):
        return pairs_program([1, -1], size_bytes)

    largest = Settings(mtu_bytes=MAX_WIRE_BYTES - 82, header_bytes=82)
    sent = run(build_world(graph, one_message(3 * largest.mtu_bytes), largest))
    assert sent.links["tx_bytes"].tolist() == [3 * 65_535, 3 * 86, 3 * 86, 3 * 65_535]
    whole = Settings(fidelity=fidelity.fidelity("congestion_aware"))
    sent = run(build_world(graph, one_message(quantities.MAX_BYTES), whole))
    assert sent.links["tx_bytes"].max() == sent.flows["bytes"].sum() == 2**46 - 1
    widest = Settings(mtu_bytes=1, window_bytes=MAX_WINDOW_PACKETS)
    sent = run(build_world(graph, one_message(1000), widest))
    assert sent.settled["window_packets"] == 2**22
    assert sent.counters["data_packets"] == 1000
