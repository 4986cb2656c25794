"""One answer: the same for threads, processes and MPI ranks, any number of them, any partition, compiled or not."""

import itertools
import json
import os
from dataclasses import replace

import numpy as np
import pytest

from nadi import partition
from nadi.pdes import build_world, run
from tests import samples
from tests.needs import SHARED
from tests.nonempty import nonempty
from tests.parallel import matrix
from tests.parallel.fingerprint import differing, fingerprint
from tests.parallel.matrix import CASES, case, in_processes, in_threads, owner_of, packed, serial, wanted
from tests.samples import pairwise

TINY = [name for name in CASES if name != "symbolic"]
METHODS = ("metis", "by-pod", "blocks", "scatter")
WAYS = [
    (name, method, lps, run_in, workers)
    for name, method, lps, run_in, workers in itertools.product(
        CASES, METHODS, (1, 2, 3, 6), (in_threads, in_processes), (1, 2, 3, 4)
    )
    if workers <= lps and (run_in is in_threads or workers > 1)
]
"""Case, method that divides the fabric, number of LPs, what runs them, number of workers."""


@pytest.fixture
def name(request):
    """Name of a case; skips where the case needs data that is not there."""
    if request.param == "symbolic":
        request.getfixturevalue("shared_data")
    return request.param


def same(results, name):
    """Nothing differs from a run of one LP but how many windows it took."""
    return differing(fingerprint(results), wanted(name)) == []


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(("name", "method", "lps", "run_in", "workers"), pairwise(WAYS), indirect=["name"])
def test_threads_and_processes_of_any_partition(name, method, lps, run_in, workers):
    owner = owner_of(name, method, lps)
    if owner is None:
        assert method == "by-pod"
        assert len(set(case(name).graph.pod.tolist())) == 1
        return
    assert same(run_in(name, owner, workers), name)


@pytest.mark.parametrize(
    ("name", "lps", "kind"), pairwise(itertools.product(CASES, (2, 3), ("measured", "absurd"))), indirect=["name"]
)
def test_weights(name, lps, kind):
    graph = case(name).graph
    if kind == "measured":
        weights = partition.from_links(graph, serial(name).links["tx_packets"])
    else:
        random = np.random.default_rng(lps)
        weights = partition.TrafficWeights(random.integers(0, 1000, graph.nodes), random.integers(0, 1000, graph.links))
    owner = partition.partition(graph, lps, weights=weights, keep_hosts=False).owner
    assert same(in_threads(name, owner, 2), name)


OWNERS = [(name, label) for name in TINY for label in case(name).owners]


@pytest.mark.parametrize(("name", "label"), OWNERS)
def test_owners_that_nobody_would_choose(name, label):
    """An LP of core switches only, one with a single NPU, each node alone."""
    owner = case(name).owners[label]
    for workers in (1, 2):
        assert same(in_threads(name, owner, workers), name)
    assert same(in_processes(name, owner, 2), name)


@pytest.mark.parametrize("name", TINY)
def test_every_node_an_lp_of_its_own(name):
    assert same(in_threads(name, np.arange(case(name).graph.nodes), 2), name)


@pytest.mark.parametrize("name", ["lossy", "torus", "rails"])
def test_each_node_against_all_others(name):
    """Each node in turn is an LP of its own, and all others another."""
    nodes = np.arange(case(name).graph.nodes)
    for alone in nonempty(nodes):
        assert same(in_threads(name, packed(nodes == alone), 1), name)


def test_the_cases_are_what_they_say():
    counters = serial("lossy").counters
    assert min(counters[name] for name in ("dropped_packets", "timeouts", "retransmitted_packets")) > 0
    counters = serial("cut_through").counters
    assert min(counters[name] for name in ("dropped_packets", "timeouts", "retransmitted_packets")) > 0
    assert len(case("torus").graph.routing.sizes) == 3
    settled = serial("no_delay").settled
    assert settled["cell_ps"] < 10_000
    arrivals = np.bincount(serial("ties").flows["start_ps"])
    assert arrivals.max() >= 5
    for name in ("messages", "permutation"):
        rows = np.diff(serial(name).npu_node_ptr)
        assert (rows == 0).sum() >= 3
    owner = case("cut_through").owners["cores alone, an NPU alone"]
    npus_of = np.bincount(owner[: case("cut_through").graph.npus], minlength=owner.max() + 1).tolist()
    assert {0, 1} <= set(npus_of)


