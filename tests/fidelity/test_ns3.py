"""Networks of ns-3 under ASTRA-sim and SimAI, by hand and as published, from run files with packets."""

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


PAYLOAD, HEADER, ACK, SEND_LATENCY_NS = 9000, 48, 60, 6000
GIB_PER_GB = 1e9 / 2**30
SIMAI_RUN = """
[workload]
traces = "trace.et"
[topology]
spec = "ring:npus={npus},rate={rate}Gbps,delay={delay}ns"
[system]
collectives = {{ all-reduce = "ring" }}
[network]
mtu = 9000
header = "48B"
ack = "60B"
send_latency = "6us"
acknowledged = true
"""


def their_time_ns(npus, size, rate, delay):
    """What SimAI's ns-3 takes for a ring all-reduce over links of `rate` Gb/s and `delay` ns."""
    part = size // npus
    whole, rest = divmod(part, PAYLOAD)
    sent_ns = whole * ((PAYLOAD + HEADER) * 8 // rate) + (((rest + HEADER) * 8 // rate) if rest else 0)
    return 2 * (npus - 1) * (SEND_LATENCY_NS + sent_ns + delay + ACK * 8 // rate + delay)


def our_time_ns(folder, npus, size, rate, delay):
    node = et.coll_node(1, "all-reduce", et.CollectiveCommType.ALL_REDUCE, size)
    et.write_trace(folder / "trace.et", et.metadata(), [node])
    (folder / "run.toml").write_text(SIMAI_RUN.format(npus=npus, rate=rate, delay=delay))
    return simulate(load_config(folder / "run.toml")).results.finish_time_ps / 1000


@pytest.mark.parametrize("size", [1 << 16, 1 << 20, 1 << 24, 1 << 26])
@pytest.mark.parametrize(("npus", "rate", "delay"), [(8, 2880, 50), (8, 400, 500), (32, 400, 500)])
def test_their_gigabytes_are_gibibytes(tmp_path, npus, size, rate, delay):
    theirs_ns, ours_ns = their_time_ns(npus, size, rate, delay), our_time_ns(tmp_path, npus, size, rate, delay)
    assert ours_ns == pytest.approx(theirs_ns, rel=0.006), "times agree but for whole nanoseconds"
    bus = 2 * (npus - 1) / npus
    theirs_as_printed, ours = bus * size / theirs_ns * GIB_PER_GB, bus * size / ours_ns
    assert 0.05 < 1 - theirs_as_printed / ours < 0.07


def test_the_constant():
    assert pytest.approx(0.0687, abs=1e-4) == 1 - GIB_PER_GB
