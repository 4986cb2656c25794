"""Remote memory of each NPU: one access at a time, beside local memory and computing, in every model of the network."""

import heapq
import itertools
import json

import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.cli.main import main
from tests.samples import sampled

LATENCY_PS, BYTES_PER_S = 2_000_000, 10**9
LOAD, STORE = et.NodeType.MEM_LOAD_NODE, et.NodeType.MEM_STORE_NODE
RUN = """
[workload]
traces = "trace"
[topology]
spec = "ring:npus=2,rate=100Gbps,delay=1us"
[memory]
bandwidth = "100GB/s"
remote = "npu"
remote_latency = "2us"
remote_bandwidth = "1GB/s"
"""


def access_ps(size):
    return LATENCY_PS + size * 10**12 // BYTES_PER_S


@pytest.mark.parametrize("fidelity", ["packet", "analytical", "closed-form"])
def test_accesses_follow_each_other_and_nothing_else_waits_for_them(tmp_path, fidelity):
    sizes = 1000, 500, 250
    nodes = [
        et.mem_node(1, "in", LOAD, sizes[0], tensor_loc=1),
        et.mem_node(2, "local", LOAD, 10**6),
        et.comp_node(3, "compute", duration_micros=1),
        et.mem_node(4, "out", STORE, sizes[1], tensor_loc=1),
        et.mem_node(5, "after compute", LOAD, sizes[2], tensor_loc=1, deps=[3]),
        et.comp_node(6, "end", duration_micros=1, deps=[1]),
    ]
    other = [et.mem_node(1, "of another NPU", LOAD, 4000, tensor_loc=1)]
    for npu, trace in enumerate((nodes, other)):
        et.write_trace(tmp_path / f"trace.{npu}.et", et.metadata(), trace)
    more = "" if fidelity == "packet" else f'[network]\nfidelity = "{fidelity}"\n'
    more += "congestion_aware = true\n" if fidelity == "analytical" else ""
    (tmp_path / "run.toml").write_text(RUN + more)
    assert main(["run", str(tmp_path / "run.toml"), "-q", "--out", str(tmp_path / "out")]) == 0
    rows = pq.read_table(tmp_path / "out" / "nodes.parquet").to_pylist()
    finish = {(row["npu"], row["name"]): row["finish_ps"] for row in rows}
    first = access_ps(sizes[0])
    assert finish[0, "in"] == first
    assert finish[0, "out"] == first + access_ps(sizes[1])
    assert finish[0, "after compute"] == first + access_ps(sizes[1]) + access_ps(sizes[2])
    assert finish[0, "local"] == 10_000_000
    assert finish[0, "compute"] == 1_000_000
    assert finish[0, "end"] == first + 1_000_000
    assert finish[1, "of another NPU"] == access_ps(4000)
    assert {row["lane"] for row in rows if row["name"] in {"in", "out", "after compute"}} == {"remote"}


POOL = """
[workload]
traces = "trace"
[topology]
spec = "ring:npus=4,rate=80Gbps,delay=1us"
[network]
fidelity = "analytical"
congestion_aware = true
[memory]
remote = "pool"
remote_npus = [3]
remote_latency = "2us"
remote_bandwidth = "1GB/s"
"""
WIRE_PS_PER_BYTE, HOP_PS, REQUEST_BYTES = 100, 1_000_000, 64


def message_ps(size, hops):
    return hops * (size * WIRE_PS_PER_BYTE + HOP_PS)


def run_pool(folder, traces, *more):
    for npu, trace in enumerate(traces):
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), trace)
    (folder / "run.toml").write_text(POOL)
    code = main(["run", str(folder / "run.toml"), "-q", "--out", str(folder / "out"), "--force", *more])
    return code, pq.read_table(folder / "out" / "nodes.parquet").to_pylist() if code == 0 else []


