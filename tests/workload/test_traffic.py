"""Traffic against the plans themselves; traces of messages: who sends what to whom, how large, and when."""

import time
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import workload
from nadi.et import read_trace
from nadi.workload.collectives.schedules.sends import buffers, unpack
from nadi.workload.generators.point_to_point import traces as traffic_traces
from nadi.workload.generators.point_to_point.distributions import arrivals, message_sizes
from nadi.workload.program.traffic import Traffic, merge, traffic
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.workload import naive
from tests.workload.handmade import grid, two_rings
from tests.workload.plain import plain_algorithms
from tests.workload.test_program import workloads

WHOLE_BUFFER_TIMES_N = ("all-gather", "gather")


def plan_sends(kind, algorithm, n, size_bytes):
    """(src member, dst member, bytes) of every message of a collective, straight from the algorithm's plans."""
    made = workload.collectives.plan(kind, algorithm, n)
    for member in range(n):
        for lane in made.plans[0 if made.relative else member]:
            for step in lane:
                if step.send_peer >= 0:
                    peer = (member + step.send_peer) % n if made.relative else step.send_peer
                    shift = member * made.chunks // n if made.relative else 0
                    chunks = [(shift + step.send_chunk + i) % made.chunks for i in range(step.send_count)]
                    yield (
                        member,
                        peer,
                        sum((c + 1) * size_bytes // made.chunks - c * size_bytes // made.chunks for c in chunks),
                    )


def as_dict(found):
    rows = zip(found.src.tolist(), found.dst.tolist(), found.bytes.tolist(), found.messages.tolist(), strict=True)
    pairs = {(src, dst): (size_bytes, messages) for src, dst, size_bytes, messages in rows}
    assert len(pairs) == len(found.src)
    assert list(pairs) == sorted(pairs)
    return pairs


def summed(sends):
    pairs = defaultdict(lambda: (0, 0))
    for src, dst, size_bytes in sends:
        pairs[src, dst] = (pairs[src, dst][0] + size_bytes, pairs[src, dst][1] + 1)
    return dict(pairs)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("kind", workload.KINDS)
def test_every_algorithm_sends_what_its_plans_say(kind, n):
    for algorithm in nonempty(plain_algorithms(kind)):
        for size_bytes in (1, 5, 64, 840, 1 << 20, (1 << 20) + 13):
            found = traffic(workload.collective_program(kind, n, size_bytes, algorithm))
            size = 0 if kind == "barrier" else size_bytes
            sends = plan_sends(kind, algorithm, n, size) if n > 1 else []
            assert as_dict(found) == summed(sends), (algorithm, size_bytes)


def naive_traffic(nodes, groups):
    npus = len(nodes)
    for npu, own in enumerate(nodes):
        for node in own:
            if node["what"] == "send":
                yield npu, node["peer"], node["size"]
            elif node["what"] == "coll":
                members = groups.get(node["group"], tuple(range(npus)))
                kind, me = naive.KIND_NAMES[node["type"]], members.index(npu)
                factor = {"barrier": 0}.get(kind, len(members) if kind in WHOLE_BUFFER_TIMES_N else 1)
                if len(members) > 1:
                    algorithm = workload.collectives.default_algorithm(kind)
                    for src, dst, size_bytes in plan_sends(kind, algorithm, len(members), factor * node["size"]):
                        if src == me:
                            yield npu, members[dst], size_bytes


@bounded(200)
@given(workloads())
def test_any_workload_is_what_a_walk_over_its_nodes_finds(case):
    nodes, groups = case
    tables = [naive.table(npu, own) for npu, own in enumerate(nodes)]
    program = workload.build_program(tables, range(len(nodes)), len(nodes), groups, workload.ComputeModel("trace"))
    assert as_dict(traffic(program)) == summed(naive_traffic(nodes, groups))


def known_to(program, rank, ranks):
    """The program as a rank sees it that has read only the traces of its own NPUs."""
    foreign = np.arange(program.npus) % ranks != rank
    slots = np.where(foreign, 0, np.diff(program.slot_ptr))
    kept = np.repeat(~foreign, np.diff(program.slot_ptr))
    return program._replace(
        trace_of_npu=np.where(foreign, -1, program.trace_of_npu).astype(np.int32),
        slot_ptr=np.concatenate([[0], np.cumsum(slots)]),
        slot_group=program.slot_group[kept],
        slot_member=program.slot_member[kept],
    )


@bounded(50)
@given(workloads(), st.integers(1, 4))
def test_parts_of_ranks_make_the_whole(case, ranks):
    nodes, groups = case
    tables = [naive.table(npu, own) for npu, own in enumerate(nodes)]
    program = workload.build_program(tables, range(len(nodes)), len(nodes), groups, workload.ComputeModel("trace"))
    parts = [traffic(known_to(program, rank, ranks)) for rank in range(ranks)]
    for rank, part in nonempty(enumerate(parts)):
        assert (part.src % ranks == rank).all()
    assert as_dict(merge(parts)) == as_dict(traffic(program))


def test_merge_adds_pairs_and_orders_them():
    one = Traffic(*(np.array(x) for x in ([3, 0, 3], [1, 2, 1], [10, 5, 1], [1, 2, 1])))
    other = Traffic(*(np.array(x) for x in ([0, 0], [2, 1], [2**61, 7], [1, 1])))
    found = merge([one, other])
    assert as_dict(found) == {(0, 1): (7, 1), (0, 2): (2**61 + 5, 3), (3, 1): (11, 2)}
    assert [column.dtype for column in found] == [np.int32, np.int32, np.int64, np.int64]
    assert [len(column) for column in merge([])] == [0] * 4


def test_many_pairs_are_summed_in_between(monkeypatch):
    monkeypatch.setattr("nadi.workload.program.traffic._MAX_PENDING", 5)
    found = traffic(workload.collective_program("all-to-all", 9, 9000, "direct"))
    assert as_dict(found) == summed(plan_sends("all-to-all", "direct", 9, 9000))


@pytest.mark.parametrize("size_bytes", [1 << 30, (1 << 30) + 777])
def test_a_ring_of_16384_is_cheap_and_complete(size_bytes):
    program = workload.collective_program("all-reduce", 16_384, size_bytes)
    begin = time.process_time()
    found = traffic(program)
    assert time.process_time() - begin < 2
    assert len(found.src) == 16_384
    assert found.messages.sum() == 16_384 * 2 * 16_383
    assert int(found.bytes.sum()) == 2 * 16_383 * size_bytes


def test_a_permutation_of_16384():
    to = np.roll(np.arange(16_384), 5)
    found = traffic(workload.pairs_program(to, 1 << 20))
    assert (found.dst == to).all()
    assert (found.bytes == 1 << 20).all()


def fixed(monkeypatch, plans):
    """An algorithm that has one plan."""
    module = SimpleNamespace(NAME="fixed", KINDS=("all-reduce",), plan=lambda *_: plans)
    monkeypatch.setattr(workload.collectives, "known_algorithms", lambda: {"fixed": module})
    return "fixed"


@pytest.mark.parametrize("plans", [two_rings(5), two_rings(4, wire=(2, 1)), two_rings(4, wire=(16, 15)), grid(3, 4)])
@pytest.mark.parametrize("size_bytes", [64 * 7 * 120, 1000, 7])
def test_views_parts_and_wire_factors(monkeypatch, plans, size_bytes):
    program = workload.collective_program("all-reduce", plans.members, size_bytes, fixed(monkeypatch, plans))
    found = as_dict(traffic(program))
    wanted = defaultdict(lambda: (0, 0))
    steps, of_lanes = unpack(program.schedules, 0), buffers(program.schedules, 0)
    for member in range(plans.members):
        for lane, buffer in zip(steps[member], of_lanes[member], strict=True):
            for step in lane:
                if step.send_peer >= 0:
                    size, count = wanted[member, step.send_peer]
                    size += buffer.wire_bytes(step.send_chunk, step.send_count, size_bytes)
                    wanted[member, step.send_peer] = size, count + 1
    exact = size_bytes % (2 * 5 * 4 * 3) == 0 or plans.attributes[0][0].wire != (16, 15)
    assert found.keys() == wanted.keys()
    for pair, (size, messages) in nonempty(wanted.items()):
        assert found[pair][1] == messages
        assert found[pair][0] == size if exact else size - messages < found[pair][0] <= size


MIB = 1 << 20
ONE = message_sizes("1MiB")


def test_sizes_are_those_of_their_distribution():
    assert message_sizes("4KiB").mean_bytes == 4096
    assert message_sizes("uniform:1MB-3MB").mean_bytes == 2e6
    assert message_sizes("web-search").mean_bytes == pytest.approx(1.712e6, rel=1e-3)
    shares = (np.arange(100_000) + 0.5) / 100_000
    for text in ("uniform:64KiB-1MiB", "web-search", "hadoop", "storage", "data-mining"):
        sizes = message_sizes(text)
        drawn = sizes.at(shares)
        assert drawn.mean() == pytest.approx(sizes.mean_bytes, rel=2e-3)
        for size, share in nonempty(zip(sizes.bytes[1:], sizes.share[1:], strict=True)):
            assert np.mean(drawn <= size) == pytest.approx(share, abs=2e-3)


def test_sizes_of_a_file(tmp_path):
    path = tmp_path / "sizes.txt"
    path.write_text("# bytes, percent\n\n0 0\n1000 50\n3000 100\n")
    assert message_sizes(str(path)).mean_bytes == 500 / 2 + 2000 / 2
    path.write_text("1000 50\n1000 100\n")
    assert message_sizes(str(path)).mean_bytes == 1000


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "found no line at its end; expected at least 1 byte, and 100 %"),
        ("0 0\n10 90\n", "found 10 bytes and 90 % at its end; expected at least 1 byte, and 100 %"),
        ("5 0\n4 100\n", "line 2: found '4 100'; expected bytes up to 64 TiB and a percentage, none less than"),
        ("5 60\n6 50\n", "line 2: found '6 50'"),
        ("5 101\n", "line 1: found '5 101'"),
        ("nan 100\n", "line 1: found 'nan 100'"),
        ("1 2 3\n", "line 1: found '1 2 3'"),
        ("1e300 100\n", "line 1: found '1e300 100'"),
    ],
)
def test_a_bad_file_of_sizes_is_refused(tmp_path, text, complaint):
    path = tmp_path / "sizes.txt"
    path.write_text(text)
    assert refused(workload.WorkloadError, message_sizes, str(path)).startswith(f"{path}: {complaint}")


