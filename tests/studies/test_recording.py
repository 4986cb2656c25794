"""A recording is what the run does, and a projection follows from it by hand."""

import numpy as np
import pytest

import partition
import pdes
import topologies
from nadi.studies.benchmarks.instruments.recording import (
    Recording,
    WindowCost,
    busiest_ns,
    exchange,
    fit,
    projected_s,
    record_windows,
    replay,
)
from workload import collective_program, pairs_program, permutation

SETTINGS = pdes.Settings(record_nodes=False, record_flows=False)
LPS = 8


@pytest.fixture(scope="module", params=["fat tree", "servers"])
def problem(request):
    """Fabric, program, settings, owner."""
    if request.param == "fat tree":
        graph = topologies.build("fat-tree:k=4,rate=100Gbps,delay=1us")
        program = pairs_program(permutation(graph.npus, 1), 64 << 10)
    else:  # links inside LPs are shorter than windows
        graph = topologies.build("rail-optimised:npus=64,rate=400Gbps,delay=1us")
        program = collective_program("all-reduce", graph.npus, 1 << 20, "ring")
    return graph, program, SETTINGS, partition.partition(graph, LPS).owner


@pytest.fixture(scope="module")
def plain(problem):
    return pdes.run(pdes.build_world(*problem))


@pytest.fixture(scope="module")
def recording(problem):
    return record_windows(pdes.build_world(*problem), keep=range(LPS))


def by_hand(hops, pairs=(), crossed=()):
    """A recording of these packet-hops, windows x LPs."""
    hops = np.array(hops, np.int32)
    none, windows = np.zeros_like(hops), np.zeros(len(hops), np.int64)
    pairs, crossed = np.array(pairs, np.int64).reshape(-1, 2), np.array(crossed, np.int64)
    return Recording(hops, none, none, windows, windows, pairs, crossed)


def test_a_recorded_run_is_the_run(plain, recording):
    assert recording.results.digest == plain.digest
    assert recording.results.counters == plain.counters
    assert recording.results.finish_time_ps == plain.finish_time_ps


def test_sums_are_those_of_the_run(plain, recording):
    assert recording.hops.shape == (plain.counters["windows"], LPS)
    assert recording.hops.sum() == plain.counters["packet_hops"]
    assert (np.diff(recording.begin_ps) >= plain.settled["lookahead_ps"]).all()
    assert (recording.spent_ns > 0).any()


def test_what_is_sent_is_taken_in_the_window_after(recording):
    assert recording.sent.sum() > 0
    assert recording.sent[:-1].sum(axis=1).tolist() == recording.taken[1:].sum(axis=1).tolist()
    assert recording.taken[0].sum() == 0
    assert recording.sent[-1].sum() == 0


def test_crossings_are_what_links_between_lps_carried(problem, plain, recording):
    graph, *_, owner = problem
    cut = owner[graph.link_src] != owner[graph.link_dst]
    assert recording.sent.sum() == recording.crossed.sum() == plain.links["tx_packets"][cut].sum()
    assert set(map(tuple, recording.pairs.tolist())) == set(
        zip(owner[graph.link_src[cut]].tolist(), owner[graph.link_dst[cut]].tolist(), strict=True)
    )


@pytest.mark.parametrize("lp", [0, 3, LPS - 1])
def test_an_lp_alone_does_the_same(problem, recording, lp):
    spent_ns, sent_ns = replay(*problem, recording, lp)
    assert len(spent_ns) == len(sent_ns) == recording.windows
    assert (sent_ns <= spent_ns).all()


