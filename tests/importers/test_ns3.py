"""Configurations of HPCC's ns-3: keys that have a counterpart, those without one, and wrong values."""

import re

import pytest

from nadi import topologies
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.importers.ns3 import _OTHER_KEYS, _TRANSLATED, ns3_part, read_ns3

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
    """The section as a run has it."""
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
