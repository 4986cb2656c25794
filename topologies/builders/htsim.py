"""htsim's .topo files: fat trees of two or three tiers, dragonflies and slim flies, with rates and latencies.

Dragonflies and slim flies are in `nadi.topologies.htsim_direct`; what follows is about trees.

The header has `Nodes`, `Tiers` and `Podsize`; `Tier N` begins the lines of tier N, 0 = switches of the hosts (ToR), 1 =
those above (aggregation), 2 = the core. Speed and latency of a tier are those of its links downwards, so the uplinks of
a tier have the speed of the tier above. Words are those of FatTreeTopologyCfg::read_cfg and set_custom_params
(ultraethernet/uet-htsim, fat_tree_topology.cpp), as are the connections: a ToR and each aggregation switch of its pod
are joined by `Bundle` cables of tier 1, and aggregation switch a of a pod by `Bundle` cables of tier 2 to the cores a,
a + A, a + 2A, ..., A = the number of aggregation switches of a pod.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from nadi import inputs
from nadi.inputs.limits import LINK_RATE_BPS, LONGEST_DELAY_PS, MAX_CABLES, MAX_NODES
from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.htsim_direct import DirectNetwork, build_direct, extent_direct, is_direct, read_direct
from nadi.topologies.parameters import FilePath, Parameters, Sizes

FILES = ("htsim-topology", ".topo")
NAME = "htsim"
_EXPECTED = "a topology of htsim (Nodes, Tiers, Podsize, then the tiers; or p and q, or p, a and h)"
_HEADER = ("nodes", "tiers", "podsize")
_MAX_GBPS, _MAX_NS = LINK_RATE_BPS.maximum // GBPS, LONGEST_DELAY_PS // NS
_TIER_WORDS = {  # words of a tier and the maxima of their numbers; queue sizes belong to htsim's switches
    "downlink_speed_gbps": _MAX_GBPS,
    "radix_up": MAX_NODES,
    "radix_down": MAX_NODES,
    "oversubscribed": MAX_NODES,
    "bundle": MAX_NODES,
    "switch_latency_ns": _MAX_NS,
    "downlink_latency_ns": _MAX_NS,
    "queue_up": 2**62,
    "queue_down": 2**62,
}
_DEFAULTS = {"oversubscribed": 1, "bundle": 1, "switch_latency_ns": 0, "queue_up": 0, "queue_down": 0}
TIER_NAMES = ("tor", "agg", "core")


class Arguments(Parameters):
    """Parameters of a network in a .topo file."""

    path: FilePath = Field(description="path of the file")
    dims: Sizes = Field((), description="logical dimensions, fastest first, of all hosts; default: one")


class HtsimTree(NamedTuple):
    """The tree of a file."""

    nodes: int  # number of hosts
    pod_hosts: int  # number of hosts of a pod
    tiers: tuple[Mapping[str, int], ...]  # numbers of each tier by word, from the ToRs up
    aggs: int  # number of aggregation switches of a pod
    cores: int  # number of core switches

    @property
    def pods(self) -> int:
        """Number of pods."""
        return self.nodes // self.pod_hosts

    @property
    def tors(self) -> int:
        """Number of ToRs of a pod."""
        return self.pod_hosts // self.tiers[0]["radix_down"]

    @property
    def switches(self) -> int:
        """Number of switches."""
        return self.pods * (self.tors + self.aggs) + self.cores

    @property
    def cables(self) -> int:
        """Number of cables."""
        above = [self.pods * self.tors * self.aggs * self.tiers[1]["bundle"]]
        above += [self.pods * self.aggs * tier["radix_up"] for tier in self.tiers[1:-1]]
        return self.nodes + sum(above)

    @property
    def diameter_ps(self) -> int:
        """Latency of links and switches on the longest path, without transmission, in picoseconds."""
        # the longest path goes up and down again: over two switches of each tier, but one of the top
        links = 2 * sum(tier["downlink_latency_ns"] for tier in self.tiers)
        switches = 2 * sum(tier["switch_latency_ns"] for tier in self.tiers) - self.tiers[-1]["switch_latency_ns"]
        return (links + switches) * NS


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network of a file; switches are "tor 0", "agg 0", "core 0", ... by htsim's numbers.

    Raises TopologyError: the file is unreadable, a word or number is wrong, or the numbers do not fit together.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    text = _text(arguments.path, name)
    if is_direct(text):
        return build_direct(read_direct(text, name), Path(arguments.path), name, arguments.dims)
    tree = read_tree(arguments.path, name)
    if tree.nodes + tree.switches > MAX_NODES or tree.cables > MAX_CABLES:
        raise TopologyError(
            f"{name}: {tree.nodes + tree.switches} nodes and {tree.cables} cables; expected at most {MAX_NODES} and "
            f"{MAX_CABLES}"
        )
    builder = GraphBuilder(name, tree.nodes)
    host, pod = np.arange(tree.nodes), np.arange(tree.pods)
    builder.set_npu_pods(host // tree.pod_hosts if tree.pods > 1 else -1)
    pods = [np.repeat(pod, tree.tors), np.repeat(pod, tree.aggs), np.full(tree.cores, -1)]
    switch = [
        builder.add_named_switches(
            [f"{TIER_NAMES[i]} {number}" for number in range(len(of_tier))],
            latency_ps=tier["switch_latency_ns"] * NS,
            pod=of_tier if tree.pods > 1 else -1,
        )
        for i, (tier, of_tier) in enumerate(zip(tree.tiers, pods, strict=False))
    ]
    rates = [tier["downlink_speed_gbps"] * GBPS for tier in tree.tiers]
    delays = [tier["downlink_latency_ns"] * NS for tier in tree.tiers]
    builder.add_cables(host, switch[0][host // tree.tiers[0]["radix_down"]], rates[0], delays[0])
    for number in pod.tolist():
        tors = switch[0][number * tree.tors : (number + 1) * tree.tors]
        aggs = switch[1][number * tree.aggs : (number + 1) * tree.aggs]
        ends = np.repeat(tors, tree.aggs), np.tile(aggs, tree.tors)
        builder.add_cables(*ends, rates[1], delays[1], tree.tiers[1]["bundle"])
    if len(tree.tiers) == 3:
        uplinks = tree.tiers[1]["radix_up"] // tree.tiers[2]["bundle"]
        agg = np.repeat(np.arange(len(switch[1])), uplinks)
        # with A = 2 aggregation switches per pod and two uplinks, switches 0 0 1 1 2 2 lead to cores 0 2 1 3 0 2
        core = agg % tree.aggs + tree.aggs * np.tile(np.arange(uplinks), len(switch[1]))
        builder.add_cables(switch[1][agg], switch[2][core], rates[2], delays[2], tree.tiers[2]["bundle"])
    graph = builder.graph(dims=arguments.dims)
    if any(tier[key] for tier in tree.tiers for key in ("queue_up", "queue_down")):
        warning = f"{name}: Queue_up and Queue_down are not read; [network] sets the queues of switches"
        graph = replace(graph, warnings=(warning,))
    return graph


def estimate(arguments: Arguments) -> Extent | None:
    """Return the size of the network of a file; None if building it will report an error.

    Args:
        arguments: The parameters of the network.
    """
    if inputs.type_of(arguments.path):
        return None
    try:
        text = _text(arguments.path, NAME)
        if is_direct(text):
            return extent_direct(read_direct(text, NAME), Path(arguments.path))
        tree = read_tree(arguments.path, NAME)
    except TopologyError:
        return None
    return Extent(tree.nodes, tree.switches, tree.cables, tree.pods * tree.tors)


def read_tree(path: str, label: str) -> HtsimTree:
    """Return the tree of a file; raise TopologyError, which begins with a label, if it is no tree of htsim's.

    Args:
        path: The file of the tree.
        label: The name of the network, with which errors begin.
    """
    text = _text(path, label)
    header: dict[str, int] = {}
    tiers: list[dict[str, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        place, word = f"{label}: line {number}", words[0].lower()
        if word == "tier":
            if _number(place, words, 2) != len(tiers):
                raise TopologyError.at(place, f"tier {words[1]}", f"tier {len(tiers)}")
            tiers.append({})
            continue
        known = {word: _TIER_WORDS[word] for word in _TIER_WORDS} if tiers else dict.fromkeys(_HEADER, MAX_NODES)
        into = tiers[-1] if tiers else header
        if word not in known or word in into:
            found = "a second" if word in into else "unknown"
            raise TopologyError.at(place, f"{found} {words[0][:40]!r}", f"one of {', '.join(known)}, each once")
        into[word] = _number(place, words, known[word])
    return _fitting(label, header, tiers)


def read_network(path: str, label: str) -> HtsimTree | DirectNetwork:
    """Return the tree, dragonfly or slim fly of a file; TopologyError, which begins with a label, if it has none.

    Args:
        path: The .topo file.
        label: The name of the network, with which errors begin.
    """
    text = _text(path, label)
    return read_direct(text, label) if is_direct(text) else read_tree(path, label)


def _text(path: str, label: str) -> str:
    """Return the content of a file; errors begin with the label."""
    with inputs.refusing(label, _EXPECTED, TopologyError, UnicodeDecodeError):
        return inputs.read_text(path)


def _number(place: str, words: list[str], maximum: int) -> int:
    """Return the number behind the first word of a line."""
    text = words[1] if len(words) == 2 else ""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= maximum):
        found = " ".join(words)[:60]
        raise TopologyError.at(place, f"{found!r}", f"a whole number from 0 to {maximum} behind {words[0][:40]}")
    return int(text)


def _fitting(label: str, header: Mapping[str, int], tiers: list[dict[str, int]]) -> HtsimTree:
    """Return the tree of the numbers of a file, after the checks of FatTreeTopologyCfg::set_custom_params."""
    missing = [word for word in _HEADER if not header.get(word)]
    if missing or not 2 <= header["tiers"] <= 3 or len(tiers) < header["tiers"]:
        found = f"no {missing[0]}" if missing else f"tiers {header['tiers']} and {len(tiers)} sections of tiers"
        raise TopologyError.at(label, found, "Nodes, Tiers 2 or 3, Podsize, and a section for each tier")
    top = header["tiers"] - 1
    levels = [_DEFAULTS | tier for tier in tiers[: top + 1]]
    for i, tier in enumerate(levels):
        needed = ["downlink_speed_gbps", "downlink_latency_ns", "radix_down", *["radix_up"] * (i < top)]
        absent = [word for word in needed if not tier.get(word)]
        if absent:
            raise TopologyError.at(label, f"tier {i} has no {absent[0]}", "a number above 0")
    nodes, pod_hosts = header["nodes"], header["podsize"]
    if nodes % pod_hosts or pod_hosts % levels[0]["radix_down"] or levels[0]["bundle"] != 1:
        raise TopologyError(
            f"{label}: {nodes} nodes in pods of {pod_hosts} on ToRs of {levels[0]['radix_down']}, bundle "
            f"{levels[0]['bundle']}; expected that each divides the one before, and bundle 1"
        )
    # Counts follow from rates: hosts x rate down = oversubscription x uplinks x rate up, over all pods together.
    # A fat tree with k = 4, at one rate: 16 nodes in 4 pods have 16 uplinks of ToRs; aggregation switches with 2
    # downlinks are 16 / (4 x 2) = 2 in each pod; their 16 uplinks need 4 core switches with 4 downlinks.
    pods, rate = nodes // pod_hosts, [tier["downlink_speed_gbps"] for tier in levels]
    tor_uplinks = _ratio(label, "uplinks of ToRs", nodes * rate[0], rate[1] * levels[0]["oversubscribed"])
    aggs = _ratio(label, "aggregation switches of a pod", tor_uplinks, pods * levels[1]["radix_down"])
    if aggs * levels[1]["bundle"] != levels[0]["radix_up"]:
        raise TopologyError(
            f"{label}: radix_up of tier 0 is {levels[0]['radix_up']}; expected {aggs * levels[1]['bundle']}, {aggs} "
            f"aggregation switches of a pod with bundles of {levels[1]['bundle']}"
        )
    if top == 1:
        return HtsimTree(nodes, pod_hosts, tuple(levels), aggs, 0)
    agg_uplinks = _ratio(label, "uplinks to the core", tor_uplinks * rate[1], rate[2] * levels[1]["oversubscribed"])
    cores = _ratio(label, "core switches", agg_uplinks, levels[2]["radix_down"])
    if cores % aggs or cores * levels[2]["bundle"] // aggs != levels[1]["radix_up"]:
        raise TopologyError(
            f"{label}: radix_up of tier 1 is {levels[1]['radix_up']} with {cores} core switches and {aggs} aggregation "
            f"switches of a pod; expected cores x bundle / aggregation switches"
        )
    return HtsimTree(nodes, pod_hosts, tuple(levels), aggs, cores)


def _ratio(label: str, what: str, total: int, divisor: int) -> int:
    """Return total / divisor; TopologyError if that is no whole number from 1."""
    if not divisor or total % divisor or not total:
        raise TopologyError.at(label, f"{total} / {divisor} {what}", "a whole number from 1")
    return total // divisor
