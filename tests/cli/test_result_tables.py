"""Tables of results: their columns, sums of messages and bytes, samples, and intervals against naive models."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from nadi import et, topologies, workload
from nadi.insight import node_times
from nadi.insight.node_times import bus_factor, covered_ps, find_collectives, npu_times
from nadi.simulation import schemas
from nadi.simulation.closed_forms import running
from tests.nonempty import nonempty
from tests.samples import each_value

ROOT = Path(__file__).parents[2]
TYPES = {"text": pa.string(), "word": pa.dictionary(pa.int32(), pa.string()), "bool": pa.bool_()}
INCAST = [[et.send_node(1, "send", src, 3, 1 << 20)] for src in range(3)]
INCAST.append([et.recv_node(node, "receive", node - 1, 3, 1 << 20) for node in (1, 2, 3)])
STAR = 'spec = "leaf-spine:leaves=1,hosts_per_leaf=4,spines=1,rate=100Gbps,delay=1us"'
SHALLOW = '[network]\nswitch = "shared-buffer"\nbuffer = "200kB"\necn_kmin = "5kB"\necn_kmax = "50kB"\n'


def check(file, schema, more=()):
    """Names, order, types and nulls of a file, by hand from the fields."""
    found = pq.read_table(file)
    expected = [field for field in schema.fields if not field.where or field.name in more]
    assert found.column_names == [field.name for field in expected]
    for field, column in nonempty(zip(expected, found.columns, strict=True)):
        assert column.type == (TYPES.get(field.type) or getattr(pa, field.type)()), field.name
        assert field.null or not column.null_count, field.name
    return found.num_rows


def test_files_of_a_run(nadi, write_run, tmp_path):
    """Three NPUs send to one over a shallow shared buffer, so that ports fill and links are paused."""
    group = et.coll_node(9, "sum", et.CollectiveCommType.ALL_REDUCE, 1 << 16)
    run = write_run([[*nodes, group] for nodes in INCAST], f'{SHALLOW}[output]\nsample = "10us"\n', STAR)
    nadi.ok("run", run, "--out", tmp_path / "out", "-q")
    of_packets = {*schemas.OF_EVERY_RUN, *schemas.LOGS} - {schemas.LIMITS}
    rows = {schema.name: check(tmp_path / "out" / schema.file, schema) for schema in of_packets}
    assert all(rows.values())
    assert sorted([*rows, "summary"]) == sorted(path.stem for path in (tmp_path / "out").iterdir())
    nadi.ok("run", run, "--out", tmp_path / "flows", "-q", "--fidelity", "flow")
    assert check(tmp_path / "flows" / schemas.LIMITS.file, schemas.LIMITS) > 0


def test_files_of_a_folded_run(nadi, write_run, step, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "MAX_ROWS", 0)
    run = write_run([step] * 4, '[network]\nfidelity = "closed-form"\n')
    nadi.ok("run", run, "--out", tmp_path / "out", "-q")
    assert check(tmp_path / "out" / schemas.NPUS.file, schemas.NPUS, more=["represented_by"]) == 4


def test_the_file_of_a_sweep(nadi, tmp_path):
    arguments = ["all-reduce", "-t", "ring:npus=4,rate=100Gbps,delay=1us", "--algorithm", "ring,direct"]
    nadi.ok("collective", *arguments, "-o", tmp_path / "out", "-q")
    assert check(tmp_path / "out" / schemas.SWEEP.file, schemas.SWEEP) == 2


@pytest.mark.parametrize("change", ["more", "fewer"])
def test_a_column_that_does_not_stand_in_the_schema_is_refused(change):
    columns = {field.name: np.zeros(2, np.int64) for field in schemas.QUEUES.fields}
    assert schemas.QUEUES.table(columns).num_rows == 2
    if change == "more":
        columns["depth"] = columns["bytes"]
    else:
        del columns["bytes"]
    with pytest.raises(KeyError, match=r"queues\.parquet: .*(depth|bytes)"):
        schemas.QUEUES.table(columns)


def test_numbers_that_the_type_cannot_hold_are_refused():
    columns = {field.name: np.zeros(1, np.int64) for field in schemas.NPUS.fields}
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        schemas.NPUS.table(columns | {"represented_by": np.array([1 << 40])})


def test_every_number_with_a_dimension_has_its_unit():
    """Times, sizes and rates say their units at the end of their names; what has none is counted or a share."""
    without = {field.name for schema in schemas.SCHEMAS for field in schema.fields if not field.unit}
    assert not {name for name in without if name.endswith(("time", "size", "rate", "delay", "bandwidth"))}
    units = {field.name: field.unit for schema in schemas.SCHEMAS for field in schema.fields}
    assert (units["time_ps"], units["bytes"], units["rate_bps"], units["busbw_Bps"]) == ("ps", "B", "bit/s", "B/s")


MODEL = 'source = "x"\nlayers = 2\nhidden = 512\nheads = 8\nvocab = 1024\nsequence = 128\nglobal_batch = 8\n'
IN_NETWORK = '[system.collectives]\nall-reduce = "in-network"\n'
MACHINES = {
    "NVLS": ("dgx-h100:npus=8", "dp8,gb8", ""),
    "NVLS on two hosts": ("dgx-h100:npus=16", "dp8,pp2,gb8", ""),
    "no NVLS": ("dgx-a100:npus=16", "tp2,pp2,dp4,gb8", ""),
    "a rack": ("gb200-nvl72:npus=8", "dp8,gb8", ""),
    "two jobs": ("dgx-h100:npus=16", "dp8,gb8", ""),
    "trees of switches": ("leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps", "tp2,dp4,gb8", IN_NETWORK),
}
NETWORKS = {
    "packets": 'reuse = "off"',
    "packets, reused": 'reuse = "exact"',
    "packets beside flows": '[network]\nflows = ["tp"]',
    "NVLink by closed forms": '[network]\nnvlink = "closed-form"',
    "flows": '[network]\nfidelity = "flow"',
    "coupled flows": '[network]\nfidelity = "flow"\ncollectives = "coupled"',
    "messages": '[network]\nfidelity = "analytical"',
    "messages alone": '[network]\nfidelity = "analytical"\ncongestion_aware = false',
    "closed forms": '[network]\nfidelity = "closed-form"',
    "two processes": 'backend = "processes"\nworkers = 2',
}


@pytest.fixture
def results(nadi, tmp_path):
    """Run a step, or two jobs with that step, on a machine; give the summary, and a function that reads a table."""

    def run(machine, network, *, jobs=1, more=""):
        spec, plan, collectives = MACHINES[machine]
        (tmp_path / "tiny.toml").write_text(MODEL)
        work = f'model = "tiny.toml"\nplan = "{plan}"\n'
        jobs_of = f'[[jobs]]\nname = "a"\n{work}[[jobs]]\nname = "b"\n{work}start = "5us"\n'
        engine = "" if NETWORKS[network].startswith("[") else "[engine]\n"
        text = f'{collectives}{engine}{NETWORKS[network]}\n{more}[topology]\nspec = "{spec}"\n[compute]\ngpu = "h100"\n'
        (tmp_path / "run.toml").write_text(text + (f"[workload]\n{work}" if jobs == 1 else jobs_of))
        nadi.ok("run", tmp_path / "run.toml", "-q", "--force", "--out", tmp_path / "out")
        return json.loads((tmp_path / "out/summary.json").read_text()), lambda name: pq.read_table(
            tmp_path / f"out/{name}.parquet"
        )

    return run


CASES = [case for case in itertools.product(MACHINES, NETWORKS) if case[0] != "two jobs"]


@pytest.mark.parametrize(("machine", "network"), sorted({*itertools.product(["NVLS"], NETWORKS), *each_value(CASES)}))
def test_rows_add_up(results, machine, network):
    summary, table = results(machine, network)
    flows = table("flows")
    left_out = summary.get("flows_without_rows", 0)
    assert len(flows) + left_out == summary["flows"]
    assert int(np.sum(flows["bytes"])) + summary.get("bytes_without_rows", 0) == summary["payload_bytes"]
    assert (left_out > 0) == (network == "coupled flows")
    graph = topologies.build(MACHINES[machine][0])
    ends = np.concatenate([np.asarray(flows["src"]), np.asarray(flows["dst"])])
    assert ends.max(initial=0) < graph.nodes
    # only an all-reduce by NVLS or in-network has messages of switches, all of them for a group
    reduces = machine != "no NVLS" and network not in {"coupled flows", "closed forms", "NVLink by closed forms"}
    is_switch = (np.asarray(flows["src"]) >= graph.npus) | (np.asarray(flows["dst"]) >= graph.npus)
    assert is_switch.any() == (reduces or (machine, network) == ("trees of switches", "NVLink by closed forms"))
    assert np.all(np.asarray(flows["group"])[is_switch] >= 0)
    # each NPU sends what its messages have: on the links that leave it, besides headers and acknowledgements
    links = table("links")
    sent = np.bincount(graph.link_src, np.asarray(links["tx_bytes"]), graph.nodes)
    if network not in {"coupled flows", "closed forms"}:
        of_messages = np.bincount(np.asarray(flows["src"]), np.asarray(flows["bytes"]), graph.nodes)
        assert np.all(sent[: graph.npus] >= of_messages[: graph.npus])
        assert sent[: graph.npus].sum() <= 1.5 * of_messages[: graph.npus].sum() + 200 * len(flows)


@pytest.mark.parametrize("network", ["packets", "packets, reused", "flows", "messages", "two processes"])
def test_jobs_add_up(results, network):
    """Two jobs on hosts with NVLS: bytes of jobs on links are those of links, and each message has a job."""
    summary, table = results("two jobs", network, jobs=2)
    flows, job_links = table("flows"), table("job_links").to_pydict()
    assert (len(flows), int(np.sum(flows["bytes"]))) == (summary["flows"], summary["payload_bytes"])
    assert flows["job"].null_count == 0
    of_links = np.bincount(job_links["link"], job_links["tx_bytes"], summary["links"])
    assert np.array_equal(of_links, np.asarray(table("links")["tx_bytes"]))
    same = {job: int(np.sum(flows.filter(np.asarray(flows["job"]) == job)["bytes"])) for job in "ab"}
    assert same["a"] == same["b"] == summary["payload_bytes"] / 2
    sent = {job: sum(b for b, own in zip(job_links["tx_bytes"], job_links["job"], strict=True) if own == job)
            for job in "ab"}  # fmt: skip
    assert sent["a"] == sent["b"]


@pytest.mark.parametrize("network", ["packets", "flows"])
def test_readers_take_messages_of_switches(results, nadi, tmp_path, network):
    """Commands that read messages, samples and limits do not take a switch for an NPU."""
    sample = '[output]\nsample = "10us"\n' if network == "packets" else ""
    summary, table = results("NVLS on two hosts", network, more=sample)
    for name in nonempty(["samples"] if network == "packets" else ["limits"]):
        assert max(table(name)["link"].to_pylist()) < summary["links"]
    written = {"timeline": "t.pftrace", "report": "r.html"}
    for command in (["explain"], ["timeline"], ["report"], ["net", "show"], ["net", "slowdown"]):
        out = ["--out", tmp_path / written[command[0]]] if command[0] in written else []
        nadi.ok(*command, tmp_path / "out", *out)


LEAVES = "leaf-spine:leaves=3,hosts_per_leaf=4,spines=2,rate=100Gbps"
WEB = 'traffic = { sizes = "hadoop", load = 0.6, duration = "100us" }\n'
SWITCHES = {
    "output-queued": "",
    "shared-buffer": 'switch = "shared-buffer"\ncongestion_control = "dcqcn"\n',
    "cut-through": "cut_through = true\n",
}


@pytest.fixture
def sampled(nadi, tmp_path):
    """Columns of samples.parquet, links.parquet and the summary of a run."""

    def run(work, topology=LEAVES, network="", more=(), name="out"):
        path = tmp_path / "run.toml"
        path.write_text(f'[topology]\nspec = "{topology}"\n[network]\n{network}{work}')
        nadi.ok("run", path, "--out", tmp_path / name, *more)
        folder = tmp_path / name
        tables = [
            {column: table[column].to_numpy() for column in table.column_names if column not in {"src", "dst"}}
            for table in (pq.read_table(folder / f"{table}.parquet") for table in ("samples", "links"))
        ]
        return *tables, json.loads((folder / "summary.json").read_text())

    return run


@pytest.mark.parametrize("kind", SWITCHES)
@pytest.mark.parametrize("interval_ps", [700_000, 10_000_000])
def test_samples_add_up_to_the_bytes_of_each_link(sampled, kind, interval_ps):
    work = f"[workload]\n{WEB}"
    samples, links, _ = sampled(work, network=SWITCHES[kind], more=["--set", f"output.sample={interval_ps}ps"])
    assert np.array_equal(np.bincount(samples["link"], samples["tx_bytes"], len(links["tx_bytes"])), links["tx_bytes"])
    assert np.all(samples["time_ps"] % interval_ps == 0)
    assert len(np.unique(samples["link"] * 10**12 + samples["time_ps"])) == len(samples["link"])
    rate = samples["tx_bytes"] * 8 / (interval_ps / 1e12)
    assert rate.max() <= 100e9 * 1.0001
    assert rate.max() > 90e9
    longest = np.zeros(len(links["tx_bytes"]), np.int64)
    np.maximum.at(longest, samples["link"], samples["queue_bytes"])
    assert longest.max() > 10_000
    if kind == "shared-buffer":
        assert np.array_equal(longest, links["buffered_bytes"])


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("kind", SWITCHES)
@pytest.mark.parametrize("workers", [2, 3])
def test_samples_do_not_depend_on_workers(sampled, kind, workers):
    work, more = f"[workload]\n{WEB}", ["--set", "output.sample=2us"]
    one, _, _ = sampled(work, network=SWITCHES[kind], more=more)
    other, _, summary = sampled(
        work, network=SWITCHES[kind], more=[*more, "--set", f"engine.workers={workers}"], name="o"
    )
    assert summary["threads"] == workers
    for column in nonempty(one):
        assert np.array_equal(one[column], other[column])


def test_rates_and_queues_of_an_incast(sampled, tmp_path):
    """Three senders of 1 MB: the receiver's link is full from the first packet to the last, and its queue drains."""
    (tmp_path / "x.csv").write_text("src,dst,bytes,start_us\n" + "".join(f"{src},3,999000,0\n" for src in range(3)))
    work = '[workload]\ntraffic = { file = "x.csv" }\n'
    spec, network = "switch:npus=4,rate=100Gbps,delay=1us", 'mtu = "999B"\nheader = "1B"\nack = "1B"\nwindow = "1GB"\n'
    samples, _, summary = sampled(work, spec, network, ["--set", "output.sample=10us"])
    down = samples["link"] == samples["link"][np.argmax(samples["queue_bytes"])]
    at_us, sent, queue = (samples[name][down] for name in ("time_ps", "tx_bytes", "queue_bytes"))
    at_us = at_us // 10**6
    assert summary["finish_time_ps"] >= 240 * 10**6
    full = (at_us >= 10) & (at_us < 230)
    assert sent[full] == pytest.approx(np.full(full.sum(), 125_000), abs=1)
    # two of the three senders' bytes wait: 25 kB more per us while they send, and 12.5 kB less later
    arrived_us = 80
    for begin_us, bytes_waiting in nonempty(zip(at_us[full], queue[full], strict=True)):
        end_us = begin_us + 10
        if end_us < arrived_us:
            assert bytes_waiting == pytest.approx(25_000 * (end_us - 1), rel=0.05)
        elif begin_us < arrived_us:
            assert bytes_waiting == pytest.approx(25_000 * arrived_us, rel=0.05)


