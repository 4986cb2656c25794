"""Why SimAI's bus bandwidths are 5 to 7 % lower than Nadi's at every size (docs/explanation/how-it-works.md).

By hand, of aliyun/SimAI: `Layer::compute_busbw` (astra-sim-alibabacloud, system/Layer.cc) multiplies bytes per second
by GBps = 1 / 2^30, so what it prints as GB/s is GiB/s. Its ns-3 (rdma-hw.cc, data-rate.cc) sends packets of 9,000 bytes
with 48 bytes of headers, acknowledges each with 60 bytes, and cuts the time of each packet to whole nanoseconds
(`Seconds (bytes * 8) / m_bps` divides an integer). A message is sent AS_SEND_LAT, 6 us, after it is posted, and counts
when its last acknowledgement is back.
"""

import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from tests.running import simulate

PAYLOAD, HEADER, ACK, SEND_LATENCY_NS = 9000, 48, 60, 6000
GIB_PER_GB = 1e9 / 2**30
RUN = """
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
    (folder / "run.toml").write_text(RUN.format(npus=npus, rate=rate, delay=delay))
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
