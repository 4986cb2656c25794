"""Findings from tables made by hand; the time of a message alone; percentiles over several runs."""

import json
import re
import statistics

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.insight import network
from nadi.insight.metrics import confidence_interval
from nadi.pdes import Settings
from nadi.simulation.closed_forms import lone_message as flows
from nadi.topologies import build
from nadi.workload import pairs_program
from tests.cli.conftest import nadi, write_run  # noqa: F401 - fixtures
from tests.headings import unexplained
from tests.nonempty import nonempty
from tests.scenarios.running import simulate

US = 10**6
ENDS = [("npu 0", "leaf 0"), ("npu 1", "leaf 0"), ("leaf 0", "spine 0"), ("spine 0", "leaf 1"), ("leaf 1", "npu 2")]
IN0, IN1, UP, DOWN, OUT = range(5)


@pytest.fixture
def links():
    return {
        "src": [src for src, _ in ENDS],
        "dst": [dst for _, dst in ENDS],
        "name": [f"{src} → {dst}" for src, dst in ENDS],
        "rate_bps": np.full(5, 10**11),
        "delay_ps": np.full(5, US),
        "utilisation": np.array([0.1, 0.2, 0.9, 0.0, 0.5]),
        "marked_packets": np.array([0, 0, 7, 9, 0]),
        "buffered_bytes": np.array([0, 0, 100, 100, 900]),
    }


def log(*events):
    """Columns of pauses.parquet: (µs, link, 1 paused or 0) of class 0."""
    time_us, link, paused = np.array(events).T
    zeros = np.zeros(len(link), np.int64)
    return {"time_ps": time_us * US, "link": link, "data_class": zeros, "paused": paused == 1}


def test_links_with_most(links):
    assert [row["name"] for row in network.top_links(links, "utilisation", 2)] == ["leaf 0 → spine 0", "leaf 1 → npu 2"]
    assert [(row["link"], row["marked_packets"]) for row in network.top_links(links, "marked_packets", 9)] == [
        (3, 9),
        (2, 7),
    ]
    assert network.top_links(links, "paused_ps", 3) == []
    assert network.tiers(links) == ["npu → leaf"] * 2 + ["leaf → spine", "spine → leaf", "leaf → npu"]


def test_completion_times_by_decade():
    size = np.array([0, 5, 9, *[1000] * 100])
    time_ps = np.array([1, 2, 3, *range(1, 101)]) * US
    flows = {"bytes": size, "start_ps": np.full(103, 7), "finish_ps": time_ps + 7, "slowdown": time_ps / US}
    every, small, large = network.completion(flows)
    assert (every["from_bytes"], small["from_bytes"], large["from_bytes"]) == (None, 1, 1000)
    assert (every["messages"], small["messages"], large["messages"]) == (103, 3, 100)
    none = {"p95": None, "p99": None, "p99.9": None}  # too few messages
    assert small["time_ps"] == {"p50": 2 * US, **none, "p100": 3 * US}
    assert large["time_ps"] == {"p50": 50 * US, "p95": 95 * US, "p99": 99 * US, "p99.9": None, "p100": 100 * US}
    assert large["slowdown"]["p99"] == 99.0
    unknown = {**flows, "slowdown": np.full(103, np.nan)}
    assert all(row["slowdown"] is None for row in nonempty(network.completion(unknown)))
    assert network.completion({name: column[:0] for name, column in flows.items()}) == []