def test_a_log_that_fills_up_is_emptied(sampled):
    """More entries than the log holds: two per packet and link, at an interval shorter than a packet."""
    work = '[workload]\ntraffic = { sizes = "64KiB", load = 0.9, duration = "2ms" }\n'
    network = 'mtu = "1000B"\n'
    samples, links, _ = sampled(work, network=network, more=["--set", "output.sample=100ns"])
    assert len(samples["link"]) > 4 * (1 << 14)
    assert np.array_equal(np.bincount(samples["link"], samples["tx_bytes"], len(links["tx_bytes"])), links["tx_bytes"])


def test_a_run_has_the_same_digest_with_and_without_samples(nadi, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f'[topology]\nspec = "{LEAVES}"\n[workload]\n{WEB}')
    without = nadi("run", path, "--out", tmp_path / "without", "--json").document
    with_samples = nadi("run", path, "--set", "output.sample=1us", "--out", tmp_path / "with", "--json").document
    assert with_samples["digest"] == without["digest"]
    assert not (tmp_path / "without" / "samples.parquet").exists()


def test_the_pages_draw_samples(nadi, sampled, tmp_path):
    sampled(f"[workload]\n{WEB}", more=["--set", "output.sample=1us"])
    nadi.ok("net", tmp_path / "out", "-o", tmp_path / "net.html")
    nadi.ok("report", tmp_path / "out")
    for page in (tmp_path / "net.html", tmp_path / "out" / "report.html"):
        assert "sending rates of the" in page.read_text(encoding="utf-8")
        assert "in intervals of 1 µs" in page.read_text(encoding="utf-8")