def test_patterns_send_what_they_say():
    incast = traffic_traces.incast(10, 4, 3, ONE, 1, receiver=7)
    assert set(incast.dst) == {7}
    assert np.all(np.unique(incast.src, return_counts=True)[1] == 3)
    assert len(set(incast.src) - {7}) == 4

    permutation = traffic_traces.permutation(9, 1, ONE, 1)
    assert sorted(permutation.dst) == sorted(permutation.src) == list(range(9))
    assert np.all(permutation.src != permutation.dst)

    pairs = traffic_traces.pairs(8, 2, 1, ONE, 1)
    assert pairs.dst.tolist() == [2, 3, 0, 1, 6, 7, 4, 5]

    everybody = traffic_traces.all_to_all(5, 2, ONE, 1)
    met, times = np.unique(everybody.src * 5 + everybody.dst, return_counts=True)
    assert met.tolist() == [i * 5 + j for i in range(5) for j in range(5) if i != j]
    assert np.all(times == 2)


def test_the_same_seed_makes_the_same_messages_and_another_others():
    web = message_sizes("web-search")

    def made(seed):
        return [
            traffic_traces.random_messages(4, 0.5, 400 * 10**9, 10**10, web, seed),
            traffic_traces.permutation(30, 2, web, seed),
            traffic_traces.incast(30, 5, 2, web, seed),
        ]

    for first, again, other in nonempty(zip(made(1), made(1), made(2), strict=True)):
        assert all(np.array_equal(a, b) for a, b in nonempty(zip(first, again, strict=True)))
        assert not all(np.array_equal(a, b) for a, b in nonempty(zip(first, other, strict=True)))