def test_a_pool_serves_one_access_at_a_time_over_the_network(tmp_path):
    near = [et.mem_node(1, "in", LOAD, 10_000, tensor_loc=1), et.comp_node(2, "end", duration_micros=1, deps=[1])]
    far = [et.mem_node(1, "out", STORE, 1000, tensor_loc=1)]  # NPU 1 is two hops from 3, NPU 2 one
    code, rows = run_pool(tmp_path, [[], far, near])
    assert code == 0
    finish = {(row["npu"], row["name"]): row["finish_ps"] for row in rows}
    asked = message_ps(REQUEST_BYTES, 1)
    read = asked + access_ps(10_000)
    assert finish[3, "load 0 of npu 2"] == read
    assert finish[2, "in"] == read + message_ps(10_000, 1)
    assert finish[2, "end"] == finish[2, "in"] + 1_000_000
    assert message_ps(1000, 2) < read  # the store has come and waits
    written = read + access_ps(1000)
    assert finish[3, "store 0 of npu 1"] == written
    answered = max(written, read) + message_ps(REQUEST_BYTES, 2)
    assert answered <= finish[1, "out"] <= answered + message_ps(10_000, 1)  # behind the data where they share a link


def test_a_pool_gives_the_same_answer_on_two_workers_packet_by_packet(tmp_path):
    def trace():
        kinds = STORE, LOAD
        return [
            et.mem_node(n, f"{n}", kinds[n % 2], 5000 * n, tensor_loc=1, deps=[n - 2] if n > 2 else [])
            for n in range(1, 7)
        ]

    text = POOL.replace('fidelity = "analytical"\ncongestion_aware = true\n', "")
    answers = []
    for workers in ("1", "2"):
        for npu in range(3):
            et.write_trace(tmp_path / f"trace.{npu}.et", et.metadata(), trace())
        (tmp_path / "run.toml").write_text(text)
        out = tmp_path / workers
        assert main(["run", str(tmp_path / "run.toml"), "-q", "--out", str(out), "--workers", workers]) == 0
        rows = pq.read_table(out / "nodes.parquet").to_pylist()
        answers.append((json.loads((out / "summary.json").read_text())["digest"], rows))
    assert answers[0] == answers[1]
    served = sorted((row["start_ps"], row["finish_ps"]) for row in rows if row["npu"] == 3 and row["kind"] == "memory")
    assert len(served) == 18
    assert sum(finish - start for start, finish in served) == sum(3 * access_ps(5000 * n) for n in range(1, 7))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(served))


@pytest.mark.parametrize(
    ("npus", "words"),
    [("[7]", "memory node 7: expected an NPU of the fabric"), ("[0]", "trace of NPU 0, which is a memory node")],
)
def test_a_memory_node_is_an_idle_npu_of_the_fabric(tmp_path, capsys, npus, words):
    code, _ = run_pool(tmp_path, [[et.mem_node(1, "in", LOAD, 1, tensor_loc=1)]], "--set", f"memory.remote_npus={npus}")
    assert code == 2
    assert words in capsys.readouterr().err


HOSTS = """
npus = 4
host = [0, 0, 1, 1]
[[switches]]
name = "a"
[[switches]]
name = "b"
[[links]]
rate = "80Gbps"
delay = "1us"
cables = [[0, "a"], [1, "a"], [2, "b"], [3, "b"], ["a", "b"]]
"""
NODE = (
    RUN.replace("ring:npus=2,rate=100Gbps,delay=1us", "file:path=fabric.toml")
    .replace('"npu"', '"node"')
    .replace("1GB/s", "2GB/s")
)
ANALYTICAL = '[network]\nfidelity = "analytical"\ncongestion_aware = true\n'
CHAIN = 6


def accesses(npu):
    """Of an NPU: whether it loads, and how many bytes."""
    return [(bool((npu + n) % 3), 1000 * (1 + (7 * npu + 5 * n) % 11) + npu) for n in range(CHAIN)]


def naive_node_memory():
    """When each access of the NPUs of one host finishes: five queues, one message or access at a time in each."""
    free, finish, events = {}, {}, []
    for npu in (0, 1):
        heapq.heappush(events, (0, npu, 0, 0))
    while events:
        now, npu, n, stage = heapq.heappop(events)
        loads, size = accesses(npu)[n]
        there, back = (REQUEST_BYTES, size) if loads else (size, REQUEST_BYTES)
        if stage == 5:
            finish[npu, n] = now
            if n + 1 < CHAIN:
                heapq.heappush(events, (now, npu, n + 1, 0))
            continue
        queue = (("up", npu), "to memory", "memory", "from memory", ("down", npu))[stage]
        if queue == "memory":
            busy, after = LATENCY_PS + size * 10**12 // (2 * BYTES_PER_S), 0
        else:
            wire = WIRE_PS_PER_BYTE if isinstance(queue, tuple) else WIRE_PS_PER_BYTE // 2
            busy, after = wire * (there if stage < 2 else back), HOP_PS
        free[queue] = max(now, free.get(queue, 0)) + busy
        heapq.heappush(events, (free[queue] + after, npu, n, stage + 1))
    return finish


