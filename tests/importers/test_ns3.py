"""Configurations of HPCC's ns-3, alone and as a back end of ASTRA-sim."""

import json
import re

import pytest

from nadi import et, topologies
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.importers.ns3 import _OTHER_KEYS, _TRANSLATED, ns3_part, read_ns3
from tests.running import simulate

TEXT = """ENABLE_QCN 1
PACKET_PAYLOAD_SIZE 9000
CC_MODE 1
RATE_AI 50Mb/s
MIN_RATE 0.1Gb/s
RP_TIMER 900 {for DCQCN: the interval of rate increase}
GLOBAL_T 0
KMAX_MAP 2 100000000000 1600 400000000000 3200
KMIN_MAP 2 100000000000 400 400000000000 800
PMAX_MAP 2 100000000000 0.2 400000000000 0.3
BUFFER_SIZE 32
"""
LEAF_SPINE = "leaf-spine:npus=6,leaves=2,spines=1,hosts_per_leaf=3,rate=400Gbps"


def part(tmp_path, text, fabric=LEAF_SPINE):
    (tmp_path / "x.conf").write_text(text)
    return ns3_part(read_ns3(tmp_path / "x.conf"), topologies.build(fabric))


def network(tmp_path, text, fabric=LEAF_SPINE):
    sections = {"workload": {"traces": "."}, "topology": {"spec": fabric}, **part(tmp_path, text, fabric).sections}
    return load_config(None, sections=sections).network


def test_thresholds_hold_at_the_rate_of_the_links(tmp_path):
    found = network(tmp_path, TEXT)
    assert found.ecn_by_rate == ((400 * 10**9, 800_000, 3_200_000, 0.3),)
    assert (found.mtu, found.header, found.buffer) == (9000, 48, 32 << 20)
    assert (found.congestion_control, found.congestion) == (
        "dcqcn",
        {"RATE_AI": 50.0, "MIN_RATE": 100.0, "RP_TIMER": 900.0},
    )


def test_each_rate_has_its_thresholds(tmp_path):
    found = network(tmp_path, TEXT, LEAF_SPINE + ",uplink_rate=100Gbps")
    assert found.ecn_by_rate == ((10**11, 400_000, 1_600_000, 0.2), (4 * 10**11, 800_000, 3_200_000, 0.3))


def test_keys_without_effect_are_named(tmp_path):
    unused = part(tmp_path, TEXT + "L2_CHUNK_SIZE 4000\nL2_ACK_INTERVAL 1\n").unused
    assert unused == ("GLOBAL_T", "L2_CHUNK_SIZE")


@pytest.mark.parametrize(("mode", "control"), [(3, "hpcc"), (7, "timely"), (8, "dctcp"), (10, "hpcc"), (12, "none")])
def test_modes_of_congestion_control(tmp_path, mode, control):
    found = part(tmp_path, TEXT.replace("CC_MODE 1", f"CC_MODE {mode}"))
    assert found.sections["network"]["congestion_control"] == control
    assert ("RP_TIMER" in found.unused) == (control != "dcqcn")


def test_a_link_fails_at_second_two_and_every_link_loses_packets(tmp_path):
    (tmp_path / "net").write_text("4 1 3\n0\n0 1 400Gbps 1us 0\n0 2 400Gbps 1us 0\n3 0 400Gbps 1us 0\n")
    text = TEXT + "LINK_DOWN 5 0 2\nERROR_RATE_PER_LINK 0.001\n"
    faults = part(tmp_path, text, tmp_path / "net").sections["faults"]
    assert [fault.get("link") for fault in faults] == [0, 2, 4, "3-1"]  # file's switch 0 is node 3, its GPU 2 is NPU 1
    assert faults[-1] == {"at": "2.000005s", "link": "3-1", "state": "down"}
    assert "faults" not in part(tmp_path, TEXT + "LINK_DOWN 0 0 0\n").sections


