"""Files of ASTRA-sim's ns-3 back end: its configuration as text and JSON, physical topology and logical dimensions."""

import json
import re

import pytest

from nadi import et, topologies
from nadi.configuration.run_file import load_config
from tests.running import simulate

CONFIG = """ENABLE_QCN 1
PACKET_PAYLOAD_SIZE 1000
TOPOLOGY_FILE ../../scratch/topology/{topology}
CC_MODE {mode}
KMAX_MAP 2 10000000000 400 400000000000 3200
KMIN_MAP 2 10000000000 100 400000000000 800
PMAX_MAP 2 10000000000 0.2 400000000000 0.2
BUFFER_SIZE 32
"""
STAR = "9 1 8\n8\n" + "".join(f"8 {gpu} 400Gbps 0.0005ms 0\n" for gpu in range(8))
TWO_LINKS = "4 2 4\n2 3\n0 2 400Gbps 1us 0\n1 3 400Gbps 1us 0\n2 3 10Gbps 1us 0\n3 2 400Gbps 1us 0\n"
PUBLISHED_NS = {"all_reduce": 154_096}
"""K. Redd, github.com/kredd2506/Astro, experiments/results/ns3.csv: a switch, 8 NPUs, 1 MiB; see tests/fidelity."""


@pytest.fixture
def ns3(astra_sim):
    """Write a configuration, a topology and logical dimensions; gives the files, and the options that matter."""

    def write(topology=STAR, dims=("8",), config=CONFIG, mode=12, **more):
        files = astra_sim(npus=8, **more)
        (files.folder / "physical.txt").write_text(topology)
        (files.folder / "config.txt").write_text(config.format(topology="physical.txt", mode=mode))
        (files.folder / "logical.json").write_text(json.dumps({"logical-dims": list(dims)}))
        return files, {"network": files.folder / "config.txt", "logical_topology": files.folder / "logical.json"}

    return write


def arguments(files, options):
    return [
        *(argument for argument in files.arguments if "network-configuration" not in argument),
        f"--network-configuration={options['network']}",
        f"--logical-topology-configuration={options['logical_topology']}",
    ]


def test_shipped_files_take_the_published_time(shared_data, nadi):
    """Packets on a switch of 8; ns-3's packets take whole nanoseconds."""
    data = shared_data / "astra-sim"
    done = nadi(
        "astra-sim",
        f"--workload-configuration={shared_data}/chakra/microbenchmarks/all_reduce/8npus_1MB/all_reduce",
        f"--system-configuration={data}/system/native_collectives/Ring_4chunks.json",
        f"--network-configuration={shared_data}/formats/ns3/config.txt",
        f"--logical-topology-configuration={data}/network/ns3/sample_8nodes_1D.json",
        f"--remote-memory-configuration={data}/remote_memory/analytical/no_memory_expansion.json",
        "--comm-group-configuration=empty",
    )
    assert done.code == 0, done.err
    cycles = [int(cycle) for cycle in re.findall(r"sys\[\d\] finished, (\d+) cycles", done.out)]
    assert cycles == pytest.approx([PUBLISHED_NS["all_reduce"]] * 8, rel=1e-4)


@pytest.mark.parametrize("name", ["4nodes_1D", "8nodes_1D", "16nodes_1D", "16nodes_2D"])
def test_shipped_logical_topologies(shared_data, astra_sim, name):
    """The first NPUs of the physical topology; those of 16 need a larger one than the configuration names."""
    has_two = name.endswith("2D")
    others = dict.fromkeys(("all-gather-implementation", "reduce-scatter-implementation", "all-to-all-implementation"))
    files = astra_sim(others | ({"all-reduce-implementation": ["ring", "ring"]} if has_two else {}), npus=16)
    text = (shared_data / "formats/ns3/config.txt").read_text().replace("8_nodes_1", "128_nodes_16")
    text = re.sub(r"TOPOLOGY_FILE .*/", f"TOPOLOGY_FILE {shared_data}/formats/ns3/", text)
    (files.folder / "config.txt").write_text(text)
    sections, _ = files.sections(
        network=files.folder / "config.txt",
        logical_topology=shared_data / "astra-sim" / "network" / "ns3" / f"sample_{name}.json",
    )
    run = simulate(load_config(None, sections=sections))
    assert run.graph.dims == ((8, 2) if has_two else (int(re.match(r"\d+", name)[0]),))
    assert run.results.finish_time_ps > 0


@pytest.mark.parametrize("dims", [("4", "2"), (4, 2)])
def test_logical_dimensions_are_texts(ns3, dims):
    files, options = ns3(
        dims=dims,
        system=dict.fromkeys(("all-gather-implementation",))
        | {f"{kind}-implementation": ["ring", "direct"] for kind in ("all-reduce", "reduce-scatter", "all-to-all")},
    )
    sections, _ = files.sections(**options)
    assert sections["topology"]["params"]["dims"] == "4x2"
    assert sections["system"]["collectives"]["all-reduce"] == "grid:algorithms=ring/direct"


def test_the_analytical_back_end_does_not_matter_to_ns3(ns3):
    files, options = ns3()
    assert files.sections(**options, congestion_aware=False)[1].endswith("options: --congestion-unaware")
    assert "--congestion" not in files.sections(**options)[1]


