"""The time of a message alone: against runs of single messages, and by hand."""

import numpy as np
import pytest

from nadi.pdes import Settings
from nadi.simulation.closed_forms import lone_message as flows
from nadi.topologies import build
from nadi.workload import pairs_program
from tests.scenarios.running import simulate

SIZES = (0, 1, 4096, 4097, 5 * 4096 + 100, 300 * 4096 + 17)
FABRICS = {
    "ring:npus=7,rate=100Gbps,delay=300ns": (1, 3),
    "leaf-spine:npus=8,hosts_per_leaf=4,spines=2,rate=100Gbps,uplink_rate=40Gbps,delay=1us": (1, 6),
    "fat-tree:k=4,rate=33Gbps,delay=700ns": (1, 2, 15),
}


def alone(graph, dst, size_bytes, **settings):
    destination = np.full(graph.npus, -1)
    destination[0] = dst
    return simulate(graph, pairs_program(destination, size_bytes), **settings).flows


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize(("spec", "dst"), [(spec, dst) for spec, all_dst in FABRICS.items() for dst in all_dst])
def test_single_messages_take_as_long_to_the_picosecond(spec, dst, size_bytes):
    graph = build(spec)
    found = alone(graph, dst, size_bytes)
    ideal = flows.ideal_ps(graph, Settings(), found)
    assert ideal.tolist() == (found["finish_ps"] - found["start_ps"]).tolist()
    assert flows.slowdown(ideal, found).tolist() == [1.0]


def test_unequal_links_and_other_packets(tmp_path):
    (tmp_path / "line.toml").write_text(
        'npus = 2\n[[switches]]\nname = "a"\nlatency = "250ns"\n[[switches]]\nname = "b"\nlatency = "10ns"\n'
        '[[links]]\nrate = "25Gbps"\ndelay = "100ns"\ncables = [["npu 0", "a"]]\n'
        '[[links]]\nrate = "300Gbps"\ndelay = "200ns"\ncables = [["a", "b"]]\n'
        '[[links]]\nrate = "7Gbps"\ndelay = "300ns"\ncables = [["b", "npu 1"]]\n'
    )
    graph = build(str(tmp_path / "line.toml"))
    for size_bytes in (1, 999, 1001, 54_321):
        chosen = {"mtu_bytes": 1000, "header_bytes": 48, "ack_bytes": 60}
        found = alone(graph, 1, size_bytes, **chosen)
        assert flows.ideal_ps(graph, Settings(**chosen), found)[0] == found["finish_ps"][0] - found["start_ps"][0]


def test_many_messages_at_once_are_as_if_one_by_one():
    graph = build("fat-tree:k=4")
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, 8, 200), rng.integers(8, 16, 200)
    table = {"src": src, "dst": dst, "bytes": rng.integers(0, 100_000, 200)}
    whole = flows.ideal_ps(graph, Settings(), table)
    single = [flows.ideal_ps(graph, Settings(), {k: v[i : i + 1] for k, v in table.items()})[0] for i in range(200)]
    assert whole.tolist() == single


def test_what_is_not_known_is_said(monkeypatch):
    graph = build("ring:npus=8")
    table = {"src": np.arange(4), "dst": np.full(4, 7), "bytes": np.full(4, 10)}
    assert (flows.ideal_ps(graph, Settings(cut_through=True), table) == flows.UNKNOWN).all()
    monkeypatch.setattr(flows, "MAX_HOPS", 3)
    assert (flows.ideal_ps(graph, Settings(), table) == flows.UNKNOWN).tolist() == [False, False, True, True]
    monkeypatch.setattr(flows, "MAX_PAIRS", 3)
    assert (flows.ideal_ps(graph, Settings(), table) == flows.UNKNOWN).all()
    times = {"start_ps": np.zeros(2), "finish_ps": np.full(2, 30)}
    assert np.isnan(flows.slowdown(np.array([flows.UNKNOWN, 10]), times)).tolist() == [True, False]
