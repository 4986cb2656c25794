"""Diagnoses: likelihoods against closed forms, what-ifs against a fabric's arithmetic, planted causes, and refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest

import nadi
from nadi.errors import ConfigError
from nadi.insight.benchmark_logs import SEND_RECEIVE, read_logs
from nadi.insight.lines_beside_rows import HostEvidence, NcclInfo, Nic
from nadi.studies.diagnosis import BandwidthGate, diagnosing, diagnosis_page, hypotheses, read
from nadi.studies.diagnosis.causes import CAUSES
from nadi.studies.diagnosis.evidence import EXCLUDED, REPORTED, factors, has_fast_nics
from nadi.studies.diagnosis.likelihood import (
    Noise,
    Rows,
    covariance,
    log_density,
    marginal,
    posterior,
    unknown_covariance,
)
from nadi.studies.diagnosis.places import NicsOfRow, rows_met
from nadi.studies.diagnosis.rows import TimedRow, place_of
from nadi.studies.diagnosis.simulating import (
    HEALTHY,
    PLACES,
    Cap,
    Simulator,
    Slow,
    TimedCollective,
    WhatIf,
    nic_links,
    nvlinks,
    slowed,
    switch_links,
)
from nadi.topologies import build, parse_pairs, parse_spec
from nadi.topologies.registry import spec_with_gpus
from nadi.workload.collectives.schedules import connections_of_pairs
from nadi.workload.collectives.schedules.sends import unpack
from tests.refusals import refused
from tests.studies.printed_logs import Times, today

RAILS = "dgx-h100-superpod"
PLANES = "rail-fat-tree:npus=32,accelerator=h100,ports=2,rate=200Gbps,hosts_per_unit=2,spines=4"
LEAVES = "rail-fat-tree:npus=32,accelerator=a100,rails=1,rate=200Gbps,hosts_per_unit=2,spines=8,uplink_rate=400Gbps"


@pytest.fixture(scope="module")
def rails():
    return Simulator(RAILS)


def rows(observed, test=None, octave=None, latency=None, run=None):
    n = len(observed)
    test = np.zeros(n, np.int64) if test is None else np.array(test)
    return Rows(
        test,
        test if run is None else np.array(run),
        np.arange(20.0, 20 + n) if octave is None else np.array(octave),
        np.zeros(n) if latency is None else np.array(latency),
        np.array(observed),
    )


def test_a_density_is_that_of_independent_values():
    values, sds = np.array([0.1, -0.3, 0.2]), np.array([0.1, 0.2, 0.4])
    by_hand = sum(-0.5 * (v / s) ** 2 - math.log(s * math.sqrt(2 * math.pi)) for v, s in zip(values, sds, strict=True))
    assert log_density(values, np.diag(sds**2)) == pytest.approx(by_hand)


def test_a_density_of_shared_errors_is_that_of_mean_and_differences():
    # x and y with a shared error t and own errors s: sum and difference have variances 2 s^2 + 4 t^2, 2 s^2
    shared, own = 0.3, 0.1
    errors = covariance(rows([0.0, 0.0]), Noise(shared, 0.0, own))
    x, y = 0.25, 0.05
    expected = -0.5 * ((x + y) ** 2 / (2 * own**2 + 4 * shared**2) + (x - y) ** 2 / (2 * own**2))
    expected -= math.log(2 * math.pi) + 0.5 * math.log(own**2 * (own**2 + 2 * shared**2))
    assert log_density(np.array([x, y]), errors) == pytest.approx(expected)


def test_covariances_have_the_errors_of_tests_and_latencies():
    own = rows([0.0] * 3, test=[0, 0, 1], octave=[20, 22, 20], latency=[0.2, 0.1, 0.0])
    expected = [[0.01 + 0.0025, 0.0, 0.0], [0.0, 0.01 + 0.0025, 0.0], [0.0, 0.0, 0.0125]]
    expected = np.array(expected) + 0.04
    expected[0, 1] += 0.0025
    expected[1, 0] += 0.0025
    # shared by all, by sizes near each other (0.3 squared, less by e at two octaves), and of each row
    factor = 1 + 0.09 * np.array([[1, 1 / math.e], [1 / math.e, 1]]) + 0.04 * np.eye(2)
    expected[:2, :2] += [[0.04, 0.02], [0.02, 0.01]] * factor
    assert covariance(own, Noise(0.2, 0.05, 0.1)) == pytest.approx(expected)
    # a repeated test has the errors of the prediction again, but not the noise of 2 %
    again = covariance(rows([0.0] * 2, octave=[20, 20], run=[0, 1]), Noise(0.0, 0.0, 0.1))
    assert again == pytest.approx(np.array([[0.01, 0.0096], [0.0096, 0.01]]))
    unknown = unknown_covariance(rows([0.0] * 3, test=[0, 0, 1], octave=[20, 23, 20]))
    assert unknown[0] == pytest.approx([0.49, 0.49 / math.e, 0.0])


def test_a_wrong_scale_is_no_evidence():
    noise, effect = Noise.of_class(0.052), np.log([1.0, 1.0, 1.3, 1.6, 1.6, 1.6])

    def odds(observed):
        own = rows(observed)
        errors = covariance(own, noise)
        return log_density(own.observed - effect, errors) - log_density(own.observed, errors)

    assert odds(np.full(6, math.log(1.05))) < -3
    assert odds(effect + math.log(1.05)) > 3


def test_severities_share_their_evidence():
    assert marginal([math.log(0.2), math.log(0.4)], [1, 1]) == pytest.approx(math.log(0.3))
    assert marginal([math.log(0.2), math.log(0.4)], [3, 1]) == pytest.approx(math.log(0.25))
    assert posterior([0.0, math.log(3)], [0.5, 0.5]) == pytest.approx([0.25, 0.75])
    assert posterior([-1000.0, -1000.0], [0.8, 0.2]) == pytest.approx([0.8, 0.2])


def test_places_are_links_of_the_fabric():
    graph = build(PLANES)
    counts = {name: int(links(graph, 0).sum()) for name, links in PLACES.items()}
    # 4 hosts of 8 GPUs, 2 units of 2 planes and 8 rails; both directions of each cable
    assert counts == {
        "one NIC": 2 * 2,
        "all NICs": 2 * 32 * 2,
        "a GPU's NVLinks": 2,
        "a host": 2 * 8 * 3,
        "a plane": 2 * 32,
        "an uplink": 2,
        "all uplinks": 2 * 2 * 2 * 8 * 4,
    }
    assert int((nic_links(graph) | nvlinks(graph) | switch_links(graph)).sum()) == graph.links
    slow = slowed(graph, Slow("one NIC", 0.25, 1000, npu=5))
    changed = np.flatnonzero(slow.link_rate_bps != graph.link_rate_bps)
    assert set(np.minimum(graph.link_src, graph.link_dst)[changed].tolist()) == {5}
    assert slow.link_rate_bps[changed] == pytest.approx(graph.link_rate_bps[changed] / 4)
    assert np.unique((slow.link_delay_ps - graph.link_delay_ps)[changed]).tolist() == [1000]
    plane = slowed(graph, Slow("a plane", 0.5)).link_rate_bps != graph.link_rate_bps
    assert len(np.unique(graph.link_dst[plane & (graph.link_src < graph.npus)])) == 2 * 8


def test_a_cluster_gets_the_number_of_gpus_of_a_log():
    found = [
        parse_spec(spec_with_gpus(spec, 16)) for spec in ("dgx-h100-superpod:gpus=64,rate=200Gbps", "dgx-h100:npus=8")
    ]
    assert found[0] == parse_spec("dgx-h100-superpod:gpus=16,rate=200Gbps")
    assert found[1] == parse_spec("dgx-h100:npus=16")
    assert parse_spec(spec_with_gpus("dgx-h100-superpod:gpus=64", 4, 2))["gpus_per_host"] == "2"


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.25])
def test_a_slow_nic_and_a_cap_of_pairs_hold_a_send_back(rails, share):
    place = TimedCollective(SEND_RECEIVE, 16, 1 << 30)
    healthy_us = rails.time_us(HEALTHY, place)
    for what_if in (
        WhatIf(slow=Slow("all NICs", share)),
        WhatIf(slow=Slow("one NIC", share)),
        WhatIf(cap=Cap(share, of_pair=True)),
    ):
        slow_us = rails.time_us(what_if, place)
        assert slow_us == pytest.approx(healthy_us / share, rel=0.15), what_if


def slowdown(simulator, what_if, place):
    return simulator.time_us(what_if, place) / simulator.time_us(HEALTHY, place)


def test_connections_between_hosts_are_those_of_the_steps(rails):
    for kind, gpus, expected in (("all-gather", 16, {(1, 2)}), ("all-to-all", 32, {(3, 1)})):
        place = TimedCollective(kind, gpus, 1 << 26)
        program, host = rails.program(HEALTHY, place), rails.fabric_of(HEALTHY, place).graph.host.astype(np.int64)
        schedules, index = program.schedules, int(program.node_schedule[0])
        counts = [own for own in connections_of_pairs(schedules, index, host) if own]
        # peers in other hosts, and connections to each: rings of 16 channels over 8 rails, sends over PXN
        assert {(len(own), *set(own)) for own in counts} == expected
        assert len(counts) == gpus
        lanes = unpack(schedules, index)
        far = [{step.send_peer for lane in own for step in lane if step.send_peer >= 0} for own in lanes[:gpus]]
        peers = [sum(host[peer] != host[me] for peer in own) for me, own in enumerate(far)]
        assert peers == [len(own) for own in counts]


def test_a_cap_per_connection_spares_what_has_more_connections(rails):
    # rings of 16 channels have two connections on each of 8 rails; sends to a peer have four
    ring, send = TimedCollective("all-gather", 16, 1 << 30), TimedCollective(SEND_RECEIVE, 16, 1 << 30)
    assert (rails.channels(ring), rails.channels(send)) == (16, 4)
    assert slowdown(rails, WhatIf(cap=Cap(0.5)), ring) < 1.1
    assert slowdown(rails, WhatIf(cap=Cap(0.2)), ring) == pytest.approx(1 / 0.4, rel=0.3)
    assert slowdown(rails, WhatIf(cap=Cap(0.2)), send) == pytest.approx(1 / 0.8, rel=0.15)
    assert slowdown(rails, WhatIf(slow=Slow("all NICs", 0.5)), ring) > 1.7


def test_a_cap_of_pairs_is_that_of_nics_on_two_hosts_only(rails):
    capped, slow = WhatIf(cap=Cap(0.3, of_pair=True)), WhatIf(slow=Slow("all NICs", 0.3))
    for kind in ("all-gather", "all-to-all", SEND_RECEIVE):
        two = TimedCollective(kind, 16, 1 << 26)
        assert slowdown(rails, capped, two) == pytest.approx(slowdown(rails, slow, two)), kind
    # over four hosts, an all-to-all sends to three others, which have 90 % together
    four = TimedCollective("all-to-all", 32, 1 << 26)
    assert slowdown(rails, capped, four) < 1.2
    assert slowdown(rails, slow, four) > 2.5


def test_one_rail_of_two_hosts_is_a_measurement(rails):
    place = TimedCollective(SEND_RECEIVE, 2, 1 << 30, hosts=2)
    assert rails.hosts(place) == 2
    assert rails.algorithm(HEALTHY, place) == "nccl"
    rate = place.size_bytes / rails.time_us(HEALTHY, place) * 1e6
    assert rate == pytest.approx(400e9 / 8, rel=0.05)  # of a NIC


@pytest.mark.parametrize(
    "what_if", [WhatIf(cap=Cap(0.1)), WhatIf(('network.mtu="256B"',)), WhatIf(slow=Slow("all NICs", 0.1))]
)
def test_one_host_does_not_feel_the_network(rails, what_if):
    place = TimedCollective("all-gather", 8, 1 << 24)
    assert rails.time_us(what_if, place) == rails.time_us(HEALTHY, place)


def test_a_setting_that_nccl_does_not_feel_costs_no_run(rails):
    place = TimedCollective("all-gather", 16, 1 << 24)
    assert rails.time_us(WhatIf(nccl=("pxn=false",)), place) == rails.time_us(HEALTHY, place)


def test_large_buffers_lie_on_the_line_of_smaller_ones(monkeypatch):
    place = TimedCollective("all-gather", 16, 1 << 31)
    whole_us = Simulator(RAILS).time_us(HEALTHY, place)
    monkeypatch.setattr("nadi.studies.diagnosis.simulating.MAX_FLOWS", 1 << 14)
    assert Simulator(RAILS).time_us(HEALTHY, place) == pytest.approx(whole_us, rel=0.02)


# where each cause shows: the cluster, and a measurement that it makes slower
SHOWN = {
    "ecmp-collisions": (LEAVES, TimedCollective("all-gather", 32, 1 << 26)),
    "slow-nic": (RAILS, TimedCollective("all-gather", 16, 1 << 26)),
    "unused-nics": (RAILS, TimedCollective("all-gather", 16, 1 << 26)),
    "unused-plane": (PLANES, TimedCollective("all-to-all", 16, 1 << 26)),
    "slow-plane": (PLANES, TimedCollective("all-to-all", 16, 1 << 26)),
    "nic-path": (RAILS, TimedCollective("all-gather", 16, 1 << 26)),
    "pxn-off": (LEAVES.replace("rails=1", "rails=8"), TimedCollective("all-to-all", 32, 1 << 20)),
    "nvls-off": (RAILS, TimedCollective("all-reduce", 8, 1 << 28)),
    "few-channels": (RAILS, TimedCollective("all-gather", 8, 1 << 26)),
    "gdr-off": (RAILS, TimedCollective("all-gather", 16, 1 << 26)),
    "slow-gpu": (RAILS, TimedCollective("all-gather", 8, 1 << 26)),
    "slow-host": (RAILS, TimedCollective("all-gather", 16, 1 << 26)),
    "slow-uplink": (LEAVES, TimedCollective("all-to-all", 32, 1 << 26)),
    "wrong-mtu": (RAILS, TimedCollective(SEND_RECEIVE, 16, 1 << 26)),
    "oversubscription": (LEAVES, TimedCollective("all-to-all", 32, 1 << 26)),
    "busy-neighbour": (LEAVES, TimedCollective("all-to-all", 32, 1 << 26)),
    "congestion-control": (LEAVES, TimedCollective("all-to-all", 32, 1 << 24)),
    "connection-cap": (RAILS, TimedCollective("all-gather", 16, 1 << 26)),
    "pair-cap": (RAILS, TimedCollective("all-to-all", 16, 1 << 26)),
}


def adaptive(tmp_path):
    """Write the cluster of LEAVES with adaptive routing, and return its path."""
    keys = "".join(
        f"{key} = {value if value.isdecimal() else repr(value)}\n"
        for key, value in parse_pairs("", LEAVES[14:]).items()
    )
    path = tmp_path / "leaves.toml"
    head = 'gpu = "a100"\ngpus_per_host = 8\ngpus = 32\n[fabric]\nname = "rail-fat-tree"\n'
    path.write_text(
        head + keys.replace("npus = 32\n", "") + '[network]\nload_balancing = "adaptive"\n', encoding="utf-8"
    )
    return str(path)


def test_every_cause_is_tried():
    assert set(SHOWN) == {cause.name for cause in CAUSES}


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_a_cause_makes_slower_what_it_should(tmp_path, cause):
    cluster, place = SHOWN[cause.name]
    if cluster == LEAVES:
        cluster = adaptive(tmp_path)
    simulator = Simulator(cluster)
    healthy_us = simulator.time_us(HEALTHY, place)
    times_us = [simulator.time_us(cause.what_if(severity), place) for severity in cause.severities]
    assert max(times_us) > 1.03 * healthy_us
    if cause.is_share:
        assert max(times_us) == times_us[-1]
    assert cause.title.format(severity=cause.severity_text(cause.severities[0]))


def planted(tmp_path, simulator, what_if, tests, seed=5):
    """Write a log of what nccl-tests would print with a change, with 2 % of noise."""
    rng, lines = np.random.default_rng(seed), []
    programs = {"all-reduce": "all_reduce", "all-gather": "all_gather", "all-to-all": "alltoall"}
    for kind, gpus in tests:
        times = []
        for size in (1 << 16, 1 << 20, 1 << 24, 1 << 28):
            time_us = simulator.time_us(what_if, TimedCollective(kind, gpus, size))
            times.append(Times(size, *(time_us * np.exp(rng.normal(0, 0.02, 2)))))
        lines += [f"$ {programs[kind]}_perf -b 64K", *today(times, kind, gpus, max(1, gpus // 8))]
    path = tmp_path / "planted.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


TESTS = (("all-reduce", 16), ("all-gather", 16), ("all-to-all", 16), ("all-reduce", 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what_if"),
    [
        ("healthy", HEALTHY),
        ("slow-gpu", WhatIf(slow=Slow("a GPU's NVLinks", 0.5, npu=11))),
        ("connection-cap", WhatIf(cap=Cap(0.2))),
        ("nvls-off", WhatIf(nccl=("nvls=false",))),
    ],
)
def test_a_planted_cause_is_found(tmp_path, monkeypatch, rails, name, what_if):
    chosen = {"slow-nic", "slow-gpu", "connection-cap", "nvls-off", "pxn-off"}
    monkeypatch.setattr(hypotheses, "CAUSES", [cause for cause in CAUSES if cause.name in chosen])
    found = diagnosing.diagnose(RAILS, read_logs([planted(tmp_path, rails, what_if, TESTS)]))
    assert found.hypotheses[0].name == name
    assert found.hypotheses[0].probability > 0.8
    document = found.document()
    assert document["verdict"] == name
    assert math.fsum(each["probability"] for each in document["hypotheses"]) == pytest.approx(1)
    assert all(row["is_healthy"] for row in document["rows"]) == (name == "healthy")


def test_nccl_and_hosts_say_what_is_on_and_off(tmp_path, rails):
    (log,) = read([one_row(tmp_path)])
    on, off = NcclInfo(nvls=True, gpu_direct=True), NcclInfo(nvls=False, settings={"NCCL_PXN_DISABLE": "1"})
    on, off = replace(log, nccl=on), replace(log, nccl=off)
    assert factors(rails, [on]) == {"nvls-off": EXCLUDED, "gdr-off": EXCLUDED}
    assert factors(rails, [on, off]) == {"nvls-off": REPORTED, "gdr-off": EXCLUDED, "pxn-off": REPORTED}
    near, far = (replace(log, evidence=HostEvidence(near_nics=near)) for near in (True, False))
    assert 0 < factors(rails, [near])["nic-path"] < 1
    assert factors(rails, [far]) == {"nic-path": REPORTED}
    # 10 of 50 GB/s without NCCL: its connections, and the way to the GPUs, are not the cause
    slow = factors(rails, [replace(log, evidence=HostEvidence(verbs_Bps=10e9))])
    assert set(slow) == {"connection-cap", "pair-cap", "gdr-off", "nic-path"}
    assert max(slow.values()) < 1
    assert factors(rails, [replace(on, evidence=HostEvidence(gpu_verbs_Bps=49e9))])["gdr-off"] == EXCLUDED


def test_perftest_clears_the_nics_that_it_used(tmp_path, rails):
    (log,) = read([one_row(tmp_path)])
    named = replace(log, nccl=NcclInfo(nics=(Nic("mlx5_0", 1, "RoCE"),)))
    for devices, rate, expected in (({"mlx5_0"}, 49e9, True), ({"mlx5_1"}, 49e9, False), ({"mlx5_0"}, 30e9, False)):
        evidence = HostEvidence(verbs_Bps=rate, devices=frozenset(devices))
        assert has_fast_nics(rails, replace(named, evidence=evidence)) is expected
    assert not has_fast_nics(rails, replace(log, evidence=HostEvidence(verbs_Bps=49e9, devices=frozenset({"mlx5_0"}))))


def members(hosts, devices=range(8)):
    return tuple((f"host-{host}", device) for host in hosts for device in devices)


def test_rows_meet_a_cause_where_their_test_ran(tmp_path):
    (log,) = read([one_row(tmp_path)])
    both = replace(log, members=members([0, 1]))
    alone = replace(log, members=members([1]), gpus=8, hosts=1)
    shift = replace(both, collective=SEND_RECEIVE)
    rail = replace(log, members=members([0, 1], [3]), gpus=2)
    tests = [both, alone, shift, rail]

    def met(what, fast=(False,) * 4, *, relays=False):
        found = rows_met(what, tests, [NicsOfRow(are_fast=each, relays=relays) for each in fast])
        return {tuple(each.mask.tolist()): (each.name, each.weight) for each in found}

    assert met("a host") == {(1, 0, 1, 1): ("host-0", 1), (1, 1, 1, 1): ("host-1", 1)}
    # a shift leaves a host at its first and last device; host-1 alone uses its devices too, all the same
    assert met("one NIC") == {
        (1, 0, 1, 0): ("", 2),
        (1, 0, 0, 1): ("host-0 device 3", 1),
        (1, 0, 0, 0): ("", 5),
        (1, 1, 1, 0): ("", 2),
        (1, 1, 0, 1): ("host-1 device 3", 1),
        (1, 1, 0, 0): ("", 5),
    }
    # with PXN, messages to the first device leave by that of their own host
    assert met("one NIC", relays=True)[1, 0, 1, 0] == ("host-0 device 0", 1)
    assert met("one NIC", (True, True, True, False)) == {(0, 0, 0, 1): ("", 2)}
    without = rows_met("a host", [replace(each, members=()) for each in tests], [NicsOfRow()] * 4)
    assert [each.mask.tolist() for each in without] == [[1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 0, 1], [1, 0, 0, 0]]


def test_variables_of_a_log_apply_to_its_prediction(tmp_path, rails):
    (log,) = read([one_row(tmp_path)])

    def chosen(**settings):
        own = replace(log, nccl=NcclInfo(settings={f"NCCL_{name}": value for name, value in settings.items()}))
        return rails.variant(HEALTHY, place_of(rails, own, 1 << 28))

    assert chosen() == "nvls-tree simple, 16 channels, h100"
    assert chosen(ALGO="Ring").startswith("ring simple")
    assert chosen(ALGO="allreduce:tree", PROTO="LL128").startswith("tree ll128")
    assert chosen(NVLS_ENABLE="0", ALGO="Ring,Tree").startswith(("tree", "ring"))  # lists are left to NCCL
    assert chosen(ALGO="Ring", MAX_NCHANNELS="4") == "ring simple, 4 channels, h100"
    assert chosen(ALGO="Ring", MIN_CTAS="32") == "ring simple, 32 channels, h100"
    assert chosen(ALGO="Ring", MIN_NCHANNELS="64") == "ring simple, 32 channels, h100"  # as many as Nadi models
    assert chosen(ALGO="Ring", MIN_CTAS="2") == "ring simple, 16 channels, h100"


def test_a_page_has_a_chart_of_each_collective(tmp_path):
    (log,) = read([one_row(tmp_path)])
    found = [TimedRow(log, log.rows[0], 45.0, 0.05)]
    best = hypotheses.Hypothesis("slow-nic", "one NIC at 50%", 0.9, 0.5, look="ibstat", alike=("nic-path",))
    page = diagnosis_page(diagnosing.Diagnosis(RAILS, found, [best], ["slow-plane"], None, [], [log]))
    assert [section.id for section in page.sections] == ["causes", "all-reduce", "rows"]
    assert page.lead.startswith("Not healthy: one NIC at 50% (90%); 1 of 1 rows are slower")
    figure = page.sections[1].parts[0].figure
    measured = next(each for each in figure.data if str(each.name).endswith("measured"))
    assert measured.y[0] == pytest.approx((1 << 20) / 90.0 / 1e3 * 15 / 8)
    html = page.html()
    assert "do not separate slow-nic from nic-path" in html
    assert "slow-plane" in html


def one_row(tmp_path, name="all_reduce.log", gpus=16, hosts=2):
    path = tmp_path / name
    path.write_text("\n".join(today([Times(1 << 20, 90.0, 91.0)], "all-reduce", gpus, hosts)), encoding="utf-8")
    return path


def test_logs_that_do_not_suit(tmp_path):
    alone = one_row(tmp_path, gpus=16, hosts=1)
    assert "16 GPUs of 1 host; expected 2, as the cluster has them" in refused(
        ConfigError, nadi.diagnose, RAILS, [alone]
    )
    (log,) = read([one_row(tmp_path)])
    for changed, text in (
        (
            replace(log, gpus=0, hosts=None),
            "no number of GPUs; expected lines '# Rank 0 ...' above the rows, or --gpus",
        ),
        (replace(log, gpus=1, hosts=1), "1 GPU, which communicates with nobody; expected 2 or more"),
        (replace(log, collective="all-to-all-v"), "all-to-all-v; expected sizes by pair, which the log does not have"),
    ):
        assert text in refused(ConfigError, diagnosing.diagnose, RAILS, [changed])


def test_gates(tmp_path):
    assert BandwidthGate.parse("90%").share == 0.9
    assert BandwidthGate.parse("350GB/s").bandwidth_Bps == 350e9
    for text in ("90", "0%", "300%", "GB/s", "350 Gbps", "-1%"):
        assert "as 90% or 350GB/s" in refused(ConfigError, BandwidthGate.parse, text)
    (log,) = read([one_row(tmp_path)])
    row = TimedRow(log, log.rows[0], 45.0, 0.05)  # half of the expected bandwidth
    diagnosis = diagnosing.Diagnosis(RAILS, [row], [], [], None, [], [log])
    assert BandwidthGate.parse("45%").failure(diagnosis) == ""
    assert "50.0% of the expected" in BandwidthGate.parse("55%").failure(diagnosis)
    assert "expected at least 25GB/s" in BandwidthGate.parse("25GB/s").failure(diagnosis)
    assert BandwidthGate.parse("21GB/s").failure(diagnosis) == ""
