"""Specs, tables and paths, and the one-line errors about them."""

import json

import pytest

from nadi import topologies
from nadi.topologies.clusters import clusters
from tests.nonempty import nonempty
from tests.topologies.naive import SMALL

NAMES = [
    "dgx-a100",
    "dgx-b200",
    "dgx-b300",
    "dgx-h100",
    "dgx-h200",
    "fat-tree",
    "file",
    "fully-connected",
    "gb200-nvl72",
    "gb300-nvl72",
    "htsim",
    "infragraph",
    "leaf-spine",
    "mi300x-servers",
    "nccl",
    "nvidia-smi",
    "rail-fat-tree",
    "rail-optimised",
    "ring",
    "simai",
    "stack",
    "switch",
    "torus",
]
KNOWN = ", ".join(NAMES)
WITH_CLUSTERS = ", ".join(sorted({*NAMES, *clusters()}))
TIME = "expected a number >= 0 and a unit, as 500ns or 1us"


def test_all_topologies_are_found():
    assert list(topologies.topologies()) == NAMES


def test_every_parameter_is_explained():
    for topology in nonempty(topologies.topologies().values()):
        assert topology.summary, topology.name
        for parameter in nonempty(topology.parameters()):
            assert parameter.help, (topology.name, parameter.name)
            assert parameter.form


def test_parameters_are_shown_as_the_user_writes_them():
    ring = {p.name: (p.form, p.default) for p in topologies.topologies()["ring"].parameters()}
    assert ring == {
        "npus": ("count", None),
        "rate": ("rate, as 400Gbps", "400Gbps"),
        "delay": ("time, as 500ns", "500ns"),
    }
    stack = {p.name: (p.form, p.default) for p in topologies.topologies()["stack"].parameters()}
    assert stack["rates"] == ("rates, as 200GB/s_50GB/s", "400Gbps")
    assert stack["host_dims"] == ("whole number", "0")
    tree = {p.name: (p.form, p.default) for p in topologies.topologies()["fat-tree"].parameters()}
    assert tree["k"] == ("count", "")
    assert tree["spine_rate"] == ("rate, as 400Gbps", "")
    assert tree["dims"] == ("sizes, as 4x4x4", "")


def test_defaults_as_shown_can_be_given():
    for name in ("ring", "stack", "rail-optimised"):
        topology = topologies.topologies()[name]
        given = {p.name: p.default for p in topology.parameters() if p.default}
        required = {"stack": {"dims": "Ring(4)"}}.get(name, {"npus": 8})
        assert topology.arguments(**required, **given) == topology.arguments(**required)


def test_a_spec_is_a_table():
    spec = "fat-tree:k=16,rate=100Gbps,delay=1us"
    table = {"name": "fat-tree", "k": "16", "rate": "100Gbps", "delay": "1us"}
    assert topologies.parse_spec(spec) == table
    assert topologies.format_spec(table) == spec
    assert topologies.parse_spec("ring") == {"name": "ring"}
    assert topologies.parse_spec("net.toml") == {"name": "file", "path": "net.toml"}
    assert topologies.format_spec({"name": "file", "path": "net.toml"}) == "net.toml"


def test_a_table_of_a_run_file_builds_the_same_network():
    table = {"name": "torus", "sizes": [4, 3], "rate": "100Gbps", "delay": "1us"}
    graph = topologies.build(table)
    assert graph.name == "torus:sizes=4x3,rate=100Gbps,delay=1us"
    again = topologies.build(graph.name)
    assert (graph.link_src == again.link_src).all()
    assert (graph.link_rate_bps == again.link_rate_bps).all()
    stack = topologies.build({"name": "stack", "dims": ["Ring(4)", "Switch(2)"], "rates": ["1Gbps", "2Gbps"]})
    assert stack.name == "stack:dims=Ring(4)_Switch(2),rates=1Gbps_2Gbps"
    assert set(stack.link_rate_bps.tolist()) == {10**9, 2 * 10**9}


