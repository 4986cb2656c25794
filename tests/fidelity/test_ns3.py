"""Completion times of ASTRA-sim over ns-3, from run files with packets (docs/explanation/fidelity.md).

Published: 8 NPUs on a ring or a switch, links of 400 Gb/s and 500 ns, ASTRA-sim's Ring_4chunks.json (ring, 4 splits,
endpoint-delay 10, local-mem-bw 1600) and the ns-3 configuration that it ships (1,000 bytes of payload, an
acknowledgement for each packet); K. Redd, github.com/kredd2506/Astro, experiments/results/ns3.csv at 125e187.

By hand: headers of 48 bytes (14 + IPv4 20 + UDP 8 + sequence 6), acknowledgements of 60; a message counts when its last
acknowledgement is back (qp_finish in network_frontend/ns3/entry.h tells sender and receiver); times of packets are
whole nanoseconds.
"""

import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from tests.running import simulate

NPUS, SPLITS = 8, 4
PUBLISHED_NS = {
    "ring": {
        1 << 14: 57_272, 1 << 16: 59_204, 1 << 18: 66_764, 1 << 20: 96_864, 1 << 22: 217_628, 1 << 24: 700_684,
    },
    "switch": {
        1 << 14: 113_944, 1 << 16: 116_436, 1 << 18: 123_996, 1 << 20: 154_096, 1 << 22: 279_564, 1 << 24: 784_628,
    },
}  # fmt: skip
RUN = """
[workload]
traces = "trace.et"
[topology]
spec = "{topology}:npus=8,rate=400Gbps,delay=500ns"
[system]
collectives = {{ {kind} = "ring" }}
dataset_splits = 4
[network]
mtu = 1000
header = "48B"
ack = "60B"
endpoint_delay = "10ns"
reduction_bandwidth = "1600GB/s"
send_latency = "{latency_ns}ns"
acknowledged = true
"""
STEPS = {"all-reduce": (14, 7), "all-gather": (7, 0), "reduce-scatter": (7, 7), "all-to-all": (28, 0)}
"""Of a ring of 8: all, and those that add."""


def by_hand_ns(kind, size, latency_ns=0):
    """What ns-3 takes on a ring of links."""
    part = size // SPLITS
    message = part if kind == "all-gather" else part // NPUS
    packets = -(-message // 1000)
    last = message - 1000 * (packets - 1)
    sent_ns = (packets - 1) * round(1048 / 50) + round((last + 48) / 50)
    step_ns = latency_ns + sent_ns + 500 + round(60 / 50) + 500 + 10
    steps, adds = STEPS[kind]
    return SPLITS * (steps * step_ns + adds * 3 * (message // 1600) + 10)


def run_ns(folder, kind, topology, size, latency_ns=0):
    comm_type = et.CollectiveCommType[kind.replace("-", "_").upper()]
    et.write_trace(folder / "trace.et", et.metadata(), [et.coll_node(1, kind, comm_type, size)])
    (folder / "run.toml").write_text(RUN.format(kind=kind, topology=topology, latency_ns=latency_ns))
    return simulate(load_config(folder / "run.toml")).results.finish_time_ps / 1000


@pytest.mark.parametrize("size", PUBLISHED_NS["ring"])
def test_the_form_by_hand_is_what_ns_3_takes(size):
    """To the nanosecond; of 525 packets they take one less a step."""
    assert by_hand_ns("all-reduce", size) - PUBLISHED_NS["ring"][size] == (56 if size == 1 << 24 else 0)


@pytest.mark.parametrize(("topology", "within"), [("ring", 0.002), ("switch", 0.006)])
def test_published_all_reduces(tmp_path, topology, within):
    """On the switch acknowledgements share links with data: theirs take 1 ns, and 60 bytes take 1.2."""
    found = {size: run_ns(tmp_path, "all-reduce", topology, size) for size in PUBLISHED_NS[topology]}
    assert found == pytest.approx(PUBLISHED_NS[topology], rel=within)


@pytest.mark.parametrize("latency_ns", [0, 6000])
@pytest.mark.parametrize("kind", STEPS)
def test_collectives_of_a_ring(tmp_path, kind, latency_ns):
    """A latency for each message sent is SimAI's (AS_SEND_LAT, in microseconds)."""
    for size in (1 << 13, 1 << 17, 3_000_000, 1 << 22):
        by_hand = by_hand_ns(kind, size, latency_ns)
        assert run_ns(tmp_path, kind, "ring", size, latency_ns) == pytest.approx(by_hand, rel=0.005), size