def test_mode_12_is_no_congestion_control_and_others_are_theirs(ns3):
    files, options = ns3()
    assert files.sections(**options)[0]["network"]["congestion_control"] == "none"
    files, options = ns3(mode=3)
    assert files.sections(**options)[0]["network"]["congestion_control"] == "hpcc"


def test_thresholds_are_looked_up_by_the_exact_rate(ns3, nadi):
    files, options = ns3(topology=STAR.replace("400Gbps", "399Gbps"))
    done = nadi("astra-sim", *arguments(files, options))
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "KMIN_MAP has no 399000000000, expected each rate of a switch's links" in done.err


def test_of_several_links_of_two_nodes_the_last_one_counts(ns3):
    """As ns-3 keeps one interface for each neighbour."""
    files, options = ns3(topology=TWO_LINKS, dims=["2"])
    sections, _ = files.sections(**options)
    graph = topologies.build({"name": "simai", **sections["topology"]["params"]})
    assert sorted(graph.link_rate_bps[::2]) == [400 * 10**9] * 3
    assert topologies.build({"name": "simai", "path": str(files.folder / "physical.txt")}).links == 8


def test_a_configuration_in_json_is_that_in_text(ns3):
    files, options = ns3(mode=1, config=CONFIG + "RATE_AI 50Mb/s\nHAS_WIN 0\nLINK_DOWN 5 8 2\nQLEN_MON_START 0\n")
    document = {
        "files": {"topology_file": "{{TOPOLOGY_DIR}}/physical.txt"},
        "switch": {"enable_qcn": True, "buffer_size": 32},
        "packet": {"payload_size": 1000},
        "congestion_control": {"cc_mode": 1, "rate_ai": "50Mb/s", "has_win": 0},
        "link": {"link_down_time": 5, "link_down_a": 8, "link_down_b": 2},
        "ecn": {
            "kmax_map": {"10000000000": 400, "400000000000": 3200},
            "kmin_map": {"10000000000": 100, "400000000000": 800},
            "pmax_map": {"10000000000": 0.2, "400000000000": 0.2},
        },
        "queue_monitor": {"start": 0},
    }
    (files.folder / "config.json").write_text(json.dumps(document))
    as_json = files.sections(**options | {"network": files.folder / "config.json"})
    as_text = files.sections(**options)
    assert as_json[0] == as_text[0]
    assert as_json[1].replace("config.json", "config.txt") == as_text[1]
    assert as_text[0]["faults"] == [{"at": "2.000005s", "link": "8-2", "state": "down"}]


def test_receives_of_one_key_end_in_order(ns3):
    """ASTRA-sim's own regression (tests/rt_ns3_recv_queue): two messages of one tag, of two pairs over 10 Gb/s."""
    slow = "".join(f"6 {switch} 10Gbps 30ms 0\n" for switch in (4, 5))
    fast = "".join(f"{4 + gpu // 2} {gpu} 400Gbps 0.005ms 0\n" for gpu in range(4))
    files, options = ns3(topology=f"7 3 6\n4 5 6\n{fast}{slow}", dims=["4"])
    sizes = (1 << 20, 1 << 21)
    for npu in range(4):
        make = et.send_node if npu < 2 else et.recv_node
        nodes = [make(i + 1, f"m{i}", npu % 2, npu % 2 + 2, size, 7) for i, size in enumerate(sizes)]
        et.write_trace(files.folder / f"work.{npu}.et", et.metadata(), nodes)
    run = simulate(load_config(None, sections=files.sections(**options)[0]))
    there_and_back_ps = 2 * 60_010_000_000
    for npu in (2, 3):
        first_ps, second_ps = run.results.node_finish_ps[run.results.npu_node_ptr[npu] :][:2] - there_and_back_ps
        wire_ps = [sum(size + 48 * -(-size // 1000) for size in sizes[: i + 1]) * 800 for i in range(2)]
        assert wire_ps[0] < first_ps < 2.01 * wire_ps[0]  # at most the other pair's message goes first
        assert wire_ps[1] < second_ps < 2.01 * wire_ps[1]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dims": ["16"]}, "dims 16 for 8 GPUs; expected at most as many"),
        ({"dims": ["x"]}, "logical-dims.0: found 'x'"),
        ({"dims": []}, "logical-dims: found []"),
        ({"topology": "9 1 8\n8\n"}, "0 links found; expected 8 of the header"),
        ({"config": "CC_MODE 1\n"}, "TOPOLOGY_FILE: missing"),
        ({"config": CONFIG.replace("{topology}", "nowhere.txt")}, "nowhere.txt"),
        (
            {"config": '{{"files": {{"topology_file": "x"}}, "switch": 3}}'},
            "switch: found 3; expected a section of keys",
        ),
    ],
)
def test_wrong_files_are_refused_in_one_line(ns3, nadi, change, complaint):
    files, options = ns3(**change)
    done = nadi("astra-sim", *arguments(files, options))
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert complaint in done.err


def test_a_network_of_ns3_needs_logical_dimensions(ns3, nadi):
    files, options = ns3()
    done = nadi("astra-sim", *arguments(files, options)[:-1])
    assert done.code == 2
    assert "expected --logical-topology-configuration FILE beside it" in done.err