@pytest.mark.parametrize("spec", SMALL)
def test_descriptions_are_json(spec):
    facts = topologies.describe(topologies.build(spec))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["routing_bytes"] > 0


RATE = "expected a number and a unit, as 400Gbps or 50GB/s"
LEAF_KEYS = (
    "delay, dims, hosts_per_leaf, leaves, npus, oversubscription, rate, spines, switch_latency, uplink_delay, "
    "uplink_rate, uplinks"
)


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        ("rnig:npus=8", f"unknown topology 'rnig', and no such file; did you mean 'ring'? known: {WITH_CLUSTERS}"),
        ("zzz", f"unknown topology 'zzz', and no such file; known: {WITH_CLUSTERS}"),
        ({"name": "tours"}, f"unknown topology 'tours'; did you mean 'torus'? known: {WITH_CLUSTERS}"),
        ({"k": 4}, f"topology 'None:k=4': key 'name' is missing; known: {KNOWN}"),
        ("ring:npus", "ring:npus: 'npus' is no key=value; expected a form like ring:npus=8,rate=400Gbps"),
        ("ring:npus=", "ring:npus=: 'npus=' is no key=value; expected a form like ring:npus=8,rate=400Gbps"),
        ("ring:npus=8,npus=9", "ring:npus=8,npus=9: key 'npus' occurs twice; expected it once"),
        ("ring", "ring: npus: missing; expected number of NPUs, 2 or more"),
        ("ring:npsu=8", "ring:npsu=8: npsu: unknown key; nearest known key: npus (of delay, npus, rate)"),
        ("leaf-spine:leafs=8", f"leaf-spine:leafs=8: leafs: unknown key; nearest known key: leaves (of {LEAF_KEYS})"),
        ("ring:npus=0", "ring:npus=0: npus: '0' is not a count; expected a whole number from 1 to 4194303"),
        ("ring:npus=x", "ring:npus=x: npus: 'x' is not a count; expected a whole number from 1 to 4194303"),
        (
            {"name": "ring", "npus": True},
            "ring:npus=True: npus: True is not a count; expected a whole number from 1 to 4194303",
        ),
        (
            {"name": "ring", "npus": 2.5},
            "ring:npus=2.5: npus: 2.5 is not a count; expected a whole number from 1 to 4194303",
        ),
        ("ring:npus=1", "ring:npus=1: npus = 1; expected 2 or more"),
        ("fully-connected:npus=1", "fully-connected:npus=1: npus = 1; expected 2 or more"),
        ("ring:npus=4,rate=0Gbps", "ring:npus=4,rate=0Gbps: rate: rate '0Gbps' is zero; expected more than 0"),
        ("ring:npus=4,rate=4", f"ring:npus=4,rate=4: rate: '4' is not a rate; {RATE}"),
        ("ring:npus=4,delay=-1us", f"ring:npus=4,delay=-1us: delay: '-1us' is not a time; {TIME}"),
        ("torus:sizes=4x1", "torus:sizes=4x1: sizes = 4x1; expected one to three sizes of 2 or more"),
        ("torus:sizes=2x2x2x2", "torus:sizes=2x2x2x2: sizes = 2x2x2x2; expected one to three sizes of 2 or more"),
        ({"name": "torus", "sizes": []}, "torus:sizes=: sizes: [] is no list of sizes; expected a form like 4x4x4"),
        ("stack:dims=Ring", "stack:dims=Ring: dims: 'Ring' is no dimension; expected a form like Ring(4)"),
        (
            "stack:dims=Mesh(4)",
            (
                "stack:dims=Mesh(4): dims: dimension 'Mesh(4)' is of no known kind; "
                "expected one of Ring, FullyConnected, Switch"
            ),
        ),
        (
            {"name": "stack", "dims": 4},
            "stack:dims=4: dims: 4 is no list of dimensions; expected a form like Ring(4)_Switch(8)",
        ),
        ("stack:dims=Ring(1)", "stack:dims=Ring(1): dims: dimension 'Ring(1)' has 1 members; expected 2 or more"),
        (
            "stack:dims=Ring(4)_Ring(4),rates=1Gbps_2Gbps_3Gbps",
            (
                "stack:dims=Ring(4)_Ring(4),rates=1Gbps_2Gbps_3Gbps: "
                "rates has 3 entries; expected 1 or 2, one for each dimension"
            ),
        ),
        ("stack:dims=Ring(4),host_dims=2", "stack:dims=Ring(4),host_dims=2: host_dims = 2; expected 0 to 1"),
        (
            "stack:dims=Ring(4),host_dims=-1",
            "stack:dims=Ring(4),host_dims=-1: host_dims: found '-1'; expected greater than or equal to 0",
        ),
        (
            "fully-connected:npus=16384",
            ("fully-connected:npus=16384: 134209536 cables; expected at most 2097151"),
        ),
        ("switch:npus=600000", "switch:npus=600000: 600000 NPUs; expected 1 to 524287"),
        ("switch:npus=6,dims=4x2", "switch:npus=6,dims=4x2: dims 4x2 multiply to 8; expected 6 NPUs"),
        ("leaf-spine", "leaf-spine: neither npus nor leaves is given; expected one of them"),
        (
            "leaf-spine:npus=64,leaves=3",
            "leaf-spine:npus=64,leaves=3: leaves = 3; expected 4 for 64 NPUs, 16 to a leaf",
        ),
        (
            "leaf-spine:npus=64,spines=2,oversubscription=2",
            (
                "leaf-spine:npus=64,spines=2,oversubscription=2: both spines and oversubscription are given; "
                "expected one of them"
            ),
        ),
        (
            "leaf-spine:npus=64,oversubscription=3",
            "leaf-spine:npus=64,oversubscription=3: oversubscription = 3 needs 5.33333 spines; expected a whole number",
        ),
        (
            "leaf-spine:npus=64,oversubscription=0",
            (
                "leaf-spine:npus=64,oversubscription=0: oversubscription: '0' is not a ratio; "
                "expected a number from 1/1000000 to 1000000"
            ),
        ),
        ("fat-tree", "fat-tree: too few counts; expected k, npus, or hosts_per_leaf and pods"),
        ("fat-tree:k=5", "fat-tree:k=5: k = 5; expected an even number"),
        (
            "fat-tree:k=4,pods=4",
            "fat-tree:k=4,pods=4: both k and pods are given; expected one of them, as k sets pods",
        ),
        (
            "fat-tree:npus=64,hosts_per_leaf=4,pods=2",
            "fat-tree:npus=64,hosts_per_leaf=4,pods=2: pods = 2; expected 4 for 64 NPUs, 4 x 4 to a pod",
        ),
        (
            "fat-tree:k=8,core_oversubscription=3",
            (
                "fat-tree:k=8,core_oversubscription=3: core_oversubscription = 3 needs 1.33333 cores_per_plane; "
                "expected a whole number"
            ),
        ),
        ("fat-tree:k=1000", "fat-tree:k=1000: 250000000 NPUs; expected 1 to 524287"),
        (
            "rail-optimised:npus=12",
            "rail-optimised:npus=12: npus = 12; expected a multiple of gpus_per_host = 8",
        ),
        (
            "rail-optimised:npus=524280",
            (
                "rail-optimised:npus=524280: a routing table of 81951 switches by 81919 first switches is too large; "
                "expected at most 536870912 entries"
            ),
        ),
        ("missing.toml", "missing.toml: No such file or directory; expected a fabric (TOML with npus and links)"),
        ("simai:path=missing", "missing: cannot read missing: No such file or directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(topology, text):
    with pytest.raises(topologies.TopologyError) as error:
        topologies.build(topology)
    assert str(error.value) == text
    assert error.value.exit_code == 2
