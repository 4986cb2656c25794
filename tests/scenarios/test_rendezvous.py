"""Messages that are asked for before they are sent (nic/rendezvous.py): times to the picosecond, order, who waits."""

from types import SimpleNamespace

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import LinkFault, RunError
from nadi.workload import KINDS, CollectiveSettings, WorkloadError, algorithms_of, collective_program, collectives
from nadi.workload.collectives.plans.plan import Lane, each_its_own
from tests.failures.common import faults_of, simulate as lossy
from tests.pdes.cases import Traces
from tests.scenarios.closed_forms import ROCE, bits_ps, train_ps
from tests.scenarios.running import simulate

G100 = 100 * 10**9
US = 1_000_000
DATA, REQUEST, ANSWER = range(3)
CONTROL_BYTES = 64
FABRICS = {
    "fully-connected:npus=2,rate=100Gbps,delay=700ns": (1, 700_000),
    "switch:npus=2,rate=100Gbps,delay=400ns,switch_latency=250ns": (2, 1_050_000),
}


def handshake_ps(links, fixed_ps, control=CONTROL_BYTES):
    """One-way times of a request or its answer, and of the acknowledgement that goes before what it brings about."""
    return train_ps(control, [G100] * links, fixed_ps), bits_ps(ROCE.ack, G100)


def rows_of(flows, control):
    """The messages of one kind as tuples in an order that does not depend on times."""
    names = ("group", "seq", "lane", "src", "dst", "bytes")
    return sorted(zip(*(flows[name][flows["control"] == control].tolist() for name in names), strict=True))


def one_message(size_bytes, late_us=0):
    traces = Traces(2)
    wait = [traces.compute(1, late_us)] if late_us else []
    traces.message(0, 1, size_bytes, 5, ((), wait))
    return traces.program()


