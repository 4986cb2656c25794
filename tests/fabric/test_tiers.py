"""[network.tiers]: switches that differ by the word of their names: buffer, pauses, marks, trimming, latency."""

import numpy as np
import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.pdes import RunError
from tests.running import simulate

FABRIC = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=2,rate=100Gbps,uplink_rate=150Gbps"


def sections(folder, **network):
    """An all-to-all over uplinks that are too slow."""
    nodes = [et.coll_node(1, "a", et.CollectiveCommType.ALL_TO_ALL, 1 << 20)]
    et.write_trace(folder / "trace.et", et.metadata(), nodes)
    return {"workload": {"traces": str(folder / "trace.et")}, "topology": {"spec": FABRIC}, "network": network}


def finished(folder, **network):
    """Return a finished run, which waits for its buffers without limits of windows."""
    given = {"window": "1MiB", "congestion_control": "dcqcn"} | network
    return simulate(load_config(None, sections=sections(folder, **given)))


def at_ports_of(simulation, column):
    """Return the sum of a column of link counters over the ports of each tier."""
    graph, links = simulation.graph, simulation.results.links
    words = [graph.node_name(node).split()[0] for node in range(graph.nodes)]
    at = np.array(words)[graph.link_src]
    return {word: int(links[column][at == word].sum()) for word in ("leaf", "spine")}


def lone_ps(folder, *, tiers, fidelity="packet"):
    """Time of a message of one packet from NPU 0 to NPU 5, over a spine."""
    (folder / "flows.csv").write_text("src,dst,bytes,start_ps\n0,5,4096,0\n")
    network = {"fidelity": fidelity, "tiers": tiers}
    spec = "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=500ns"
    given = {"workload": {"traffic": {"file": str(folder / "flows.csv")}}, "topology": {"spec": spec}}
    flows = simulate(load_config(None, sections=given | {"network": network})).results.flows
    return int(flows["finish_ps"][0] - flows["start_ps"][0])