@pytest.mark.parametrize(
    ("text", "load", "seconds"), [("64KiB", 0.3, 0.05), ("web-search", 0.8, 0.6), ("hadoop", 1.2, 0.2)]
)
def test_poisson_offers_the_load_that_is_asked(text, load, seconds):
    """To each NPU's receivers evenly; gaps of an exponential distribution have their mean as standard deviation."""
    npus, rate_bps = 16, 400 * 10**9
    made = traffic_traces.random_messages(npus, load, rate_bps, int(seconds * 1e12), message_sizes(text), 1)
    assert made.bytes.sum() * 8 / (npus * rate_bps * seconds) == pytest.approx(load, rel=0.02)
    assert np.bincount(made.dst, minlength=npus).std() < 0.05 * len(made.dst) / npus
    gaps = np.diff(made.at_us[made.src == 3]).astype(float)
    assert np.all(gaps >= 0)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_bursty_gaps_have_their_mean_and_spread(sigma):
    """Moments of the lognormal distribution; its mean converges slowly, its logarithm does not."""
    gaps = np.diff(arrivals(f"lognormal:sigma={sigma}").times(200_000.0, 1.0, np.random.default_rng(1)))
    assert np.log(gaps).std() == pytest.approx(sigma, rel=0.01)
    assert np.log(gaps).mean() == pytest.approx(-(sigma**2) / 2, abs=0.02 * sigma)
    assert gaps.mean() == pytest.approx(1.0, rel=0.05)
    if sigma <= 1:
        assert gaps.std() == pytest.approx(np.sqrt(np.expm1(sigma**2)), rel=0.1)