def run_node(folder, monkeypatch, more, *options, traces=None):
    monkeypatch.chdir(folder)
    for npu in range(4):
        nodes = [
            et.mem_node(n + 1, f"{n}", LOAD if loads else STORE, size, tensor_loc=1, deps=[n] if n else [])
            for n, (loads, size) in enumerate(accesses(npu % 2))
        ]
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes if traces is None else traces(npu))
    (folder / "fabric.toml").write_text(HOSTS)
    (folder / "run.toml").write_text(NODE + more)
    code = main(["run", "run.toml", "-q", "--out", "out", *options])
    return code, pq.read_table("out/nodes.parquet").to_pylist() if code == 0 else []


def test_npus_of_a_host_queue_for_its_memory(tmp_path, monkeypatch):
    """Both hosts do the same, at the same time, each at its own memory."""
    code, rows = run_node(tmp_path, monkeypatch, ANALYTICAL)
    assert code == 0
    expected = naive_node_memory()
    found = {(row["npu"], int(row["name"])): row["finish_ps"] for row in rows if row["name"].isdecimal()}
    assert found == {(npu + of_host, n): ps for (npu, n), ps in expected.items() for of_host in (0, 2)}
    alone = sum(LATENCY_PS + size * 10**12 // (2 * BYTES_PER_S) for _, size in accesses(0)) + 4 * CHAIN * HOP_PS
    assert found[0, CHAIN - 1] > 1.3 * alone  # they did wait for each other


@pytest.mark.parametrize("more", ["", ANALYTICAL, '[network]\nfidelity = "closed-form"\n'])
def test_collectives_of_all_npus_leave_memories_out(tmp_path, monkeypatch, more):
    def trace(npu):
        reduced = et.coll_node(2, "reduced", et.CollectiveCommType.ALL_REDUCE, 10_000, deps=[1])
        return [et.mem_node(1, "in", LOAD, 1000 * (npu + 1), tensor_loc=1), reduced]

    code, rows = run_node(tmp_path, monkeypatch, more, traces=trace)
    assert code == 0
    assert sorted(row["npu"] for row in rows if row["name"] == "reduced") == [0, 1, 2, 3]
    served = sorted(
        (row["npu"], row["finish_ps"] - row["start_ps"]) for row in rows if row["npu"] >= 4 and row["kind"] == "memory"
    )
    assert served == [(4 + npu // 2, LATENCY_PS + 500_000 * (npu + 1)) for npu in range(4)]


def test_memories_of_hosts_give_the_same_answer_however_the_fabric_is_cut(tmp_path, monkeypatch):
    """Packet by packet; both hosts on one worker, and on two, divided by what is known of the traces and without."""
    answers = []
    for options in (["--workers", "1"], ["--workers", "2"], ["--workers", "2", "--weights", "fabric"]):
        code, rows = run_node(tmp_path, monkeypatch, "", *options)
        assert code == 0
        answers.append((json.loads((tmp_path / "out" / "summary.json").read_text())["digest"], rows))
    assert answers[0] == answers[1] == answers[2]


def test_memories_of_hosts_need_hosts(tmp_path, capsys):
    et.write_trace(tmp_path / "trace.0.et", et.metadata(), [et.mem_node(1, "in", LOAD, 1, tensor_loc=1)])
    (tmp_path / "run.toml").write_text(RUN.replace('"npu"', '"node"'))
    assert main(["run", str(tmp_path / "run.toml"), "-q"]) == 2
    words = capsys.readouterr().err
    assert '[memory] remote: found "node", but ring:npus=2,' in words
    assert 'expected "npu" or "pool"' in words
    assert words.count("\n") == 1


SHARERS, WORKERS_OF_MEMORY = 3, 8


def chain(npu):
    """Of an NPU: microseconds of computation before each access, and bytes of the access."""
    return [(1 + (3 * npu + 7 * n) % 5, 1000 + (977 * npu + 389 * n) % 4001) for n in range(CHAIN)]


def naive_shared_memories():
    """When each access finishes: NPUs 0 to 2, 3 to 5, and 6 and 7 have a memory each, which serves who asks first."""
    free, finish = {}, {}
    asking = [(1_000_000 * chain(npu)[0][0], npu, 0) for npu in range(WORKERS_OF_MEMORY)]
    while asking:
        now, npu, n = min(asking)
        asking.remove((now, npu, n))
        memory = npu // SHARERS
        free[memory] = finish[npu, n] = max(now, free.get(memory, 0)) + access_ps(chain(npu)[n][1])
        if n + 1 < CHAIN:
            asking.append((finish[npu, n] + 1_000_000 * chain(npu)[n + 1][0], npu, n + 1))
    return finish


@pytest.mark.parametrize("fidelity", ["analytical", "flow"])
def test_consecutive_npus_share_a_memory(tmp_path, fidelity):
    for npu in range(WORKERS_OF_MEMORY):
        nodes = []
        for n, (micros, size) in enumerate(chain(npu)):
            nodes.append(et.comp_node(2 * n + 1, f"c{n}", duration_micros=micros, deps=[2 * n] if n else []))
            nodes.append(et.mem_node(2 * n + 2, f"{n}", (LOAD, STORE)[n % 2], size, tensor_loc=1, deps=[2 * n + 1]))
        et.write_trace(tmp_path / f"trace.{npu}.et", et.metadata(), nodes)
    text = RUN.replace("ring:npus=2", f"ring:npus={WORKERS_OF_MEMORY}") + f"remote_sharers = {SHARERS}\n"
    (tmp_path / "run.toml").write_text(text + f'[network]\nfidelity = "{fidelity}"\n')
    assert main(["run", str(tmp_path / "run.toml"), "-q", "--out", str(tmp_path / "out")]) == 0
    rows = pq.read_table(tmp_path / "out" / "nodes.parquet").to_pylist()
    found = {(row["npu"], int(row["name"])): row["finish_ps"] for row in rows if row["name"].isdecimal()}
    assert found == naive_shared_memories()


def test_packets_do_not_share_memories_of_npus(tmp_path, capsys):
    """A warning names the key, as NPUs act at different times there."""
    for npu in range(2):
        et.write_trace(tmp_path / f"trace.{npu}.et", et.metadata(), [et.mem_node(1, "in", LOAD, 1000, tensor_loc=1)])
    (tmp_path / "run.toml").write_text(RUN + "remote_sharers = 2\n")
    assert main(["run", str(tmp_path / "run.toml"), "-q", "--out", str(tmp_path / "out")]) == 0
    assert "[memory] remote_sharers" in capsys.readouterr().err
    rows = pq.read_table(tmp_path / "out" / "nodes.parquet").to_pylist()
    assert {row["finish_ps"] for row in rows} == {access_ps(1000)}


TINY = 'source = "x"\nlayers = 2\nhidden = 256\nheads = 8\nvocab = 1024\nsequence = 128\nglobal_batch = 8\n'
PLANS = ['plan = "tp2,pp2,gb4"', 'plan = "dp8,gb8"\nframework = "fsdp"']


@sampled(
    {
        "fidelity": ["closed-form", "packet", "flow", "analytical"],
        "plan": PLANS,
        "spec": ["dgx-a100:npus=16", "dgx-h100:npus=8"],
    }
)
def test_steps_of_models_leave_memories_of_hosts_alone(tmp_path, fidelity, plan, spec):
    """A memory is no GPU: a step that uses none takes as long as beside memories of GPUs, with the same slow-down."""
    (tmp_path / "tiny.toml").write_text(TINY)
    found = []
    for remote in ("npu", "node"):
        run = tmp_path / f"{remote}.toml"
        run.write_text(
            f'[workload]\nmodel = "tiny.toml"\n{plan}\n[topology]\nspec = "{spec}"\n[compute]\ngpu = "h100"\n'
            f'[network]\nfidelity = "{fidelity}"\n[memory]\nremote = "{remote}"\nremote_bandwidth = "20GB/s"\n'
        )
        assert main(["run", str(run), "-q", "--out", str(tmp_path / remote)]) == 0
        summary = json.loads((tmp_path / remote / "summary.json").read_text())
        found.append((summary["finish_time_ps"], summary["config"]["system"]["compute_slowdown"]))
    assert found[0] == found[1]