def test_without_ecn_no_rate_needs_thresholds(tmp_path):
    text = "\n".join(line for line in TEXT.splitlines() if "MAP" not in line).replace("QCN 1", "QCN 0")
    assert network(tmp_path, text.replace("CC_MODE 1", "CC_MODE 12")).ecn is False


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("KMAX_MAP 2 100000000000 1600 400000000000 3200", "KMAX_MAP 1 25000000000 1", "KMAX_MAP has no 400000000000"),
        ("KMIN_MAP 2", "KMIN_MAP 9", "KMIN_MAP has 4 words behind its count, expected 18"),
        ("RATE_AI 50Mb/s", "RATE_AI fast", "RATE_AI: 'fast' is not a rate"),
        ("RP_TIMER 900", "RP_TIMER x", "RP_TIMER is 'x', expected a number"),
        ("SIZE 9000", "SIZE 0", "PACKET_PAYLOAD_SIZE is '0', expected a number from 1 to 65535"),
        ("BUFFER_SIZE 32", "BUFFER_SIZE", "BUFFER_SIZE is '', expected a number"),
        ("BUFFER_SIZE 32", "LINK_DOWN 1 0 99", "LINK_DOWN names node 99, expected nodes of the topology"),
        ("RP_TIMER 900", "EWMA_GAIN 7", "EWMA_GAIN"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(old, new, complaint, tmp_path):
    assert old in TEXT
    with pytest.raises(ConfigError) as error:
        part(tmp_path, TEXT.replace(old, new))
    assert str(error.value).startswith(f"{tmp_path / 'x.conf'}: ")
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("conf", "fabric", "control"),
    [
        ("simai/SimAI.conf", "simai/Spectrum-X_128g_8gps_400Gbps_H100", "dcqcn"),
        ("formats/ns3/config.txt", "formats/ns3/8_nodes_1_switch_topology.txt", "none"),
        ("formats/ns3/config.txt", "formats/ns3/128_nodes_16_switch_topology.txt", "none"),
    ],
)
def test_their_own_files(shared_data, conf, fabric, control):
    found = ns3_part(read_ns3(shared_data / conf), topologies.build(shared_data / fabric))
    assert found.sections["network"]["congestion_control"] == control


def test_every_key_of_the_typed_schema_is_known(shared_data):
    """Each has an effect, says what holds anyway, or is named in the warning."""
    text = (shared_data / "formats" / "astra-sim-service" / "backend_ns3.yaml").read_text()
    keys = set(re.findall(r"x-astra-sim-name: ([A-Z][A-Z0-9_]+)", text))
    assert len(keys) == 49
    assert keys <= _TRANSLATED | _OTHER_KEYS


@pytest.mark.parametrize("rate", ["3600Gbps", "36000Gbps"])
def test_only_ports_that_pause_need_headroom(tmp_path, rate):
    """An NVSwitch of 8 ports of 36 Tb/s over 25 ns would need 2.7 MB by ns-3's rule, more than the buffer."""
    fabric = f"rail-optimised:npus=16,gpus_per_host=8,rate=400Gbps,delay=10ns,nvlink_rate={rate},nvlink_delay=250ns"
    found = part(tmp_path, TEXT.replace("BUFFER_SIZE 32", "BUFFER_SIZE 2"), fabric)
    assert "pfc_headroom" not in found.sections["network"]
    assert not any("headrooms" in phrase for phrase in found.unused)


def test_headrooms_beyond_the_buffer_are_smaller_and_named(tmp_path):
    found = part(tmp_path, TEXT.replace("BUFFER_SIZE 32", "BUFFER_SIZE 0.01"))
    assert found.sections["network"]["pfc_headroom"] == "655B"  # a quarter of 10,485 bytes over 4 ports
    assert any("headrooms" in phrase for phrase in found.unused)


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


def test_shipped_files_take_the_published_time(shared_data, shipped):
    """Packets on a switch of 8; ns-3's packets take whole nanoseconds."""
    logical = shared_data / "astra-sim" / "network" / "ns3" / "sample_8nodes_1D.json"
    more = (f"--logical-topology-configuration={logical}", "--comm-group-configuration=empty")
    done = shipped("all_reduce", 8, *more, network=shared_data / "formats" / "ns3" / "config.txt")
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
    done = nadi.refuse("astra-sim", *arguments(files, options))
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
    assert complaint in nadi.refuse("astra-sim", *arguments(files, options)).err


def test_a_network_of_ns3_needs_logical_dimensions(ns3, nadi):
    files, options = ns3()
    done = nadi.refuse("astra-sim", *arguments(files, options)[:-1])
    assert "expected --logical-topology-configuration FILE beside it" in done.err
