"""Marks, trims, NVLink beside shared buffers, and what is watched of queues and pauses."""

import dataclasses

import numpy as np
import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from nadi.pdes import LinkFault, RunError, Settings, SharedBuffer, build_world, run
from nadi.pdes.network.framing import domain_switches, is_in_domain
from nadi.pdes.nic import congestion
from nadi.pdes.outcomes.outcome import settled
from nadi.topologies import build
from nadi.topologies.graph import NVSWITCH
from tests.fabric import scenarios as sc
from tests.fabric.cases import Flows, Scenario, star
from tests.fabric.compare import by_hand, check, owners
from tests.failures.common import cable, faults_of
from tests.nonempty import nonempty
from tests.pdes.cases import Traces
from tests.pdes.naive import GaveUpError
from tests.running import simulate

CHOSEN = {"queue_samples": 16, "logged_pauses": 1000, "window_bytes": 1 << 20}


def incast(senders, size, **chosen):
    graph = build(f"switch:npus={senders + 1},rate=100Gbps,delay=1us")
    traces = Traces(graph.npus)
    for src in range(1, senders + 1):
        traces.message(src, 0, size)
    buffer = SharedBuffer(buffer_bytes=1_500_000, pfc_alpha=1.0)
    return graph, traces.program(), Settings(switch=buffer, **(CHOSEN | chosen))


@pytest.mark.parametrize(
    ("log", "values", "joined", "of_link"),
    [("queues", "bytes", np.maximum, "buffered_bytes"), ("marks", "packets", np.add, "marked_packets")],
    ids=["the deepest sample is the longest queue", "marks of all stretches"],
)
def test_samples_of_a_link_are_joined_to_what_it_counts(log, values, joined, of_link):
    graph, program, settings = incast(6, 400_000)
    results = run(build_world(graph, program, settings))
    found, samples = np.zeros(graph.links, np.int64), getattr(results, log)
    joined.at(found, samples["link"], samples[values])
    assert found.tolist() == results.links[of_link].tolist()
    assert found.max() > 0


def test_packets_are_marked_while_the_queue_is_above_its_threshold():
    """At 100 Gb/s from four times the threshold for 25 Gb/s on; stretches join as the run goes on, and so do marks."""
    graph, program, settings = incast(2, 2_000_000, window_bytes=1 << 22)
    certain = dataclasses.replace(settings.switch, ecn_kmax_bytes=settings.switch.ecn_kmin_bytes + 1)
    settings = dataclasses.replace(settings, switch=certain)
    results = run(build_world(graph, program, settings))
    port = int(np.argmax(results.links["marked_packets"]))
    waited, marked = ({}, {})
    for table, name, found in ((results.queues, "bytes", waited), (results.marks, "packets", marked)):
        own = table["link"] == port
        found.update(zip(table["time_ps"][own].tolist(), table[name][own].tolist(), strict=True))
    width_ps = min(np.diff(sorted(waited)))
    threshold = 4 * settings.switch.ecn_kmin_bytes
    above = {time for time in waited if max(waited[time], waited.get(time - width_ps, 0)) > threshold}
    assert set(marked) & set(waited) == above  # packets that no later one follows leave a queue that is not sampled
    assert 0 < len(above) < len(waited)


def test_without_ecn_nothing_is_marked():
    graph, program, settings = incast(6, 400_000)
    settings = dataclasses.replace(settings, switch=dataclasses.replace(settings.switch, ecn=False))
    results = run(build_world(graph, program, settings))
    assert results.queues["bytes"].any()
    assert not len(results.marks["packets"])


def test_stretches_widen_until_the_run_fits():
    """2 x 2 MB at 100 Gb/s take 330 us, so 16 stretches of 32 us; the queue grows until the first sender is done."""
    graph, program, settings = incast(2, 2_000_000, window_bytes=1 << 22)
    results = run(build_world(graph, program, settings))
    times = np.unique(results.queues["time_ps"])
    assert (times % 32_000_000 == 0).all()
    assert len(times) >= 8