def test_replayed_collectives_are_simulated_where_links_are_sampled(nadi, tmp_path):
    """NVLink's links have their bytes in samples, too."""
    path = tmp_path / "run.toml"
    path.write_text(
        '[topology]\ncluster = "dgx-h100-superpod"\ngpus = 16\n[workload]\nmodel = "gpt3-125m"\nplan = "tp4,dp4,gb8"\n'
    )
    document = nadi("run", path, "--set", "output.sample=100us", "--out", tmp_path / "out", "--json", "-q").document
    assert document["network"] == "packet"
    samples, links = (pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in ("samples", "links"))
    sums = np.bincount(samples["link"].to_numpy(), samples["tx_bytes"].to_numpy(), len(links))
    assert np.array_equal(sums, links["tx_bytes"].to_numpy())


INTERVALS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40), st.integers(0, 12)), max_size=40)


def naive_covered(intervals, owner):
    return len({t for o, start, length in intervals if o == owner for t in range(start, start + length)})


@given(INTERVALS)
def test_covered_time_is_the_union(intervals):
    owner, start, length = (np.array([i[k] for i in sorted(intervals)], np.int64) for k in range(3))
    found = covered_ps(owner, start, start + length, 5)
    assert found.tolist() == [naive_covered(intervals, o) for o in range(5)]


