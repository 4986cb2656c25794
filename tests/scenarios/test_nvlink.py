"""Links of NVSwitches carry flits: trains and rings to the picosecond, and the share that is payload."""

import numpy as np
import pytest

from nadi.configuration.sections import NetworkSection
from nadi.pdes import Settings
from nadi.simulation.closed_forms.lone_message import ideal_ps
from nadi.topologies import build
from nadi.workload import collective_program, pairs_program
from tests.scenarios.running import simulate

HOST = "rail-optimised:npus=8,gpus_per_host=8,nvlink_rate=2400Gbps,nvlink_delay=300ns,rate=100Gbps"
PS_PER_BYTE = 8e12 / 2400e9


@pytest.mark.parametrize("size", [0, 1, 128, 129, 4096, 4097, 1 << 20])
def test_a_message_takes_its_flits_over_both_links(size):
    """Two links of 300 ns, store and forward of the last packet; 160 bytes for 128, at least one line."""
    to = np.full(8, -1)
    to[0] = 5
    results = simulate(HOST, pairs_program(to, size), nvlink_framing=True)
    packets = max(1, -(-size // 4096))
    last = size - (packets - 1) * 4096
    framed = [4096 * 160 // 128] * (packets - 1) + [last + 32 * max(1, -(-last // 128))]
    first_link = np.cumsum([int(b * PS_PER_BYTE + 0.5) for b in framed])
    done = 0
    for sent, size_bytes in zip(first_link, framed, strict=True):
        done = max(done, sent + 300_000) + int(size_bytes * PS_PER_BYTE + 0.5)
    finish_ps = int(results.flows["finish_ps"][0])
    assert finish_ps == done + 300_000
    assert ideal_ps(build(HOST), Settings(nvlink_framing=True), results.flows).tolist() == [finish_ps]
    assert results.links["tx_bytes"].max() == sum(framed)


def test_a_ring_moves_four_fifths_of_the_rate():
    """A100: 300 GB/s each way are 240 of payload, less an acknowledgement's flit for each packet of 32 lines."""
    size = 256 << 20
    results = simulate(HOST, collective_program("all-reduce", 8, size, "ring"), nvlink_framing=True)
    busbw = 2 * 7 / 8 * size / (results.finish_time_ps * 1e-12)
    assert 0.99 * 240e9 * 5120 / 5136 < busbw < 240e9


def test_links_of_nvswitches_carry_flits_unless_told_otherwise():
    assert Settings().nvlink_framing is NetworkSection().nvlink_framing is True


def test_frames_of_ethernet_stay_as_they_are():
    plain = simulate(HOST, collective_program("all-reduce", 8, 1 << 20, "ring"), nvlink_framing=False)
    framed = simulate(HOST, collective_program("all-reduce", 8, 1 << 20, "ring"), nvlink_framing=True)
    assert plain.finish_time_ps < framed.finish_time_ps
    nvlink = np.isin(build(HOST).link_dst, [8])
    assert plain.links["tx_bytes"][nvlink].sum() != framed.links["tx_bytes"][nvlink].sum()