def test_pauses_from_their_log():
    found = network.find_pauses(log((5, UP, 1), (1, IN0, 1), (3, IN0, 0), (4, IN0, 1), (2, IN1, 0)), 9 * US)
    assert found.link.tolist() == [IN0, IN0, UP]
    assert (found.start_ps // US).tolist() == [1, 4, 5]
    assert (found.end_ps // US).tolist() == [3, 9, 9]


def test_classes_are_paused_apart():
    two = log((1, UP, 1), (2, UP, 1), (3, UP, 0), (4, UP, 0))
    two["data_class"] = np.array([0, 1, 0, 1])
    found = network.find_pauses(two, 9 * US)
    assert (found.end_ps // US).tolist() == [3, 4]


# leaf 1 pauses DOWN, so spine 0 pauses UP, so leaf 0 pauses IN0 and, later, IN1; then all again, from spine 0
STORY = (
    *((10, DOWN, 1), (12, UP, 1), (14, IN0, 1), (15, IN1, 1)),
    *((20, DOWN, 0), (22, UP, 0), (24, IN0, 0), (25, IN1, 0)),
    *((40, UP, 1), (42, IN0, 1), (50, UP, 0), (52, IN0, 0)),
)


def test_the_tree_of_a_spread(links):
    pauses = network.find_pauses(log(*STORY), 99 * US)
    cause = network.causes(pauses, links)
    assert pauses.link.tolist() == [DOWN, UP, IN0, IN1, UP, IN0]
    assert cause.tolist() == [-1, 0, 1, 1, -1, 4]
    first, second = network.spread(pauses, cause, links)
    assert (first.name, first.size(), first.whole_ps()) == ("leaf 1", 4, 40 * US)
    assert (second.name, second.size(), second.whole_ps()) == ("spine 0", 2, 20 * US)
    tree = first.as_dict()
    assert tree["switch"] == "leaf 1"
    (down,) = tree["spread"]
    (up,) = down["spread"]
    assert (down["link"], up["link"]) == ("spine 0 → leaf 1", "leaf 0 → spine 0")
    assert [branch["link"] for branch in up["spread"]] == ["npu 0 → leaf 0", "npu 1 → leaf 0"]
    assert up["first_ps"] == 12 * US
    assert network.root_links([first], links).tolist() == [OUT]
    assert network.root_links([second], links).tolist() == [DOWN]


def test_a_cause_was_in_force_when_the_pause_was_asked_for(links):
    # asked for a link's delay (1 µs) before: UP was paused from 10 to 20
    for in0_us, cause in ((10, -1), (11, 0), (20, 0), (21, -1)):
        pauses = network.find_pauses(log((10, UP, 1), (20, UP, 0), (in0_us, IN0, 1)), 99 * US)
        assert network.causes(pauses, links)[pauses.link == IN0].tolist() == [cause]


def test_the_longest_pause_is_taken_for_the_cause(links):
    links["src"][OUT] = "leaf 0"
    pauses = network.find_pauses(log((5, OUT, 1), (3, UP, 1), (9, IN0, 1)), 99 * US)
    assert network.causes(pauses, links)[2] == pauses.link.tolist().index(UP)


def test_repeated_pauses_are_one_branch(links):
    again = [
        (at + 100 * i, link, on)
        for i in range(3)
        for at, link, on in ((10, UP, 1), (12, IN0, 1), (20, UP, 0), (22, IN0, 0))
    ]
    pauses = network.find_pauses(log(*again), 999 * US)
    (root,) = network.spread(pauses, network.causes(pauses, links), links)
    (up,) = root.in_order()
    assert (up.pauses, up.paused_ps, up.first_ps) == (3, 30 * US, 10 * US)
    assert (root.size(), root.whole_ps()) == (2, 60 * US)


def test_victims_cross_a_paused_link_and_no_congested_one():
    graph = build("leaf-spine:npus=8,hosts_per_leaf=2,spines=1")
    link = {(int(graph.link_src[i]), int(graph.link_dst[i])): i for i in range(graph.links)}
    leaf = [int(graph.link_dst[link_of]) for link_of in (graph.out_links(npu)[0] for npu in range(8))]
    spine = int(next(iter(set(graph.link_dst[graph.out_links(leaf[0])]) - {0, 1})))
    up, congested = link[leaf[2], spine], link[spine, leaf[0]]
    pauses = network.find_pauses(log((10, up, 1), (20, up, 0)), 99 * US)
    flows = {
        "src": np.array([2, 3, 3, 3, 4, 3]),
        "dst": np.array([0, 5, 5, 2, 5, 7]),
        "start_ps": np.array([0, 0, 20, 0, 0, 15]) * US,
        "finish_ps": np.array([50, 50, 50, 50, 50, 16]) * US,
        "slowdown": np.array([9.0, 3.0, 3.0, 3.0, 3.0, 4.0]),
    }
    found = network.victims(graph, flows, pauses, np.array([congested]))
    assert [(v.row, v.paused_ps, v.link, v.is_sure) for v in found] == [(5, US, up, True), (1, 10 * US, up, True)]


def test_of_several_equal_paths_it_is_not_sure_which():
    graph = build("leaf-spine:npus=8,hosts_per_leaf=2,spines=2")
    path = network.possible_links(graph, 0, 7)
    assert sorted(path.values()) == [False] * 4 + [True] * 2
    maybe = next(link for link, sure in path.items() if not sure)
    flows = {"src": np.array([0]), "dst": np.array([7]), "start_ps": np.array([0]), "finish_ps": np.array([50 * US])}
    (found,) = network.victims(graph, flows, network.find_pauses(log((10, maybe, 1)), 99 * US), np.zeros(0, np.int64))
    assert not found.is_sure
    assert np.isnan(found.slowdown)


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


RATES = {"a": [1.0, 3.0, 2.0], "b": [5.0]}


@pytest.fixture
def folders(nadi, write_run, tmp_path):  # noqa: F811
    """Runs of two groups: 100 messages of 2 kB slowed down by a rate, and one of 50 kB whose slow-down is not known."""
    whole = tmp_path / "run"
    nodes = [[et.send_node(1, "s", 0, 1, 2000)], [et.recv_node(1, "r", 0, 1, 2000)]]
    assert nadi("run", write_run(nodes, "", 'spec = "switch:npus=2"'), "--out", whole, "-q").code == 0
    summary = json.loads((whole / "summary.json").read_text())
    made = []
    for group, rates in RATES.items():
        summary["config"]["network"]["congestion_control"] = group
        for number, rate in enumerate(rates):
            folder = tmp_path / f"{group}{number}"
            folder.mkdir()
            (folder / "summary.json").write_text(json.dumps(summary))
            slowdown = pa.array([*(rate * np.arange(1, 101)), None], pa.float64())
            pq.write_table(pa.table({"bytes": [2000] * 100 + [50_000], "slowdown": slowdown}), folder / "flows.parquet")
            made.append(folder)
    return made


def test_means_and_intervals_are_those_of_the_runs(nadi, folders):  # noqa: F811
    outcome = nadi("net", "slowdown", *folders, "--by", "network.congestion_control", "--json")
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)
    assert [(row["group"], row["from_bytes"]) for row in rows] == [("a", None), ("a", 1000), ("b", None), ("b", 1000)]
    several, single = rows[1], rows[3]
    assert (several["runs"], several["messages"]) == (3, 300)
    assert several["slowdown"] == {"p50": 100.0, "p95": 190.0, "p99": 198.0, "p99.9": None}  # 100 messages in each run
    of_runs = [50 * rate for rate in RATES["a"]]
    half = 4.303 * statistics.stdev(of_runs) / 3**0.5
    assert half > 100
    assert several["interval"]["p50"] == pytest.approx([1, 100 + half])
    assert several["interval"]["p99.9"] is None
    assert single["slowdown"]["p50"] == 250.0
    assert single["interval"] == dict.fromkeys(single["slowdown"])


def test_all_runs_are_one_group_without_a_key(nadi, folders, tmp_path):  # noqa: F811
    outcome = nadi("net", "slowdown", *folders, "-o", tmp_path / "page.html")
    assert outcome.code == 0
    assert re.search(r"137\.50 \([0-9.]+ to [0-9,.]+\)", outcome.out)
    assert "too few messages in every run; needed are 1 / (1 - p): p95 20, p99 100, p99.9 1,000" in outcome.out
    assert unexplained((tmp_path / "page.html").read_text()) == []
    assert "slow-down, p99" in (tmp_path / "page.html").read_text()


def test_other_settings_than_seeds_within_a_group_are_named(nadi, folders):  # noqa: F811
    """The means over both controls say nothing about chance; with a key for each, the groups differ in nothing else."""
    mixed = nadi("net", "slowdown", *folders)
    assert "runs of one group differ in network.congestion_control, not only in seeds; --by KEY" in mixed.err
    assert nadi("net", "slowdown", *folders, "--by", "network.congestion_control").err == ""


def test_intervals_end_at_the_minimum():
    assert confidence_interval([1.0], 1) is None
    assert confidence_interval([1.0, 1.0, 1.0], 1) == (1.0, 1.0)
    half = 4.303 * statistics.stdev([1, 2, 3]) / 3**0.5
    assert confidence_interval([1, 2, 3], 1) == pytest.approx((1, 2 + half))
    assert confidence_interval([11, 12, 13], 1) == pytest.approx((12 - half, 12 + half))


def test_intervals_cover_the_mean_as_often_as_they_say():
    """Skewed slow-downs near 1, of which a symmetric interval would often begin below 1."""
    rng = np.random.default_rng(5)
    samples = 1 + rng.gamma(4.0, 0.05, size=(4000, 5))
    covers = [low <= 1.2 <= high for low, high in (confidence_interval(own, 1) for own in samples)]
    assert 0.92 < np.mean(covers) < 0.97


def test_a_run_without_the_key_or_messages_is_refused(nadi, folders):  # noqa: F811
    outcome = nadi("net", "slowdown", *folders, "--by", "network.colour")
    assert outcome.code == 2
    assert f"--by network.colour: {folders[0]} has no such key" in outcome.err
    (folders[1] / "flows.parquet").unlink()
    outcome = nadi("net", "slowdown", *folders)
    assert outcome.code == 2
    assert f"{folders[1]}: no flows.parquet" in outcome.err