RANKS = {
    1: ["metis/1/1/shared", "metis/4/1/shared", "metis/1/1/sent"],
    2: [
        *("metis/2/1/shared", "metis/2/1/sent", "blocks/4/1/shared", "scatter/6/1/sent"),
        *("metis/4/2/shared", "metis/4/2/sent", "own/2/1/shared", "own/2/1/sent", "metis/2/1/python"),
    ],
    3: ["metis/3/1/shared", "metis/3/1/sent", "scatter/6/1/shared", "own/3/1/sent", "scatter/6/1/pairs"],
    4: ["metis/4/1/shared", "own/4/1/shared", "scatter/8/1/pairs"],
    # three teams: each rank of a pair answers for one other
    5: ["scatter/5/1/pairs", "metis/5/1/pairs-python"],
}
NUMBERS = [pytest.param(ranks, marks=[pytest.mark.full] * (ranks > 2)) for ranks in RANKS]
"""Numbers of ranks; more than cores take long."""
SNAPSHOT = (
    "lossy",
    "sprayed",
    "credited",
    "roce",
    "credits_of_lanes",
    "nccl",
    "ends",
    "in_network",
    "detoured",
    "listed",
)
"""Cases that stop at cuts and continue on two ranks."""
RANDOM_RUNS = {1: 0, 2: 24, 3: 20, 4: 10, 5: 6}


def ways_of_ranks(number, ranks):
    """Return the ways in which a case runs on MPI ranks: every third one of those that any fabric can take, or one.

    Args:
        number: Number of the case.
        ranks: Number of MPI ranks.
    """
    own = [way for way in RANKS[ranks] if way.startswith("own/")]
    others = [way for way in RANKS[ranks] if way not in own]
    step = min(3, len(others))  # so that no case is without a way
    return RANKS[ranks] if os.environ.get(samples.FULL) else own + others[number % step :: step]


@pytest.fixture(scope="module")
def on_ranks(python, tmp_path_factory):
    """What so many MPI ranks brought: one start of MPI for all cases.

    All tests that ask for it have the mark `alone`, so that one worker does them, one after another.
    """
    brought = {}

    def run_on(ranks):
        if ranks not in brought:
            names = [*TINY, "symbolic"] if ranks == 2 and (SHARED / "data").is_dir() else TINY
            ways_of = {name: ways_of_ranks(number, ranks) for number, name in enumerate(names)}
            folder = tmp_path_factory.mktemp("ranks")
            arguments = json.dumps(ways_of), RANDOM_RUNS[ranks], folder, *(SNAPSHOT if ranks == 2 else ())
            done = python(ranks, "-m", "tests.parallel.on_ranks", *arguments)
            assert done.returncode == 0, done.stderr
            brought[ranks] = json.loads(done.stdout)
        return brought[ranks]

    return run_on


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("ranks", NUMBERS)
def test_ranks(on_ranks, ranks):
    found = on_ranks(ranks)["cases"]
    assert set(found) >= set(TINY)
    assert {way for name in found for way in found[name]} >= {way for way in RANKS[ranks] if not way.startswith("own/")}
    wrong = {
        f"{name} {way}": differing(result["is"], wanted(name))
        for name, ways in found.items()
        for way, result in ways.items()
        if result["is"] != wanted(name)
    }
    assert wrong == {}