@pytest.mark.parametrize("process", ["poisson", "lognormal:sigma=1", "lognormal:sigma=2"])
def test_short_runs_have_the_load_of_long_ones(process):
    """The process has begun long before: as many messages arrive in each tenth of the time, and in all as asked."""
    counts = np.zeros(10)
    for number in range(4000):
        at = arrivals(process).times(20.0, 1.0, np.random.default_rng(number))
        counts += np.histogram(at, bins=10, range=(0, 20))[0]
    assert counts.sum() / 4000 == pytest.approx(20, rel=0.03)
    assert counts / counts.sum() == pytest.approx(np.full(10, 0.1), rel=0.12)


def test_bursts_are_bursts():
    """Messages of an NPU per stretch of ten mean gaps: their variance over their mean is 1 for a Poisson process."""
    dispersion = []
    for process in ("poisson", "lognormal:sigma=1", "lognormal:sigma=2"):
        at = arrivals(process).times(100_000.0, 1.0, np.random.default_rng(5))
        counts = np.histogram(at, bins=10_000, range=(0, 100_000))[0]
        dispersion.append(counts.var() / counts.mean())
    assert dispersion[0] == pytest.approx(1.0, abs=0.05)
    assert dispersion[1] > 1.4
    assert dispersion[2] > 3 * dispersion[1]


@pytest.mark.parametrize("text", ["lognormal", "lognormal:sigma=0", "lognormal:sigma=9", "burst", "lognormal:sigma=-1"])
def test_wrong_processes_are_refused(text):
    with pytest.raises(workload.WorkloadError, match='expected "poisson", or "lognormal:sigma=2"'):
        arrivals(text)


def test_traces_hold_all_messages_and_wait_for_their_moment(tmp_path):
    made = traffic_traces.random_messages(4, 0.5, 400 * 10**9, 10**9, message_sizes("hadoop"), 3)
    assert traffic_traces.write(made, tmp_path, "t") == 4
    traces, trace_of_npu = workload.load_traces(tmp_path / "t", 4)
    program = workload.build_program(traces, trace_of_npu, 4)
    assert program.npus == 4
    sends = [read_trace(tmp_path / f"t.{npu}.et") for npu in range(4)]
    for npu, table in nonempty(enumerate(sends)):
        mine = made.src == npu
        is_send, is_wait = table.comm_src == npu, table.duration_micros > 0
        assert table.comm_dst[is_send].tolist() == made.dst[mine].tolist()
        assert table.comm_size[is_send].tolist() == made.bytes[mine].tolist()
        assert table.duration_micros[is_wait].sum() == np.rint(made.at_us[mine].max())
        assert np.all(table.is_cpu_op[is_wait])
        assert int(np.sum(table.comm_dst == npu)) == int(np.sum(made.dst == npu))


def test_other_npus_may_have_traces_beside(tmp_path):
    traffic_traces.write(traffic_traces.pairs(4, 2, 1, ONE, 1), tmp_path, "t")
    traffic_traces.write(traffic_traces.pairs(2, 1, 1, ONE, 1), tmp_path, "t", first_npu=4)
    assert read_trace(tmp_path / "t.5.et").comm_dst.tolist() == [5, 4]
    with pytest.raises(workload.WorkloadError, match=r"t\.4\.et: of other traces, expected a folder with these"):
        traffic_traces.write(traffic_traces.pairs(4, 2, 1, ONE, 1), tmp_path, "t")
