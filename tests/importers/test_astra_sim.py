"""Files of ASTRA-sim: units, names and conventions that differ from Nadi's, and complaints in one line."""

import json
import re

import pytest

from nadi import et
from nadi.configuration.run_file import load_config, put_over
from nadi.errors import ConfigError
from nadi.importers.astra_sim.files import MemoryFile, SystemFile
from nadi.importers.files import find_named
from tests.running import simulate
from tests.topologies.test_simulator_files import SMALL_TREE

COLL = et.CollectiveCommType


def finish_ns(sections):
    results = simulate(load_config(None, sections=sections)).results
    return results.finish_time_ps / 1000


def test_network_bandwidths_are_binary_and_memory_bandwidths_decimal(astra_sim):
    """On a ring of 4: 6 steps of floor(500 + S / 4 / (50 x 2^30 B/s)) + 10, and 3 x 3 floor(S / 4 / 1600) to add."""
    sections, _ = astra_sim().sections()
    assert sections["topology"] == {"spec": "stack:dims=Ring(4),rates=50GiB/s,delays=500ns"}
    assert sections["network"]["reduction_bandwidth"] == "1600GB/s"
    part = (1 << 20) // 4
    step = int(500 + part / (50 * 2**30 / 1e9)) + 10
    assert finish_ns(sections) == 6 * step + 3 * 3 * (part // 1600) + 10


@pytest.mark.parametrize(("bandwidth", "rate"), [(12.3, 105656195482), (0.5, 4294967296)])
def test_bandwidths_that_are_no_whole_number(astra_sim, bandwidth, rate):
    sections, _ = astra_sim(network={"bandwidth": [bandwidth], "latency": [936.25]}).sections()
    spec = sections["topology"]["spec"]
    assert load_config(None, sections=sections).topology.spec == spec
    assert f"rates={rate / 1e9:.9f}".rstrip("0") in spec
    assert spec.endswith("Gbps,delays=936.25ns")


def test_all_gather_size_is_the_contribution(astra_sim):
    """Each of 3 steps moves all of comm_size."""
    files = astra_sim(nodes=[et.coll_node(1, "all_gather", COLL.ALL_GATHER, 1 << 20)])
    step = int(500 + (1 << 20) / (50 * 2**30 / 1e9)) + 10
    assert finish_ns(files.sections()[0]) == 3 * step + 10


def test_several_dimensions(astra_sim):
    network = {"topology": ["Ring", "Switch"], "npus_count": [4, 2], "bandwidth": [50, 25], "latency": [500, 1000]}
    implementations = {"all-reduce-implementation": ["direct2", "halvingDoubling"]}
    others = dict.fromkeys(("all-gather-implementation", "reduce-scatter-implementation"))
    files = astra_sim(implementations | others | {"all-to-all-implementation": ["oneDirect"]}, network)
    sections, warning = files.sections()
    assert sections["topology"]["spec"] == "stack:dims=Ring(4)_Switch(2),rates=50GiB/s_25GiB/s,delays=500ns_1us"
    assert sections["network"]["congestion_aware"] is False
    assert sections["system"]["collectives"] == {
        "all-reduce": "grid:algorithms=direct:window=2/halving-doubling",
        "all-to-all": "direct",
    }
    assert warning == ""
    with pytest.raises(ConfigError, match="found 1 algorithms for 2 dimensions; expected one for each"):
        astra_sim(implementations | {"all-reduce-implementation": ["ring"]}, network).sections()


def test_baseline_reduces_the_whole_buffer_in_each_dimension(astra_sim):
    """By hand: a ring of 4, then two NPUs on a switch, each with all of 1 MiB."""
    network = {"topology": ["Ring", "Switch"], "npus_count": [4, 2], "bandwidth": [50, 25], "latency": [500, 1000]}
    rings = {f"{kind}-implementation": ["ring"] * 2 for kind in ("all-reduce", "all-gather", "reduce-scatter")}
    found_ns = {}
    for optimization in ("baseline", "localBWAware"):
        system = rings | {"all-to-all-implementation": None, "collective-optimization": optimization}
        found_ns[optimization] = finish_ns(astra_sim(system, network).sections()[0])

    def ring_ns(size, npus, latency_ns, gib_s, steps, additions):
        part = size // npus
        step = int(latency_ns + part / (gib_s * 2**30 / 1e9)) + 10
        return steps * step + additions * 3 * (part // 1600)

    whole = 1 << 20
    assert found_ns["baseline"] == ring_ns(whole, 4, 500, 50, 6, 3) + 10 + ring_ns(whole, 2, 2000, 25, 2, 1) + 10
    halves = ring_ns(whole, 4, 500, 50, 3, 3) + ring_ns(whole, 4, 500, 50, 3, 0)
    assert found_ns["localBWAware"] == halves + 3 * 10 + ring_ns(whole // 4, 2, 2000, 25, 2, 1)


def test_endpoint_delay_queues_and_policy(astra_sim):
    system = {"endpoint-delay": 7, "active-chunks-per-dimension": 5, "scheduling-policy": "EXPLICIT"}
    files = astra_sim(system | {"preferred-dataset-splits": 8})
    sections, _ = files.sections(injection_scale=2.5, queues_per_dim=2, rendezvous=True)
    assert sections["network"]["endpoint_delay"] == "17ns"
    assert sections["system"] | {"collectives": 0} == {
        "collectives": 0,
        "one_at_a_time": True,
        "dataset_splits": 8,
        "phases_per_dimension": 6,  # each of two queues runs 3 of its chunks
        "scheduling": "priority",
        "rendezvous": 1,
        "rendezvous_control": 8192,
    }


@pytest.mark.parametrize("name", ["empty", '"empty"', "/no/such/folder/empty/groups.json", "nonempty.json"])
def test_a_groups_path_that_contains_empty_means_none(astra_sim, name):
    assert "groups" not in astra_sim().sections(groups=name)[0]["workload"]


@pytest.mark.parametrize("dims", [[8], [2, 4]])
def test_groups_are_rings_whatever_the_implementation(astra_sim, dims):
    """Of four of eight NPUs, in one dimension also by hand; a group of all NPUs takes the implementation."""
    network = {"topology": ["Ring"] * len(dims), "npus_count": dims}
    network |= {"bandwidth": [50.0] * len(dims), "latency": [500.0] * len(dims)}
    native = ["direct"] * len(dims)
    system = dict.fromkeys(("all-reduce-implementation", "all-gather-implementation"), native)
    system |= dict.fromkeys(("reduce-scatter-implementation", "all-to-all-implementation"))
    alone = astra_sim(system, network).sections(congestion_aware=False)[0]
    found_ns = {}
    for own in (range(0, 8, 2), range(8)):
        nodes = [et.coll_node(1, "all_reduce", COLL.ALL_REDUCE, 1 << 20, pg_name="7")]
        files = astra_sim(system, network, nodes=nodes)
        for npu in set(range(8)) - set(own):
            et.write_trace(files.folder / f"work.{npu}.et", et.metadata(), [et.comp_node(1, "nothing")])
        (files.folder / "groups.json").write_text(json.dumps({"7": list(own)}))
        sections, _ = files.sections(groups=str(files.folder / "groups.json"), congestion_aware=False)
        found_ns[len(own)] = finish_ns(sections)
        if len(own) == 4:
            assert found_ns[4] == finish_ns(put_over(sections, {"system": {"collectives": {"all-reduce": "ring"}}}))
    if len(dims) == 1:  # neighbours are two hops away
        part = (1 << 20) // 4
        assert found_ns[4] == 6 * (int(2 * 500 + part / (50 * 2**30 / 1e9)) + 10) + 3 * 3 * (part // 1600) + 10
    for npu in range(8):
        et.write_trace(files.folder / f"work.{npu}.et", et.metadata(), [et.coll_node(1, "a", COLL.ALL_REDUCE, 1 << 20)])
    assert found_ns[8] == finish_ns(alone)


def test_a_point_to_point_message_takes_the_endpoint_delay(astra_sim, nadi):
    """ASTRA-sim's takes floor(500 + S / B) alone: a difference that the page of equivalence names."""
    files = astra_sim(nodes=[et.send_node(1, "s", 0, 1, 1 << 20)])
    et.write_trace(files.folder / "work.1.et", et.metadata(), [et.recv_node(1, "r", 0, 1, 1 << 20)])
    for npu in (2, 3):
        et.write_trace(files.folder / f"work.{npu}.et", et.metadata(), [et.comp_node(1, "nothing")])
    done = nadi("astra-sim", *files.arguments)
    arrival = int(500 + (1 << 20) / (50 * 2**30 / 1e9))
    assert f"sys[1] finished, {arrival + 10} cycles" in done.out
    assert f"sys[0] finished, {arrival - 500} cycles" in done.out  # the last byte has left


def test_the_workload_is_a_prefix(astra_sim, nadi):
    """A folder or a file of that name does not matter, further traces are ignored, and no rank may be missing."""
    files = astra_sim()
    cycles = finish_ns(files.sections()[0])
    assert files.sections()[0]["workload"]["traces"] == str(files.folder / "work")
    (files.folder / "work").mkdir()
    (files.folder / "work" / "other.0.et").write_bytes(b"")
    assert finish_ns(files.sections()[0]) == cycles
    (files.folder / "work" / "other.0.et").unlink()
    (files.folder / "work").rmdir()
    (files.folder / "work").write_text("something else")
    assert finish_ns(files.sections()[0]) == cycles
    (files.folder / "work.4.et").write_bytes((files.folder / "work.0.et").read_bytes())
    assert finish_ns(files.sections()[0]) == cycles
    (files.folder / "work.2.et").unlink()
    done = nadi.refuse("astra-sim", *files.arguments)
    assert "work.2.et: no such file" in done.err
    assert "expected the prefix of traces of 4 NPUs" in done.err


def test_keys_of_its_files_are_settings_of_a_comparison(astra_sim, nadi, tmp_path):
    """They follow from no key that the user set by another name."""
    files = astra_sim()
    first = nadi("astra-sim", *files.arguments, "--out", tmp_path / "a")
    files = astra_sim({"endpoint-delay": 20}, {"bandwidth": [25.0]})
    second = nadi("astra-sim", *files.arguments, "--out", tmp_path / "b", "--set", "engine.seed=4")
    assert (first.code, second.code) == (0, 0)
    rows = nadi("compare", tmp_path / "a", tmp_path / "b", "--json").document["settings"]
    assert {"topology.spec", "network.endpoint_delay", "engine.seed"} <= {
        row["key"] for row in rows if not row["is_derived"]
    }


def test_a_rendezvous_needs_packets(astra_sim, nadi):
    files = astra_sim()
    options = [*files.arguments, "--rendezvous-protocol=true"]
    assert "options: --rendezvous-protocol (needs" in nadi("astra-sim", *options).err
    cycles = []
    for more in ([], ["--rendezvous-protocol=true"]):
        done = nadi("astra-sim", *files.arguments, "--set", "network.fidelity=packet", *more)
        cycles.append(int(re.search(r"sys\[0\] finished, (\d+) cycles", done.out)[1]))
    assert cycles[0] < cycles[1]
    assert nadi("astra-sim", *files.arguments, "--rendezvous-protocol=maybe").code == 2


def test_keys_without_effect_are_named_once(astra_sim, nadi):
    system = {"boost-mode": 1, "trace-enabled": 1, "L": 3, "peak-perf": 900, "new-key": 5, "roofline-enabled": 0}
    files = astra_sim(system | {"model-shared-bus": 0}, {"more": 1})
    done = nadi.ok("astra-sim", *files.arguments, "--comm-scale=2")
    (line,) = [line for line in done.err.splitlines() if "warning" in line]
    assert line == (
        f"nadi: warning: without effect here: {files.folder}/network.yml: more; "
        f"{files.folder}/system.json: boost-mode, trace-enabled, L, peak-perf, new-key; options: --comm-scale"
    )


def test_lines_of_a_trace_with_computation(astra_sim, nadi):
    """2 us of computation beside a collective, then 3 us alone, and a CPU operator: by hand."""
    nodes = [
        et.comp_node(1, "a", duration_micros=2),
        et.coll_node(2, "all_reduce", COLL.ALL_REDUCE, 1 << 20),
        et.comp_node(3, "b", duration_micros=3, deps=[2]),
        et.comp_node(4, "c", duration_micros=1, is_cpu_op=True),
    ]
    files = astra_sim(nodes=nodes)
    done = nadi("astra-sim", *files.arguments, f"--logging-folder={files.folder}/log")
    alone = round(finish_ns(astra_sim().sections()[0]))
    wall = alone + 3000
    expected = [
        f"[workload] sys[0] finished, {wall} cycles, exposed communication {wall - 5000} cycles.",
        f"[statistics] sys[0], Wall time: {wall}",
        "[statistics] sys[0], CPU time: 1000",
        "[statistics] sys[0], GPU time: 5000",
        f"[statistics] sys[0], Comm time: {alone}",
        f"[statistics] sys[0], Total compute-communication overlap: {5000 + alone - wall}",
    ]
    assert [line for line in done.out.splitlines() if "sys[0]" in line] == expected
    assert (files.folder / "log" / "log.log").read_text().splitlines()[:6] == expected
    assert "time of each NPU" in done.out


def test_roofline(astra_sim, nadi):
    """Of 10 TFLOPS and 1,600 GB/s: 1 GFLOP of 10 MB takes 100 us (compute), 1 MFLOP of 16 MB 10 us (memory)."""
    nodes = [
        et.comp_node(1, "compute", num_ops=10**9, tensor_size=10**7),
        et.comp_node(2, "memory", num_ops=10**6, tensor_size=16 * 10**6, deps=[1]),
    ]
    files = astra_sim({"roofline-enabled": 1, "peak-perf": 10}, nodes=nodes)
    done = nadi("astra-sim", *files.arguments)
    assert "sys[0] finished, 110000 cycles, exposed communication 0 cycles." in done.out
    percent = 100 / 110_001
    assert f"sys[0], Compute bound percentage: {100_000 * percent:.3f}%" in done.out
    compute, memory = 100_000 + 10_000 * 0.01, 100_000 * (1e13 / 100 / 1.6e12) + 10_000
    assert f"sys[0], Average compute utilization: {compute * percent:.3f}%" in done.out
    assert f"sys[0], Average memory utilization: {memory * percent:.3f}%" in done.out
    assert f"sys[0], Average operation intensity: {(100_000 * 100 + 10_000 / 16) / 110_001:.3f}" in done.out


FIRST_NS, SECOND_NS, THIRD_NS, FOURTH_NS = 12_000, 22_000, 32_000, 42_000
"""Times of an access of each NPU: 2,000 ns, and 1 to 4 MB at 100 GB/s."""
MEMORIES = {
    "PER_NPU_MEMORY_EXPANSION": (1, [2 * FIRST_NS, 2 * SECOND_NS, 2 * THIRD_NS, 2 * FOURTH_NS]),
    "PER_NODE_MEMORY_EXPANSION": (
        2,
        [
            FIRST_NS + SECOND_NS + FIRST_NS,
            2 * (FIRST_NS + SECOND_NS),
            THIRD_NS + FOURTH_NS + THIRD_NS,
            2 * (THIRD_NS + FOURTH_NS),
        ],
    ),
    "MEMORY_POOL": (4, [120_000, 142_000, 174_000, 216_000]),  # in two rounds of 108 us, one after another
}


def write_accesses(files, npu, size_bytes):
    """Two accesses of an NPU, the second after the first."""
    nodes = [et.mem_node(1, "load", et.NodeType.MEM_LOAD_NODE, size_bytes, tensor_loc=1)]
    nodes.append(et.mem_node(2, "store", et.NodeType.MEM_STORE_NODE, size_bytes, tensor_loc=1, deps=[1]))
    et.write_trace(files.folder / f"work.{npu}.et", et.metadata(), nodes)


@pytest.mark.parametrize(("kind", "sharers", "cycles"), [(kind, *case) for kind, case in MEMORIES.items()])
@pytest.mark.parametrize("fidelity", ["analytical", "flow"])
def test_remote_memories_serve_one_access_at_a_time(astra_sim, nadi, kind, sharers, cycles, fidelity):
    """By hand, as AnalyticalRemoteMemory.cc queues: an NPU's second access waits behind all that have asked before."""
    memory = {"memory-type": kind, "remote-mem-latency": 2000, "remote-mem-bw": 100}
    memory |= {"num-nodes": 2, "num-npus-per-node": 2}
    files = astra_sim(remote_memory_configuration=memory)
    for npu in range(4):
        write_accesses(files, npu, 10**6 * (npu + 1))
    sections, warning = files.sections(remote_memory=files.folder / "remote-memory-configuration.json")
    assert (sections["memory"]["remote"], sections["memory"]["remote_sharers"], warning) == ("npu", sharers, "")
    done = nadi("astra-sim", *files.arguments, "--set", f"network.fidelity={fidelity}")
    assert re.findall(r"sys\[\d\] finished, (\d+) cycles", done.out) == [str(ns) for ns in cycles], done.err
    assert f"sys[3], Remote mem time: {cycles[3]}" in done.out  # with the time in which it waits


def test_times_of_remote_memories_are_whole_nanoseconds(astra_sim):
    """2,000 ns and floor(12,345 / 7) = 1,763 ns."""
    memory = {"memory-type": "MEMORY_POOL", "remote-mem-latency": 2000, "remote-mem-bw": 7}
    load = et.mem_node(1, "load", et.NodeType.MEM_LOAD_NODE, 12_345, tensor_loc=1)
    files = astra_sim(nodes=[load], remote_memory_configuration=memory)
    sections, _ = files.sections(remote_memory=files.folder / "remote-memory-configuration.json")
    assert finish_ns(sections) == 4 * 3_763


def test_no_remote_memory(astra_sim):
    files = astra_sim(remote_memory_configuration={"memory-type": "NO_MEMORY_EXPANSION", "num-nodes": 2, "more": 1})
    sections, warning = files.sections(remote_memory=files.folder / "remote-memory-configuration.json")
    assert sections["memory"] == {"remote": "none"}
    assert warning.endswith("remote-memory-configuration.json: more")


def test_the_written_run_file_is_the_same_run(astra_sim, nadi):
    files = astra_sim()
    run_file = files.folder / "elsewhere" / "run.toml"
    run_file.parent.mkdir()
    done = nadi("astra-sim", *files.arguments, f"--write={run_file}")
    assert (done.code, done.out) == (0, f"run file: {run_file}\n")
    assert nadi("run", run_file, "--json").document["finish_time_ps"] == 1000 * finish_ns(files.sections()[0])


def test_a_written_run_file_counts_from_any_folder(astra_sim, nadi, monkeypatch):
    """Relative paths of the options count from the current folder; --set is in the file, too."""
    files = astra_sim({"all-reduce-implementation-custom": ["work"], "all-reduce-implementation": None})
    (files.folder / "groups.json").write_text('{"1": [0, 1]}')
    (files.folder / "elsewhere").mkdir()
    monkeypatch.chdir(files.folder)
    options = ["--workload-configuration=work", "--comm-group-configuration=groups.json", *files.arguments[1:]]
    nadi.ok("astra-sim", *options, "--write=elsewhere/run.toml", "--set", "network.endpoint_delay=1us")
    config = load_config(files.folder / "elsewhere" / "run.toml")
    assert (config.workload.traces, config.workload.groups) == (files.folder / "work", files.folder / "groups.json")
    assert config.system.collectives["all-reduce"] == f"custom:file={files.folder}/work"
    assert config.network.endpoint_delay == 10**6
    assert config.network.fidelity == "analytical"


@pytest.mark.parametrize("name", ["microAllReduce", "Resnet50_DataParallel", "DLRM_HybridParallel"])
def test_layers_of_astra_sim_1(shared_data, astra_sim, nadi, tmp_path, name):
    """The text workloads that ASTRA-sim ships run in memory, and from the run file that is written of them."""
    files = astra_sim()
    text = shared_data / "astra-sim" / "text_workloads" / f"{name}.txt"
    arguments = [f"--workload-configuration={text}", *files.arguments[1:]]
    done = nadi("astra-sim", *arguments)
    cycles = re.search(r"sys\[3\] finished, (\d+) cycles", done.out)
    assert cycles is not None, done.err
    nadi.ok("astra-sim", *arguments, f"--write={tmp_path}/layers.toml")
    document = nadi("run", tmp_path / "layers.toml", "--json").document
    assert document["finish_time_ps"] // 1000 == int(cycles[1])


def test_shipped_custom_collective(shipped):
    """Its path starts at ASTRA-sim's folder. By hand: 14 messages of 128 KiB, and 7 us for each of 7 reductions."""
    done = shipped("all_reduce", 8, system="custom_collectives/custom_collective")
    step = int(500 + (1 << 17) / (50 * 2**30 / 1e9))
    assert re.findall(r"sys\[\d\] finished, (\d+) cycles", done.out) == [str(14 * step + 7 * 7000)] * 8


def test_every_key_of_the_typed_schemas_is_known(shared_data):
    """No key that astra-sim-service knows counts as unknown."""
    names = re.findall(
        r"x-astra-sim-name: (\S+)", (shared_data / "formats/astra-sim-service/system_configuration.yaml").read_text()
    )
    assert len(names) == 25
    known = {field.alias for field in SystemFile.model_fields.values()}
    assert set(names) <= known
    text = (shared_data / "formats/astra-sim-service/remote_memory_configuration.yaml").read_text()
    assert set(re.findall(r"x-astra-sim-name: (\S+)", text)) <= {f.alias for f in MemoryFile.model_fields.values()}


def test_the_htsim_back_end(astra_sim, nadi):
    """The tree is htsim's, the dimensions are the network's; the protocol is not TCP, which the warning says."""
    files = astra_sim()
    (files.folder / "tree.topo").write_text(SMALL_TREE)
    options = ["--htsim-proto=tcp", "--htsim_opts", "-topo", files.folder / "tree.topo", "-o", "x.dat", "UNCOUPLED"]
    done = nadi.ok("astra-sim", *files.arguments, *options)
    assert "bandwidth, latency, TCP (windows of a round trip, no losses), -o, UNCOUPLED" in done.err
    sections, _ = files.sections(htsim=("--htsim_opts", "-topo", str(files.folder / "tree.topo"), "-nodes", "4"))
    graph = simulate(load_config(None, sections=sections)).graph
    assert (graph.npus, graph.dims, set(graph.link_rate_bps.tolist())) == (4, (4,), {200 * 10**9})


def test_shipped_tree_of_htsim(shared_data, shipped):
    tree = shared_data / "astra-sim" / "network" / "htsim" / "8nodes.topo"
    done = shipped("all_reduce", 8, "--htsim_opts", "-topo", tree)
    assert len(re.findall(r"sys\[\d\] finished", done.out)) == 8


def test_named_files_are_searched_around_the_file_that_names_them(tmp_path):
    """From the current folder, then from folders above; a bare name only beside the file."""
    naming = tmp_path / "a" / "b" / "system.json"
    naming.parent.mkdir(parents=True)
    for name in ("a/x/y.0.et", "top.0.et", "a/b/beside.0.et"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = {name: find_named(name, naming, ".0.et") for name in ("examples/x/y", "top", "../../z/beside", "none")}
    assert found["examples/x/y"] == tmp_path / "a" / "x" / "y"
    assert found["../../z/beside"] == tmp_path / "a" / "b" / "beside"
    assert (str(found["top"]), str(found["none"])) == ("top", "none")
    assert find_named(str(tmp_path / "top"), naming, ".0.et") == tmp_path / "top"


def test_a_network_of_many_brackets_is_one_line(astra_sim, nadi):
    files = astra_sim()
    (files.folder / "network.yml").write_text("[" * 100_000)
    assert "expected a network of ASTRA-sim" in nadi.refuse("astra-sim", *files.arguments).err
