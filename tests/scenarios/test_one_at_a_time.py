"""NPUs that run one row of each kind at a time, the first of the trace that is ready, as ASTRA-sim issues nodes."""

import heapq
import random
import re

import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.cli.main import main

BYTES_PER_S = 10**9
RUN = """
[workload]
traces = "trace"
groups = "groups.json"
[topology]
spec = "ring:npus=2,rate=100Gbps,delay=1us"
[memory]
remote = "npu"
remote_bandwidth = "1GB/s"
[network]
"""
MODELS = [
    'fidelity = "flow"',
    'fidelity = "analytical"\ncongestion_aware = false',
    'fidelity = "packet"',
    'fidelity = "closed-form"',
]
MIXED = 'fidelity = "packet"\nflows = ["1"]'
ACK_PS = 6880  # 86 bytes at 100 Gb/s: the last acknowledgements of a collective of packets delay the next one
ALL_REDUCE = et.CollectiveCommType.ALL_REDUCE
CPU, GPU, COMMUNICATION = range(3)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run traces of NPUs: two, or four on a switch; return exit code, rows of nodes by NPU and name, and errors."""
    monkeypatch.chdir(tmp_path)

    def to(traces, more, system="[system]\none_at_a_time = true\n"):
        for npu, nodes in enumerate(traces):
            et.write_trace(tmp_path / f"trace.{npu}.et", et.metadata(), nodes)
        pairs = '"3": [2, 3], "4": [0, 1, 2, 3]' if len(traces) > 2 else '"2": [0, 1]'
        (tmp_path / "groups.json").write_text(f'{{"1": [0, 1], {pairs}}}')
        (tmp_path / "run.toml").write_text(
            system + (RUN if len(traces) == 2 else RUN.replace("ring:npus=2", "switch:npus=4")) + more
        )
        code = main(["run", "run.toml", "-q", "--out", "out", "--force"])
        rows = pq.read_table("out/nodes.parquet").to_pylist() if code == 0 else []
        return code, {(row["npu"], row["name"]): row for row in rows}, capsys.readouterr().err

    return to


def naive(nodes):
    """When each node starts and finishes: (kind, ps, parents) by number, the lowest that is ready first."""
    left = {n: set(parents) for n, (_, _, parents) in nodes.items()}
    running, times, events = {}, {}, []

    def issue(now):
        for n in sorted(n for n in left if not left[n] and n not in times):
            kind, ps, _ = nodes[n]
            if kind not in running:
                running[kind] = n
                times[n] = now, now + ps
                heapq.heappush(events, (now + ps, n))

    issue(0)
    while events:
        now, n = heapq.heappop(events)
        del running[nodes[n][0]]
        for parents in left.values():
            parents.discard(n)
        issue(now)
    return times


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("model", MODELS)
def test_each_kind_runs_its_first_node_that_is_ready(run, seed, model):
    """Random graphs of computation and remote accesses, whose times do not depend on a network."""
    draw = random.Random(seed)  # noqa: S311 - for tests
    traces, expected = [], {}
    for npu in range(2):
        nodes, graph = [], {}
        for n in range(1, 40):
            parents = draw.sample(range(1, n), min(n - 1, draw.randrange(3))) if draw.random() < 0.7 else []
            kind, micros, size = draw.randrange(3), draw.randrange(1, 10**6), draw.randrange(1, 10**8)
            graph[n] = kind, size * 1000 if kind == COMMUNICATION else micros * 10**6, parents
            if kind == COMMUNICATION:
                node = et.mem_node(n, f"{n}", et.NodeType.MEM_LOAD_NODE, size, tensor_loc=1, deps=parents)
            else:
                node = et.comp_node(n, f"{n}", duration_micros=micros, deps=parents, is_cpu_op=kind == CPU)
            nodes.append(node)
        traces.append(nodes)
        expected |= {(npu, f"{n}"): times for n, times in naive(graph).items()}
    code, rows, _ = run(traces, model)
    assert code == 0
    assert {key: (row["start_ps"], row["finish_ps"]) for key, row in rows.items()} == expected


@pytest.mark.parametrize("model", MODELS)
def test_collectives_of_other_groups_and_sends_take_turns(run, model):
    """Both are ready at once; of three that wait, the first in the trace is next, though it was ready last."""
    ends = {}
    for names in (["a"], ["a", "b"]):
        nodes = [et.coll_node(n, name, ALL_REDUCE, 1 << 20, pg_name=f"{n}") for n, name in enumerate(names, 1)]
        code, rows, _ = run([nodes, nodes], model)
        assert code == 0
        ends[len(names)] = [rows[0, name]["finish_ps"] for name in names]
    assert ends[2] == pytest.approx([ends[1][0], 2 * ends[1][0]], abs=ACK_PS if "packet" in model else 0)
    load = et.NodeType.MEM_LOAD_NODE
    nodes = [
        et.mem_node(1, "first", load, 1000, tensor_loc=1),
        et.comp_node(2, "compute", duration_micros=1),
        et.coll_node(3, "second", ALL_REDUCE, 1 << 20, deps=[2], pg_name="1"),
        et.send_node(4, "last", 0, 1, 1 << 10),
    ]
    other = [*nodes[:3], et.recv_node(4, "last", 0, 1, 1 << 10)]
    code, rows, _ = run([nodes, other], model)
    assert code == 0
    assert rows[0, "second"]["finish_ps"] == 1_000_000 + ends[1][0]
    assert rows[0, "last"]["start_ps"] == rows[0, "second"]["finish_ps"]
    assert rows[1, "last"]["start_ps"] == 0  # receives take no turn


@pytest.mark.parametrize("model", MODELS)
def test_members_in_other_orders_wait_for_each_other_for_ever(run, model):
    """As in ASTRA-sim, which hangs; here a line says who waits for whom."""
    traces = [
        [et.coll_node(n, f"{n}", ALL_REDUCE, 1 << 20, pg_name=g) for n, g in enumerate(order, 1)]
        for order in ("12", "21")
    ]
    code, _, printed = run(traces, model)
    assert code == 1
    assert re.search("npu 0 row 0: collective 0 of group 1(, lane 0 step 0,)? waits for npu 1", printed)


@pytest.mark.parametrize("model", MODELS[:-1])
def test_switches_that_reduce_take_no_turns(run, model):
    """The switch takes part in the sums of two pairs and of all four NPUs, whichever comes first."""
    traces = [
        [
            et.coll_node(1, "pair", ALL_REDUCE, 1 << 20, pg_name="1" if npu < 2 else "3"),
            et.coll_node(2, "all", ALL_REDUCE, 1 << 20, pg_name="4", deps=[1] if npu % 2 else []),
        ]
        for npu in range(4)
    ]
    more = model + '\n[system.collectives]\nall-reduce = "in-network"\n'
    code, rows, _ = run(traces, more)
    assert code == 0
    assert rows[0, "all"]["start_ps"] >= rows[0, "pair"]["finish_ps"]


@pytest.mark.parametrize("model", [*MODELS, MIXED])
def test_concurrent_collectives_take_turns_too(run, model):
    """With both keys collectives of one group run one after another, in the order of the trace, at every fidelity."""
    size, many = 1 << 20, 4
    nodes = [et.coll_node(n, f"{n}", ALL_REDUCE, size, pg_name="1") for n in range(1, many + 1)]
    ends = {}
    for concurrent, count in ((False, 1), (False, many), (True, many)):
        system = "[system]\none_at_a_time = true\n"
        code, rows, _ = run([nodes[:count]] * 2, model, f"{system}concurrent_collectives = {str(concurrent).lower()}\n")
        assert code == 0
        ends[concurrent, count] = [rows[0, f"{n}"]["finish_ps"] for n in range(1, count + 1)]
    alone = [n * ends[False, 1][0] for n in range(1, many + 1)]
    assert ends[True, many] == ends[False, many] == pytest.approx(alone, abs=many * ACK_PS if "packet" in model else 0)