def test_an_lp_that_sends_to_other_nodes_first_does_the_same(problem, recording):
    """What it did is compared with the recording in every window; of its work some is before parcels are sent."""
    away = [lp for lp in range(LPS) if lp // 2 != 0]
    found = replay(*problem, recording, 0, away)
    assert 0 < found.sent_ns.sum() < found.spent_ns.sum()


def test_a_replay_that_differs_is_noticed(problem):
    other = record_windows(pdes.build_world(*problem), keep=[2])
    other.hops[5, 2] += 1
    with pytest.raises(pdes.RunError, match=r"^engine defect: LP 2 did \d+ packet-hops in window 5 of its replay, \d+"):
        replay(*problem, other, 2)


def test_a_recording_can_end_early(problem, recording):
    first = record_windows(pdes.build_world(*problem), most_windows=9)
    assert first.results is None
    assert first.hops.tolist() == recording.hops[:9].tolist()


def test_the_answer_by_hand():
    # 2 ranks of 2 LPs: windows of max(1 + 2, 3 + 4) and max(5 + 0, 0 + 1) hops
    recording = by_hand([[1, 2, 3, 4], [5, 0, 0, 1]])
    cost = WindowCost(window_ns=10.0, crossing_ns=0.0, hop_ns=100.0)
    assert busiest_ns(recording, cost, 2).tolist() == [20 + 700, 20 + 500]
    assert projected_s(recording, cost, 2, sync_ns=1000.0) == pytest.approx((720 + 520 + 2000) * 1e-9)
    assert projected_s(recording, cost, 4, sync_ns=np.array([1.0, 2.0])) == pytest.approx((410 + 510 + 3) * 1e-9)
    # 3 ranks have LP 0, LP 1, LPs 2 and 3, as pdes.build.layout.share deals them
    assert busiest_ns(recording, cost, 3).tolist() == [20 + 700, 10 + 500]
    with pytest.raises(ValueError, match=r"^5 ranks; expected at most 4, one for each LP$"):
        busiest_ns(recording, cost, 5)


def test_exchanges_by_hand():
    pairs = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (2, 0), (2, 1), (3, 0)]
    recording = by_hand([[0] * 4] * 2, pairs, [5, 2, 1, 2, 0, 2, 1, 6])
    recording.sent[:] = [1, 2, 3, 5], [7, 0, 0, 1]
    # on two nodes of two, 3 of the 10 packets of LPs 0 and 1 leave their node, and all 9 of LPs 2 and 3
    for nodes, links, others, packets, letters in (4, 3, 3, [5, 7], 3), (2, 3, 1, [8, 2.1], 2), (1, 0, 0, [0, 0], 0):
        found = exchange(recording, nodes, 4)
        assert (found.pairs, found.nodes, found.letters) == (links, others, letters)
        assert found.packets.tolist() == pytest.approx(packets)


def test_one_rank_takes_what_all_lps_take(recording):
    cost = WindowCost(300.0, 2.0, 45.0)
    assert projected_s(recording, cost, 1) == pytest.approx(cost.of(recording).sum() * 1e-9, rel=1e-12)


def test_more_ranks_take_less_and_never_less_than_the_slowest_lp(recording):
    cost = WindowCost(300.0, 2.0, 45.0)
    seconds = [projected_s(recording, cost, ranks) for ranks in (1, 2, 4, 8)]
    assert seconds == sorted(seconds, reverse=True)
    critical_s = cost.of(recording).max(axis=1).sum() * 1e-9
    assert seconds[-1] == pytest.approx(critical_s)
    serial_s = seconds[0]
    assert all(
        critical_s <= each * (1 + 1e-12) and serial_s / each <= ranks * (1 + 1e-12)
        for ranks, each in zip((1, 2, 4, 8), seconds, strict=True)
    )


def test_a_fit_finds_the_cost_that_was_put_in(recording):
    cost = WindowCost(350.0, 6.0, 47.0)
    replays = {lp: np.round(cost.of(recording)[:, lp]).astype(np.int64) for lp in (0, 3, 5)}
    found, error = fit(recording, replays)
    assert vars(found) == pytest.approx(vars(cost), rel=0.01)
    assert error < 0.001


def test_a_term_that_would_be_negative_is_left_out():
    recording = by_hand([[1], [2], [3], [4]])
    found, _ = fit(recording, {0: np.array([0, 10, 20, 30])})
    assert found.window_ns == 0
    assert found.hop_ns > 0