# 4096 bytes and 82 of header at 100 Gb/s, four cables
LONE = {"packet_ps": 4178 * 80, "header_ps": 82 * 80, "links_ps": 4 * (4178 * 80 + 500_000)}
KEYS = {
    "buffer": ({"buffer": "900kB", "pfc": False}, {}),
    "pfc_headroom": ({"pfc_headroom": "30kB"}, {"buffer": "500kB"}),
    "ecn": ({"ecn_kmin": "2kB", "ecn_kmax": "9kB", "ecn_pmax": 0.7}, {}),
    "load_balancing": ({"load_balancing": "spray"}, {}),
    "load_balancing, by queues": ({"load_balancing": "grades"}, {"congestion_control": "none", "switch": "credits"}),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_value_at_every_tier_is_that_value_everywhere(key, tmp_path):
    own, others = KEYS[key]
    tier = {name: value for name, value in own.items() if name != "pfc"}
    rest = others | {name: value for name, value in own.items() if name == "pfc"}
    everywhere, plain = finished(tmp_path, **own, **others), finished(tmp_path, **rest)
    each = finished(tmp_path, **rest, tiers={"leaf": tier, "spine": tier})
    assert each.results.digest == everywhere.results.digest != plain.results.digest
    spines = finished(tmp_path, **rest, tiers={"spine": tier})
    assert spines.results.digest != each.results.digest


@pytest.mark.parametrize(("small", "large"), [("spine", "leaf"), ("leaf", "spine")])
def test_only_the_tier_with_the_small_buffer_drops(small, large, tmp_path):
    run = finished(tmp_path, pfc=False, ecn=True, buffer="100MB", tiers={small: {"buffer": "200kB"}})
    dropped = at_ports_of(run, "dropped_packets")
    assert dropped[small] > 0
    assert dropped[large] == 0
    # alone in the buffer, a queue takes alpha / (1 + alpha) of it at most (Choudhury and Hahne): a ninth with alpha 1/8
    graph, longest = run.graph, run.results.links["max_queue_bytes"]
    ports = [link for link in range(graph.links) if graph.node_name(int(graph.link_src[link])).startswith(small)]
    assert longest[ports].max() <= 200_000 / 8


@pytest.mark.parametrize(("marking", "silent"), [("spine", "leaf"), ("leaf", "spine")])
def test_only_the_tier_with_low_thresholds_marks(marking, silent, tmp_path):
    run = finished(
        tmp_path,
        ecn_kmin="2GB",
        ecn_kmax="2GB",
        tiers={marking: {"ecn_kmin": "0B", "ecn_kmax": "1kB", "ecn_pmax": 1.0}},
    )
    marked = at_ports_of(run, "marked_packets")
    assert marked[marking] > 0
    assert marked[silent] == 0


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_the_latency_of_an_idle_path_is_that_of_its_tiers(fidelity, tmp_path):
    base, both = LONE, {"leaf": {"latency": "300ns"}, "spine": {"latency": "700ns"}}
    plain, slow = (lone_ps(tmp_path, tiers=tiers, fidelity=fidelity) for tiers in (None, both))
    # flows end at the next picosecond
    assert plain == base["links_ps"] + (fidelity == "flow")
    assert slow == plain + 2 * 300_000 + 700_000
    assert lone_ps(tmp_path, tiers={"spine": {"latency": "700ns"}}, fidelity=fidelity) == plain + 700_000


@pytest.mark.parametrize(("tiers", "nodes"), [(["leaf"], 2), (["spine"], 1), (["leaf", "spine"], 3)])
def test_each_switch_that_cuts_through_saves_what_follows_the_header(tiers, nodes, tmp_path):
    found = lone_ps(tmp_path, tiers={tier: {"cut_through": True} for tier in tiers})
    assert found == LONE["links_ps"] - nodes * (LONE["packet_ps"] - LONE["header_ps"])


def links_used(folder, **network):
    """Links upwards that one message takes out of the first leaf, and out of each spine that it crosses."""
    (folder / "flows.csv").write_text("src,dst,bytes,start_ps\n0,127,1000000,0\n")
    given = {"workload": {"traffic": {"file": str(folder / "flows.csv")}}, "topology": {"spec": "fat-tree:k=8"}}
    found = simulate(load_config(None, sections=given | {"network": network}))
    graph, sent = found.graph, found.results.links["tx_bytes"] > 30_000  # more than all acknowledgements
    tier = np.array([["npu", "leaf", "spine", "core"].index(graph.node_word(node)) for node in range(graph.nodes)])
    up = (tier[graph.link_src] > 0) & (tier[graph.link_dst] > tier[graph.link_src])
    used = [graph.node_name(int(node)) for node in graph.link_src[sent & up]]
    return {name: used.count(name) for name in used}


@pytest.mark.parametrize("switch", ["output-queued", "shared-buffer", "credits"])
def test_each_tier_has_its_own_load_balancing(switch, tmp_path):
    """Four links lead up from each switch: a tier that sprays takes all of them, one that hashes takes one."""
    for network, of_leaf, of_spine in (
        ({"load_balancing": "spray", "tiers": {"spine": {"load_balancing": "ecmp"}}}, 4, 1),
        ({"tiers": {"leaf": {"load_balancing": "spray"}}}, 4, 1),
        ({"tiers": {"spine": {"load_balancing": "spray"}}}, 1, 4),
        ({"tiers": {"leaf": {"load_balancing": "grades"}, "spine": {"load_balancing": "static"}}}, 4, 1),
    ):
        found = links_used(tmp_path, switch=switch, **network)
        assert found.pop("leaf 0") == of_leaf
        assert len(found) == of_leaf
        assert set(found.values()) == {of_spine}


@pytest.mark.parametrize("switch", ["output-queued", "shared-buffer", "credits"])
def test_tiers_that_hash_do_so_as_if_others_did_not_spray(switch, tmp_path):
    own = {"switch": switch, "congestion_control": "none", "selective_repeat": True, "reorder": 100}
    hash_all = {tier: {"load_balancing": "ecmp"} for tier in ("leaf", "spine")}
    found = finished(tmp_path, load_balancing="spray", tiers=hash_all, **own)
    assert found.results.digest == finished(tmp_path, **own).results.digest


def test_rules_that_senders_and_tiers_choose_stand_beside_each_other(tmp_path):
    """The leaf's links are those that entropies name, those of spines follow from a hash of each flow's entropy."""
    own = {"entropy": "oblivious", "paths": 64, "tiers": {"leaf": {"load_balancing": "entropy"}}}
    found = links_used(tmp_path, **own)
    assert found.pop("leaf 0") == 4
    assert min(found.values()) > 1


@pytest.mark.parametrize(("lossy", "lossless"), [("spine", "leaf"), ("leaf", "spine")])
def test_only_the_tier_with_pauses_pauses(lossy, lossless, tmp_path):
    run = finished(tmp_path, buffer="700kB", tiers={lossy: {"pfc": False, "buffer": "60kB"}}, selective_repeat=True)
    assert at_ports_of(run, "dropped_packets")[lossless] == 0 < at_ports_of(run, "dropped_packets")[lossy]
    # a port sends the frames by which its own switch pauses the other end
    assert at_ports_of(run, "pause_frames")[lossy] == 0 < at_ports_of(run, "pause_frames")[lossless]


@pytest.mark.parametrize(("trims", "other"), [("spine", "leaf"), ("leaf", "spine")])
def test_only_the_tier_that_trims_trims(trims, other, tmp_path):
    given = {"pfc": False, "buffer": "100MB", "selective_repeat": True}
    run = finished(tmp_path, **given, tiers={trims: {"trimming": True, "trim_threshold": "6kB", "trim_share": 0.25}})
    assert at_ports_of(run, "trimmed_packets")[other] == 0 < at_ports_of(run, "trimmed_packets")[trims]
    assert run.results.counters["dropped_packets"] == 0


def test_tiers_are_written_as_they_are_read(tmp_path):
    given = {"spine": {"buffer": "64MiB", "ecn_pmax": 0.5}}
    config = load_config(None, sections=sections(tmp_path, tiers=given))
    assert config.network.switch == "shared-buffer"
    written = config.settled()
    assert written["network"]["tiers"] == given
    assert load_config(None, sections=written).network == config.network


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ({"tiers": {"core": {"buffer": "1MB"}}}, r"\[network\] tiers: found 'core'; expected tiers of .*: leaf, spine"),
        ({"tiers": {"leaf": {"ecn_kmin": "1MB"}}}, "tiers.leaf: ecn_kmin = 1MB is above ecn_kmax = 400kB"),
        ({"tiers": {"leaf": {"ecn_kmin": "1kB"}}, "ecn": False}, "tiers.leaf: found ecn_kmin with ecn = false"),
        ({"tiers": {"leaf": {"pfc_headroom": "1kB"}}, "pfc": False}, "tiers.leaf: found pfc_headroom with pfc = false"),
        ({"tiers": {"leaf": {"pods": 2}}}, "unknown key"),
        ({"tiers": {"leaf": {"load_balancing": "sprya"}}}, "tiers.leaf: load_balancing: .*sprya"),
        ({"tiers": {"leaf": {"load_balancing": "mine.py"}}}, "found load_balancing = 'mine.py'; expected a name, as"),
        (
            {"tiers": {"leaf": {"load_balancing": "spray"}}, "selective_repeat": False},
            "tiers.leaf: selective_repeat: found false, but with load_balancing = 'spray' packets overtake",
        ),
        ({"tiers": {"core": {"latency": "1us"}}, "fidelity": "flow"}, "tiers: found 'core'; expected tiers of"),
        ({"tiers": {"leaf": {"trimming": True}}}, "tiers.leaf: trimming = true with pfc = true"),
        ({"tiers": {"leaf": {"cut_through": True}}, "pfc": True}, "tiers.leaf: cut_through = true with switch"),
        ({"tiers": {"leaf": {"pfc": False}}, "switch": "output-queued"}, "tiers.leaf: found pfc with switch"),
        ({"tiers": {"leaf": {"buffer": "100kB"}}}, "but the PFC headrooms of leaf 0 take"),
        ({"tiers": {"leaf": {"buffer": "1kB"}}, "pfc": False}, "a switch with a buffer of 1000 bytes"),
    ],
)
def test_what_is_wrong_is_one_line(network, complaint, tmp_path):
    with pytest.raises((ConfigError, RunError, ValueError), match=complaint) as error:
        simulate(load_config(None, sections=sections(tmp_path, **network)))
    assert "\n" not in str(error.value)