def test_pauses_and_resumes_take_turns_and_last_as_long_as_the_links_say():
    graph, program, settings = incast(6, 400_000)
    results = run(build_world(graph, program, settings))
    log = results.pauses
    for link in nonempty(np.unique(log["link"])):
        own = log["link"] == link
        assert log["paused"][own].tolist() == [True, False] * (own.sum() // 2)
        since, until = log["time_ps"][own][::2], log["time_ps"][own][1::2]
        assert (until - since).sum() == results.links["paused_ps"][link]
    assert set(np.flatnonzero(results.links["paused_ps"])) == set(np.unique(log["link"]))


@pytest.mark.parametrize("lps", [2, 3])
def test_the_same_on_any_division(lps):
    graph, program, settings = incast(6, 300_000, logged_pauses=20)
    alone = run(build_world(graph, program, settings))
    divided = run(build_world(graph, program, settings, np.arange(graph.nodes) % lps))
    for table in ("queues", "marks", "pauses"):
        for name, values in nonempty(getattr(alone, table).items()):
            assert values.tolist() == getattr(divided, table)[name].tolist()
    assert len(alone.pauses["time_ps"]) == 20


FABRIC = "leaf-spine:npus=8,leaves=2,spines=1,hosts_per_leaf=4,rate=100Gbps,uplink_rate=200Gbps,delay=1us"


def ecn_run(folder, **network):
    """An all-to-all over uplinks that are too slow, with DCQCN."""
    nodes = [et.coll_node(1, "a", et.CollectiveCommType.ALL_TO_ALL, 4 << 20)]
    et.write_trace(folder / "trace.et", et.metadata(), nodes)
    sections = {
        "workload": {"traces": str(folder / "trace.et")},
        "topology": {"spec": FABRIC},
        "network": {"congestion_control": "dcqcn", **network},
    }
    return simulate(load_config(None, sections=sections)).results


def test_the_same_thresholds_by_rate_are_the_same_run(tmp_path):
    """The defaults at 25 Gb/s, 100 and 400 kB, are four times these at 100 Gb/s and eight times at 200 Gb/s."""
    by_rate = {"100Gbps": ["400kB", "1600kB", 0.2], "200Gbps": ["800kB", "3200kB", 0.2]}
    plain, other = ecn_run(tmp_path), ecn_run(tmp_path, ecn_kmin="1kB", ecn_kmax="2kB", ecn_pmax=1.0)
    found = ecn_run(tmp_path, ecn_kmin="1kB", ecn_kmax="2kB", ecn_pmax=1.0, ecn_by_rate=by_rate)
    assert found.digest == plain.digest != other.digest


def test_other_rates_keep_the_scaled_thresholds(tmp_path):
    plain = ecn_run(tmp_path)
    assert ecn_run(tmp_path, ecn_by_rate={"100.000001Gbps": ["1kB", "2kB", 1]}).digest == plain.digest
    uplinks = ecn_run(tmp_path, ecn_by_rate={"200Gbps": ["1kB", "2kB", 1]})
    assert uplinks.counters["marked_packets"] > plain.counters["marked_packets"]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"100Gbps": ["1kB", 2]}, "expected kmin, kmax and pmax"),
        ({"100Gbps": ["2kB", "1kB", 0.2]}, "kmin 2kB above kmax 1kB"),
        ({"100Gbps": ["1kB", "2kB", 1.5]}, "found pmax 1.5; expected a number from 0 to 1"),
        ({"fast": ["1kB", "2kB", 0.5]}, "'fast' is not a rate"),
        ("x", "ecn_by_rate"),
    ],
)
def test_wrong_thresholds(tmp_path, value, complaint):
    with pytest.raises(ValueError, match=complaint):
        ecn_run(tmp_path, ecn_by_rate=value)


def test_results_hold_the_thresholds_as_users_write_them():
    sections = {"workload": {"traces": "."}, "topology": {"spec": FABRIC}}
    given = {"100Gbps": ["1kB", "2kB", 0.5]}
    config = load_config(None, sections=sections | {"network": {"ecn_by_rate": given}})
    written = config.settled()
    assert written["network"]["ecn_by_rate"] == given
    assert load_config(None, sections=written).network == config.network


TRIMS_CHOSEN = {"mtu_bytes": 918, "seed": 1, "max_retries": 60, "window_bytes": 9000, "rto_ps": 30_000_000}
INCAST = Flows(tuple((src, 0, 20_000, 0) for src in range(1, 7)))
# room for one packet: of the three senders one is always too late, as its next window comes with that of the others
FOR_EVER = Scenario(
    star(4),
    Flows(tuple((src, 0, 80_000, 0) for src in range(1, 4))),
    {"pfc": False, "trimming": True, "pfc_alpha": 4.0, "buffer_bytes": 1298},
    {"mtu_bytes": 1000, "seed": 1, "window_bytes": 16_000, "rto_ps": 30_000_000, "max_resends": 300},
)


def trims_incast(selective, **chosen):
    """Six senders and room for two packets: all comes in the end, after many trims."""
    switch = {"pfc": False, "trimming": True, "pfc_alpha": 8.0, "buffer_bytes": 2000}
    return Scenario(star(7, delay=100_000), INCAST, switch, TRIMS_CHOSEN | {"selective_repeat": selective} | chosen)


@pytest.mark.parametrize("selective", [False, True])
def test_a_queue_pair_gives_up_after_exactly_as_many_trims_as_are_allowed(selective):
    found = check(*trims_incast(selective).build())
    pairs = [pair for npu in found.reference.npus for pair in npu.pairs.values()]
    most = max(max(pair.resends.values(), default=0) for pair in pairs)
    assert most > 5
    assert check(*trims_incast(selective, max_resends=most).build(), lps=3) is not None
    assert check(*trims_incast(selective, max_resends=most - 1).build()) is None