@pytest.mark.parametrize("size_bytes", [1, 4096, 20 * 4096 + 33])
@pytest.mark.parametrize("spec", FABRICS)
def test_one_message_takes_a_request_an_answer_and_its_time(spec, size_bytes):
    links, fixed_ps = FABRICS[spec]
    one_way, ack = handshake_ps(links, fixed_ps)
    eager = train_ps(size_bytes, [G100] * links, fixed_ps)
    if links > 1 and size_bytes < CONTROL_BYTES:  # shorter than the acknowledgement before it, with which it catches up
        eager += ack - bits_ps(ROCE.last(size_bytes), G100)
    results = simulate(spec, one_message(size_bytes), rendezvous_bytes=1)
    assert results.finish_time_ps == 2 * (one_way + ack) + eager
    flows = results.flows
    assert flows["control"].tolist() == [REQUEST, ANSWER, DATA]
    assert flows["lane"].tolist() == [5, 5, 5]
    assert flows["bytes"].tolist() == [CONTROL_BYTES, CONTROL_BYTES, size_bytes]
    assert flows["src"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("late_us", [1, 3, 50])
@pytest.mark.parametrize("spec", FABRICS)
def test_a_late_receiver_starts_it(spec, late_us):
    """With a receive before the request is in, the request counts; later, the receive does."""
    links, fixed_ps = FABRICS[spec]
    size_bytes = 9 * 4096
    one_way, ack = handshake_ps(links, fixed_ps)
    ready = max(one_way + ack, late_us * US)
    expected = ready + one_way + ack + train_ps(size_bytes, [G100] * links, fixed_ps)
    assert simulate(spec, one_message(size_bytes, late_us), rendezvous_bytes=1).finish_time_ps == expected


def test_a_larger_control_message_takes_longer():
    spec, (links, fixed_ps) = next(iter(FABRICS.items()))
    chosen = {"rendezvous_bytes": 1, "rendezvous_control_bytes": 8192}
    one_way, ack = handshake_ps(links, fixed_ps, 8192)
    expected = 2 * (one_way + ack) + train_ps(4096, [G100], fixed_ps)
    # 8,192 bytes are two packets: the acknowledgement of the first is long gone when the second is in
    assert simulate(spec, one_message(4096), **chosen).finish_time_ps == expected


def test_smaller_messages_are_sent_at_once():
    spec = next(iter(FABRICS))
    traces = Traces(2)
    for size_bytes in (99_999, 100_000, 100_001):
        traces.message(0, 1, size_bytes)
    flows = simulate(spec, traces.program(), rendezvous_bytes=100_000).flows
    assert [row[-1] for row in rows_of(flows, DATA)] == [99_999, 100_000, 100_001]
    assert [row[1] for row in rows_of(flows, REQUEST)] == [row[1] for row in rows_of(flows, ANSWER)] == [1, 2]
    alike = [simulate(spec, traces.program(), rendezvous_bytes=bytes_).digest for bytes_ in (0, 100_002)]
    assert alike[0] == alike[1]


@pytest.mark.parametrize("packets", [1, 12])
def test_a_ring_takes_longer_by_its_handshakes(packets):
    npus, message = 6, packets * 4096
    spec = f"ring:npus={npus},rate=100Gbps,delay=700ns"
    program = collective_program("all-reduce", npus, npus * message, "ring")
    eager, asked = (simulate(spec, program, rendezvous_bytes=least) for least in (0, message))
    one_way, ack = handshake_ps(1, 700_000)
    steps = 2 * (npus - 1)
    # answers and acknowledgements of data go one way, requests and data the other: only these two meet
    assert asked.finish_time_ps - eager.finish_time_ps == pytest.approx(2 * steps * (one_way + ack), rel=1e-3)
    assert rows_of(asked.flows, DATA) == rows_of(eager.flows, DATA)
    for npu in range(npus):
        own = (asked.flows["src"] == npu) & (asked.flows["control"] == DATA)
        assert asked.flows["bytes"][own].sum() == steps * message
    assert len(rows_of(asked.flows, REQUEST)) == len(rows_of(asked.flows, ANSWER)) == steps * npus


@pytest.fixture
def use(monkeypatch):
    """Makes the registry know one algorithm of given lanes of each member."""

    def made(lanes, chunks):
        module = SimpleNamespace(
            NAME="fixed", KINDS=("all-reduce",), plan=lambda *_: each_its_own(chunks, lanes), closed_form=None
        )
        monkeypatch.setattr(collectives, "known_algorithms", lambda: {"fixed": module})

    return made


def test_what_comes_to_a_lane_is_taken_in_its_order(use):
    """A small message behind a large one does not stand for it; a third NPU tells when the first step was done."""
    sender = Lane().step(send_to=1, send_count=8).step(send_to=1, send=8)
    taker = Lane().step(receive_from=0, receive_count=8).step(receive_from=0, receive=8)
    teller = Lane().step(send_to=2, after=(0, 0))
    use([[sender], [taker, teller], [Lane().step(receive_from=1)]], 9)
    program = collective_program("all-reduce", 3, 9 * 4096, "fixed")
    flows = simulate("fully-connected:npus=3,rate=100Gbps,delay=700ns", program, rendezvous_bytes=8 * 4096).flows
    large, small, told = (
        int(np.flatnonzero(which & (flows["control"] == DATA))[0])
        for which in (flows["bytes"] == 8 * 4096, (flows["bytes"] == 4096) & (flows["dst"] == 1), flows["dst"] == 2)
    )
    assert flows["finish_ps"][small] < flows["start_ps"][large]
    assert flows["start_ps"][told] == flows["finish_ps"][large]


def test_a_lane_answers_in_the_order_of_the_requests(use):
    """Four NPUs ask one lane; that of the longest way asks first."""
    graph = topologies.build("switch:npus=5,rate=100Gbps,delay=400ns,switch_latency=250ns")
    traces = Traces(5)
    first = {npu: [traces.compute(npu, 10 - npu)] for npu in range(1, 5)}
    traces.collective(range(5), 0, 5 * 4096, deps=first)
    taker = Lane()
    for npu in range(1, 5):
        taker.step(receive_from=npu)
    use([[taker], *([Lane().step(send_to=0)] for _ in range(4))], 5)
    program = traces.program(settings=CollectiveSettings({"all-reduce": "fixed"}))
    flows = simulate(graph, program, rendezvous_bytes=1).flows
    asked = [int(src) for src in flows["src"][flows["control"] == REQUEST]]
    answered, came = flows["control"] == ANSWER, flows["control"] == DATA
    assert asked == [4, 3, 2, 1]
    assert flows["dst"][answered].tolist() == asked
    assert (flows["start_ps"][answered][1:] == np.sort(flows["finish_ps"][came])[:-1]).all()


ALGORITHMS = [(kind, name) for kind in KINDS if kind != "barrier" for name in algorithms_of(kind) if name != "custom"]


@pytest.mark.parametrize(("kind", "algorithm"), ALGORITHMS)
def test_every_algorithm_comes_to_its_end(kind, algorithm):
    ran = 0
    for spec in ("torus:sizes=2x4", "rail-optimised:npus=6,gpus_per_host=3", "switch:npus=5"):
        graph = topologies.build(spec)
        try:
            program = collective_program(kind, graph.npus, 3 * 4096 * graph.npus + 7, algorithm, graph)
        except WorkloadError:
            continue
        ran += 1
        eager = simulate(graph, program)
        asked = simulate(graph, program, rendezvous_bytes=1)
        assert rows_of(asked.flows, DATA) == rows_of(eager.flows, DATA)
        some = simulate(graph, program, rendezvous_bytes=int(np.median(eager.flows["bytes"])))
        assert rows_of(some.flows, DATA) == rows_of(eager.flows, DATA)
    assert ran > 0


@pytest.mark.parametrize("selective", [False, True])
def test_packets_are_lost(selective):
    graph = topologies.build("leaf-spine:leaves=2,hosts_per_leaf=3,spines=2,rate=100Gbps,delay=500ns")
    program = collective_program("all-to-all", 6, 6 * 40 * 4096)
    loss = LinkFault(tuple(range(graph.links)), 0, error_rate=0.01)
    chosen = {"faults": faults_of(graph, [loss]), "rto_ps": 40 * US, "max_retries": 1000}
    chosen |= {"selective_repeat": selective}
    results = lossy(graph, program, rendezvous_bytes=1, **chosen)
    count = results.counters
    assert count["lost_packets"] > 20
    assert count["bytes_sent"] == count["bytes_received"] + count["bytes_dropped"]
    assert count["payload_bytes"] == results.flows["bytes"].sum()
    assert rows_of(results.flows, DATA) == rows_of(simulate(graph, program).flows, DATA)


@pytest.mark.parametrize("scheduling", ["fifo", "lifo"])
def test_phases_that_take_turns(scheduling):
    """A request calls a phase that waits for a token, as a message does."""
    graph = topologies.build("torus:sizes=3x3,rate=100Gbps,delay=300ns")
    program = collective_program("all-reduce", 9, 9 * 9 * 4096, "grid:splits=4,order=themis", graph)
    eager = simulate(graph, program)
    chosen = {"phases_per_dimension": 1, "scheduling": scheduling}
    asked = simulate(graph, program, rendezvous_bytes=1, **chosen)
    assert rows_of(asked.flows, DATA) == rows_of(eager.flows, DATA)
    assert asked.finish_time_ps > eager.finish_time_ps


def test_sends_that_wait_for_each_other_are_named():
    """Both send before they receive: at once that works, asked for it does not."""
    traces = Traces(2)
    for npu in range(2):
        sent = traces.send(npu, 1 - npu, 5000)
        traces.receive(1 - npu, npu, 5000, deps=[sent])
    spec = next(iter(FABRICS))
    simulate(spec, traces.program(), rendezvous_bytes=5001)
    with pytest.raises(RunError) as caught:
        simulate(spec, traces.program(), rendezvous_bytes=5000)
    head, *lines = str(caught.value).splitlines()
    assert "4 trace nodes are not done" in head
    assert [line.strip() for line in lines] == [
        f"npu {npu} row 0: send to npu {1 - npu} waits for its receive to be posted" for npu in range(2)
    ]


def test_a_member_that_never_comes_is_named():
    """NPU 1 waits for a message of NPU 0 before it joins, which sends that after the broadcast."""
    traces = Traces(2)
    traces.collective(range(2), 5, 9000, deps={1: [traces.receive(0, 1, 10)]})
    traces.send(0, 1, 10, deps=[0])
    with pytest.raises(RunError) as caught:
        simulate(next(iter(FABRICS)), traces.program(), rendezvous_bytes=100)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert lines == [
        "npu 0 row 0: collective 0 of group 0 waits for npu 1 to receive what it sends",
        "npu 1 row 0: receive 0 of tag 0 waits for npu 0",
    ]


def test_tags_leave_room():
    traces = Traces(2)
    traces.message(0, 1, 10, 1 << 22)
    simulate(next(iter(FABRICS)), traces.program())
    with pytest.raises(RunError, match=r"tag 4194304 of a send: at most 4194303 is possible with rendezvous"):
        simulate(next(iter(FABRICS)), traces.program(), rendezvous_bytes=1)