def test_covered_time_of_long_runs_does_not_overflow():
    owner = np.arange(3000)
    start = np.full(3000, 2**61)
    assert np.all(covered_ps(owner, start, start + 7, 3000) == 7)


def _program(kinds_of_npu):
    """A program with these node kinds (7: compute on the CPU), as far as the analysis looks at it."""
    ptr = np.cumsum([0, *map(len, kinds_of_npu)])
    blank = workload.collective_program("barrier", len(kinds_of_npu), 0)
    return ptr, blank._replace(
        trace_of_npu=np.arange(len(kinds_of_npu), dtype=np.int32),
        trace_ptr=ptr,
        node_kind=np.concatenate([np.array(kinds, np.int8) % 6 for kinds in kinds_of_npu]),
        node_lane=np.concatenate([np.array(kinds, np.int8) < 6 for kinds in kinds_of_npu]),
    )


NODES = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 4, 5, 7]), st.integers(0, 30), st.integers(0, 12)), max_size=8)


@given(st.lists(NODES, min_size=1, max_size=4), st.integers(1, 9))
def test_times_of_npus(nodes_of_npu, most_rows):
    ptr, program = _program([[kind for kind, _, _ in nodes] for nodes in nodes_of_npu])
    nodes = [node for own in nodes_of_npu for node in own]
    start = np.array([s for _, s, _ in nodes], np.int64)
    finish = np.array([s + length for _, s, length in nodes], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_times, "_MAX_ROWS", most_rows)  # blocks must not matter
        times = npu_times(program, ptr, start, finish, 100)
    for npu, own in nonempty(enumerate(nodes_of_npu)):
        busy = {
            kinds: {t for k, s, length in own if k in kinds for t in range(s, s + length)}
            for kinds in ((1,), (7,), (2,), (3, 4, 5))
        }
        compute, cpu, memory, communication = busy.values()
        assert times.compute_ps[npu] == len(compute)
        assert times.cpu_ps[npu] == len(cpu)
        assert times.memory_ps[npu] == len(memory)
        assert times.communication_ps[npu] == len(communication)
        assert times.exposed_ps[npu] == len(communication - compute)
        assert times.host_ps[npu] == len(cpu - compute - memory - communication)
        assert times.idle_ps[npu] == 100 - len(compute | cpu | memory | communication)
        assert times.finish_ps[npu] == max((s + length for _, s, length in own), default=0)


def test_collectives_are_found_by_group_and_place():
    program = workload.collective_program("all-reduce", 3, 300, "ring")
    start, finish = np.array([5, 9, 7]), np.array([20, 22, 21])
    found = find_collectives(program, np.arange(4), start, finish)
    assert [int(column[0]) for column in (found.group, found.seq, found.members, found.size_bytes)] == [0, 0, 3, 300]
    assert (found.start_ps[0], found.ready_ps[0], found.finish_ps[0], found.time_ps[0]) == (5, 9, 22, 13)


def test_no_collectives():
    program = workload.pairs_program([1, 0], 10)
    found = find_collectives(program, np.array([0, 2, 4]), np.zeros(4, np.int64), np.ones(4, np.int64))
    assert len(found.group) == 0


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor("all-reduce", 8) == 2 * 7 / 8
    assert bus_factor("all-gather", 8) == bus_factor("all-to-all", 8) == bus_factor("reduce-scatter", 8) == 7 / 8
    assert bus_factor("broadcast", 8) == bus_factor("reduce", 8) == 1