@pytest.mark.parametrize("lps", [1, 3])
def test_a_run_whose_trims_never_end_names_queue_pair_port_and_remedy(lps):
    graph, program, chosen = FOR_EVER.build()
    sim = build_world(graph, program, chosen, owners(graph, lps, 1))
    known = settled(sim)
    with pytest.raises(
        RunError,
        match=r"^npu [1-3] to npu 0: packet \d+ unacknowledged after it was trimmed and sent again 30[1-9] times "
        r"\(at \d+ ps\); the port s0 -> npu 0 has trimmed [\d,]+ packets; expected a larger buffer, ",
    ):
        run(sim)
    with pytest.raises(GaveUpError, match=r"npu [1-3] to npu 0"):
        by_hand(graph, program, chosen, known)


HOSTS = build("dgx-h100:npus=16")
FORWARDING = build("rail-fat-tree:npus=16,gpus_per_host=4,hosts_per_unit=2,rail_spines=true,spines=1,forwarding=true")
BUFFER = SharedBuffer(buffer_bytes=4_000_000, ecn_kmin_bytes=2000, ecn_kmax_bytes=4000, ecn_pmax=1.0)
DROPPING = SharedBuffer(buffer_bytes=60_000, pfc=False, ecn_kmin_bytes=2000, ecn_kmax_bytes=4000, ecn_pmax=1.0)


def nvlink_incast(graph, begin_us=(0,), **settings):
    """Results of seven messages to NPU 0 from its host, and as many from the next one, in each turn."""
    per_host = int(np.bincount(graph.host[: graph.npus])[0])
    src = [*range(1, per_host), *range(per_host, 2 * per_host - 1)] * len(begin_us)
    at = np.repeat(np.array(begin_us) * sc.US, len(src) // len(begin_us)).tolist()
    program = sc.program(graph.npus, sc.messages(src, 0, 400_000, at))
    return run(build_world(graph, program, Settings(**settings)))


def within_the_host(results):
    """Rows of the flows of NPU 0's host, in order."""
    flows = results.flows
    inside = HOSTS.host[flows["src"]] == HOSTS.host[flows["dst"]]
    columns = np.stack([flows[name][inside] for name in ("src", "start_ps", "finish_ps")])
    return columns[:, np.lexsort(columns)].tolist()


@pytest.mark.parametrize("control", congestion.names())
@pytest.mark.parametrize("switch", [BUFFER, DROPPING])
def test_what_stays_in_a_host_does_not_notice_the_fabric(control, switch):
    """Its messages take as long as without buffers and control, to the picosecond; others are marked or lost."""
    chosen = {} if switch.pfc else {"selective_repeat": True, "rto_ps": 500 * sc.US}
    plain = nvlink_incast(HOSTS)
    found = nvlink_incast(HOSTS, switch=switch, congestion_control=congestion.control(control), **chosen)
    assert within_the_host(found) == within_the_host(plain)
    inside = is_in_domain(HOSTS)
    links = found.links
    assert (links["marked_packets"] + links["dropped_packets"])[~inside].sum() > 0
    for column in ("marked_packets", "pause_frames", "paused_ps", "dropped_packets"):
        assert links[column][inside].sum() == 0
    assert found.links["max_queue_bytes"][inside].max() == plain.links["max_queue_bytes"][inside].max() > 0


def test_an_nvswitch_drops_nothing():
    found = nvlink_incast(HOSTS, queue_limit_bytes=40_000, rto_ps=500 * sc.US)
    assert within_the_host(found) == within_the_host(nvlink_incast(HOSTS))
    dropped = found.links["dropped_packets"]
    assert dropped[is_in_domain(HOSTS)].sum() == 0 < dropped.sum()


def test_nvswitches_that_forward_to_other_hosts_are_switches_of_the_fabric():
    assert not domain_switches(FORWARDING).any()
    found = nvlink_incast(FORWARDING, switch=BUFFER, congestion_control=congestion.control("dcqcn"))
    nvswitch = FORWARDING.node_kind[FORWARDING.link_src] == NVSWITCH
    assert found.links["marked_packets"][nvswitch].sum() > 0


def test_a_queue_pair_that_leaves_a_broken_nvlink_is_controlled():
    """The first turn goes over NVLink; then its cable breaks, the second goes through NICs and is notified."""
    nvswitch = HOSTS.npus
    fault = LinkFault(cable(HOSTS, 0, nvswitch), 100 * sc.US, down=True)
    chosen = {"switch": BUFFER, "congestion_control": congestion.control("dcqcn")}
    inside = {}
    for faults in ([], [fault]):
        found = nvlink_incast(HOSTS, (0, 400), faults=faults_of(HOSTS, faults), rto_ps=500 * sc.US, **chosen)
        inside[len(faults)] = found.counters["congestion_notifications"]
    assert inside[1] > 1.5 * inside[0] > 0
