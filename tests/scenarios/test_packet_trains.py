"""One message on an idle path of one to six links: exact, packet by packet."""

import numpy as np
import pytest

from nadi.workload import pairs_program
from tests.scenarios.closed_forms import Wire, bits_ps, train_ps
from tests.scenarios.running import simulate

G = 10**9
NS = 10**3
SIZES = [0, 1, 4096, 4097, 10 * 4096, 1000 * 4096 + 17]
RATES = [
    [100 * G, 100 * G],
    [400 * G, 100 * G],
    [100 * G, 400 * G],
    [400 * G, 50 * 2**30 * 8, 25 * G],
    [25 * G, 300 * G, 40 * G, 300 * G],
    [200 * G, 100 * G, 400 * G, 100 * G, 200 * G],
    [800 * G, 400 * G, 10 * G, 33 * G, 400 * G, 800 * G],
    [33 * G, 40 * G, 50 * G, 100 * G, 200 * G, 400 * G],
]


def one_message(npus, dst, size_bytes):
    destination = np.full(npus, -1)
    destination[0] = dst
    return pairs_program(destination, size_bytes)


def line(path, rates_bps, latency_ns=0):
    """A TOML file: NPU 0, a line of switches, NPU 1; link i has rate i and a delay of (i + 1) * 100 ns."""
    switches = len(rates_bps) - 1
    nodes = ["npu 0", *(f"s{i}" for i in range(switches)), "npu 1"]
    text = ["npus = 2"]
    text += [f'[[switches]]\nname = "s{i}"\nlatency = "{latency_ns}ns"' for i in range(switches)]
    text += [
        f'[[links]]\nrate = "{rate}bps"\ndelay = "{100 * (i + 1)}ns"\ncables = [["{nodes[i]}", "{nodes[i + 1]}"]]'
        for i, rate in enumerate(rates_bps)
    ]
    path.write_text("\n".join(text), encoding="utf-8")
    hops = len(rates_bps)
    return 50 * hops * (hops + 1) * NS + switches * latency_ns * NS


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("hops", range(1, 7))
def test_a_ring_neighbour_at_a_distance(hops, size_bytes):
    results = simulate("ring:npus=13,rate=100Gbps,delay=300ns", one_message(13, hops, size_bytes))
    assert results.finish_time_ps == train_ps(size_bytes, [100 * G] * hops, hops * 300 * NS)
    assert results.counters["packet_hops"] == 2 * hops * results.counters["data_packets"]


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("rates_bps", RATES, ids=lambda rates: f"{len(rates)}links-{rates[0] // G}G-{rates[-1] // G}G")
def test_a_line_of_switches(tmp_path, rates_bps, size_bytes):
    fixed_ps = line(tmp_path / "line.toml", rates_bps, latency_ns=250)
    results = simulate(tmp_path / "line.toml", one_message(2, 1, size_bytes))
    assert results.finish_time_ps == train_ps(size_bytes, rates_bps, fixed_ps)
    assert results.flows["finish_ps"].tolist() == [results.finish_time_ps]


@pytest.mark.parametrize("wire", [Wire(1000, 48, 60), Wire(256, 82, 86), Wire(9000, 82, 86)])
def test_other_packets(tmp_path, wire):
    rates_bps, size_bytes = [100 * G, 40 * G, 200 * G], 123_456
    fixed_ps = line(tmp_path / "line.toml", rates_bps)
    settings = {"mtu_bytes": wire.mtu, "header_bytes": wire.header, "ack_bytes": wire.ack}
    results = simulate(tmp_path / "line.toml", one_message(2, 1, size_bytes), **settings)
    assert results.finish_time_ps == train_ps(size_bytes, rates_bps, fixed_ps, wire)


@pytest.mark.parametrize("hops", range(2, 7))
def test_cut_through_costs_a_header_for_each_further_link(tmp_path, hops):
    fixed_ps = line(tmp_path / "line.toml", [100 * G] * hops, latency_ns=250)
    results = simulate(tmp_path / "line.toml", one_message(2, 1, 20 * 4096), cut_through=True)
    assert results.finish_time_ps == 20 * bits_ps(4178, 100 * G) + (hops - 1) * bits_ps(82, 100 * G) + fixed_ps


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize(("dst", "hops"), [(1, 2), (2, 4), (15, 6)])
def test_fat_tree_with_slow_cores(dst, hops, size_bytes):
    spec = "fat-tree:k=4,rate=400Gbps,spine_rate=200Gbps,core_rate=100Gbps,delay=100ns,spine_delay=500ns,core_delay=2us"
    spec += ",spines_per_pod=2,cores_per_plane=2,switch_latency=300ns"
    rates_bps, delays_ns = {
        2: ([400, 400], [100, 100]),
        4: ([400, 200, 200, 400], [100, 500, 500, 100]),
        6: ([400, 200, 100, 100, 200, 400], [100, 500, 2000, 2000, 500, 100]),
    }[hops]
    results = simulate(spec, one_message(16, dst, size_bytes))
    fixed_ps = (sum(delays_ns) + 300 * (hops - 1)) * NS
    assert results.finish_time_ps == train_ps(size_bytes, [rate * G for rate in rates_bps], fixed_ps)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_leaf_spine_with_fast_uplinks(size_bytes):
    spec = "leaf-spine:npus=8,hosts_per_leaf=4,spines=2,rate=100Gbps,uplink_rate=400Gbps,delay=200ns,uplink_delay=1us"
    results = simulate(spec, one_message(8, 7, size_bytes))
    assert results.finish_time_ps == train_ps(size_bytes, [100 * G, 400 * G, 400 * G, 100 * G], 2400 * NS)