@pytest.mark.alone
@pytest.mark.parametrize("ranks", NUMBERS)
def test_ranks_share_memory_or_send(on_ranks, ranks):
    for ways in nonempty(on_ranks(ranks)["cases"].values()):
        for way, result in nonempty(ways.items()):
            expected = {"shared": 1, "sent": ranks, "python": ranks, "pairs": (ranks + 1) // 2, "pairs-python": 3}
            assert result["how"]["teams"] == expected[way.rpartition("/")[2]]


@pytest.mark.alone
def test_teams_agree_only_where_batches_do_not_say_when_the_next_window_begins(on_ranks):
    """In compiled code and, where that cannot call MPI, in Python; both ways have the same answers (above)."""
    found = on_ranks(2)["cases"]
    hows = {name: ways["metis/2/1/sent"]["how"] for name, ways in found.items() if "metis/2/1/sent" in ways}
    assert all(how["compiled"] for how in nonempty(hows.values()))
    in_python = [ways["metis/2/1/python"]["how"] for ways in found.values() if "metis/2/1/python" in ways]
    assert not any(how["compiled"] for how in nonempty(in_python))
    assert sum(how["agreed"] for how in hows.values()) > 0
    assert all(how["agreed"] < how["windows"] // 2 for how in nonempty(hows.values()))


@pytest.mark.alone
@pytest.mark.parametrize("ranks", NUMBERS)
def test_workers_of_ranks(on_ranks, ranks):
    for ways in nonempty(on_ranks(ranks)["cases"].values()):
        for way, result in nonempty(ways.items()):
            how, threads = result["how"], int(way.split("/")[2])
            found = how["workers"]
            assert found["worker"] == [*range(ranks * threads)], way
            assert found["rank"] == [rank for rank in range(ranks) for _ in range(threads)]
            assert sum(found["packet_hops"]) == how["packet_hops"]
            assert sum(found["events"]) == how["events"]
            assert set(found["windows"]) == {how["windows"]}
            if ranks * threads == 1:
                assert found["waiting_s"] == [0.0]
            elif way.endswith("sent"):
                assert min(found["waiting_s"]) > 0, "each waits for a message in every window"


@pytest.mark.alone
@pytest.mark.parametrize("ranks", NUMBERS[1:])
def test_random_runs_on_ranks(on_ranks, ranks):
    found = on_ranks(ranks)["random"]
    assert found["ran"] >= RANDOM_RUNS[ranks] // 3
    assert found["wrong"] == []


@pytest.mark.alone
def test_ranks_that_stop_and_continue(on_ranks):
    found = on_ranks(2)["cut"]
    assert found == {name: {"differs": [], "stops": found[name]["stops"]} for name in SNAPSHOT}
    assert min(each["stops"] for each in found.values()) > 0


PLAIN = """
import json, sys
from nadi.pdes.core.jit import jit_enabled
from tests.parallel import matrix
from tests.parallel.fingerprint import fingerprint
found = {}
for name in ("ties", "messages", "ends"):
    for lps in (1, 3):
        found[f"{name} {lps}"] = fingerprint(matrix.in_threads(name, matrix.owner_of(name, "blocks", lps), 1))
    found[f"{name} processes"] = fingerprint(matrix.in_processes(name, matrix.owner_of(name, "scatter", 4), 2))
json.dump({"jit": jit_enabled(), "found": found}, sys.stdout)
"""


@pytest.mark.full
def test_plain_python(python):
    done = python(None, "-c", PLAIN, NUMBA_DISABLE_JIT="1")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert not said["jit"]
    for what, found in said["found"].items():
        assert differing(found, wanted(what.split()[0])) == [], what
    assert len(said["found"]) == 9


def test_short_links_are_not_cut():
    """METIS leaves NVSwitches whole, so a window is as long as a link between servers, and holds many cells."""
    graph = case("rails").graph
    for lps in (2, 3, 4):
        owner = owner_of("rails", "metis", lps)
        results = in_threads("rails", owner, 2)
        settled = results.settled
        cut = owner[graph.link_src] != owner[graph.link_dst]
        assert graph.link_delay_ps[~cut].min() == 25_000
        assert graph.link_delay_ps[cut].min() == 500_000
        assert settled["lookahead_ps"] >= 10 * settled["cell_ps"]
        assert settled["lookahead_ps"] % settled["cell_ps"] == 0
        assert results.counters["windows"] * 10 < serial("rails").counters["windows"]


def shares(flows, senders):
    order = np.argsort(flows["finish_ps"], kind="stable")
    return np.bincount(flows["src"][order[: len(order) // 2]], minlength=senders)


@pytest.mark.parametrize("senders", [2, 5])
def test_senders_that_always_tie_get_equal_shares_wherever_they_are(senders):
    traces = matrix.Traces(senders + 1)
    for _ in range(400):
        for src in range(senders):
            traces.message(src, senders, 512)
    graph = matrix.build(f"switch:npus={senders + 1},rate=100Gbps,delay=200ns")
    program, chosen = traces.program(), matrix.settings(window_bytes=2048)
    alone = run(build_world(graph, program, chosen))
    for owner in (np.arange(graph.nodes), np.arange(graph.nodes) % 2):
        results = run(build_world(graph, program, chosen, owner), threads=2)
        assert differing(fingerprint(results), fingerprint(alone)) == []
        found = shares(results.flows, senders)
        assert abs(found - found.mean()).max() <= 0.1 * found.mean()


def test_the_comparison_notices_one_picosecond():
    results = serial("ties")
    column = results.node_finish_ps.copy()
    column[3] += 1
    changed = replace(results, node_finish_ps=column)
    assert differing(fingerprint(changed), wanted("ties")) == ["row finishes"]
