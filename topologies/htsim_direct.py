"""htsim's files of dragonflies and slim flies: a .topo with sizes, rates and latencies, and the routers' neighbours.

The words are those of SlimFlyTopology::load_topology and its like for dragonflies in spcl's htsim: `p`, NPUs of a
router, with `a` and `h` (routers of a group and global links of a router) or with `q`; rates and latencies of hosts'
links, of local and of global links. Routers with equal numbers divided by a or q are a group, within which links are
local. A file of the same name that ends in .adjlist has a line per router: its number, then those of neighbours.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nadi import inputs
from nadi.inputs.arrays import Int64
from nadi.inputs.limits import LINK_RATE_BPS, LONGEST_DELAY_PS, MAX_CABLES, MAX_NODES
from nadi.inputs.units import BITS_PER_BYTE, GBPS, NS, PS_PER_S
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder

_PLACES = ("host", "local", "global")
_SIZES = ({"p", "a", "h"}, {"p", "q"})  # of a dragonfly and of a slim fly
_EXPECTED = "routers and their neighbours (htsim's .adjlist)"


class DirectNetwork(NamedTuple):
    """The numbers of a .topo file."""

    p: int  # NPUs of a router
    group: int  # routers of a group
    routers: int  # number of routers
    is_slim_fly: bool
    switch_latency_ns: int
    rate_gbps: dict[str, int]  # rates of links of hosts, local links and global links
    latency_ns: dict[str, int]  # latencies of these links

    def round_trip_ps(self, packet_bytes: int, ack_bytes: int) -> float:
        """Return the longest idle round trip in picoseconds as get_max_rtt of htsim: a detour, a shortest path back.

        Args:
            packet_bytes: Size of a full packet with its header.
            ack_bytes: Size of its acknowledgement.
        """
        total_ps = 0.0
        there, back = ((0, 4), (0, 2)) if self.is_slim_fly else ((3, 2), (2, 1))
        for size, (near, far) in ((packet_bytes, there), (ack_bytes, back)):
            total_ps += (1 + near + far) * self.switch_latency_ns * NS
            for place, links in {"host": 2, "local": near, "global": far}.items():
                sending_ps = size * BITS_PER_BYTE * PS_PER_S / (self.rate_gbps[place] * GBPS)
                total_ps += links * (self.latency_ns[place] * NS + sending_ps)
        return total_ps


def is_direct(text: str) -> bool:
    """Return whether the text of a .topo file is of a dragonfly or slim fly, which begins with one of their sizes.

    Args:
        text: The content of the file.
    """
    return next((words[0] in {"p", "q", "a", "h"} for _, words in _lines(text)), False)


def read_direct(text: str, label: str) -> DirectNetwork:
    """Return the numbers of the file; TopologyError, which begins with the label, if one is missing or wrong.

    Args:
        text: The content of the file.
        label: The name of the network, with which errors begin.
    """
    maxima = {word: MAX_NODES for sizes in _SIZES for word in sizes}
    maxima |= {"Switch_latency_ns": LONGEST_DELAY_PS // NS}
    maxima |= {f"Link_speed_{place}_Gbps": LINK_RATE_BPS.maximum // GBPS for place in _PLACES}
    maxima |= {f"Link_latency_{place}_ns": LONGEST_DELAY_PS // NS for place in _PLACES}
    found: dict[str, int] = {}
    for number, words in _lines(text):
        place, word = f"{label}: line {number}", words[0]
        if word not in maxima or word in found:
            known = "a second" if word in found else "unknown"
            raise TopologyError.at(place, f"{known} {word[:40]!r}", f"one of {', '.join(maxima)}, each once")
        value = words[1] if len(words) == 2 else ""
        if not (value.isascii() and value.isdecimal() and len(value) < 20 and int(value) <= maxima[word]):
            shown = " ".join(words)[:60]
            raise TopologyError.at(place, f"{shown!r}", f"a whole number from 0 to {maxima[word]} behind {word}")
        found[word] = int(value)
    sizes = {word for word in found if word in _SIZES[0] | _SIZES[1]}
    if sizes not in _SIZES or not all(found[word] for word in sizes):
        raise TopologyError.at(label, f"sizes {', '.join(sorted(sizes))}", "p, a and h, or p and q, from 1")
    missing = next((word for word in maxima if word not in found and word not in "pahq"), None)
    if missing:
        raise TopologyError.at(label, f"no {missing}", "it in a line")
    is_dragonfly = "a" in found
    group = found["a"] if is_dragonfly else found["q"]
    routers = group * (group * found["h"] + 1) if is_dragonfly else 2 * group * group
    if routers * (found["p"] + 1) > MAX_NODES:
        raise TopologyError.at(label, f"{routers * (found['p'] + 1)} nodes", f"at most {MAX_NODES}")
    rates, latencies = (
        {place: found[f"Link_{word.format(place)}"] for place in _PLACES} for word in ("speed_{}_Gbps", "latency_{}_ns")
    )
    return DirectNetwork(found["p"], group, routers, not is_dragonfly, found["Switch_latency_ns"], rates, latencies)


def build_direct(network: DirectNetwork, path: Path, label: str, dims: tuple[int, ...]) -> Graph:
    """Return the network, whose pods are its groups; switches are "router 0", ... by htsim's numbers.

    Groups of a dragonfly are groups of the graph; of a slim fly, each router is. Raises TopologyError: the file of
    neighbours is missing or wrong.

    Args:
        network: The numbers of the .topo file.
        path: The .topo file, beside which the file of neighbours is.
        label: The name of the network, with which errors begin.
        dims: Logical dimensions of the hosts, fastest first; () for one.
    """
    ends = _neighbours(path.with_suffix(".adjlist"), network.routers)
    router = np.arange(network.routers)
    host, pod = np.arange(network.routers * network.p), router // network.group
    builder = GraphBuilder(label, len(host))
    builder.set_npu_pods(pod[host // network.p])
    switch = builder.add_named_switches(
        [f"router {i}" for i in router],
        latency_ps=network.switch_latency_ns * NS,
        pod=pod,
        group=router if network.is_slim_fly else pod,
    )
    rates, delays = network.rate_gbps, network.latency_ns
    builder.add_cables(host, switch[host // network.p], rates["host"] * GBPS, delays["host"] * NS)
    is_local = pod[ends[0]] == pod[ends[1]]
    for place, chosen in (("local", is_local), ("global", ~is_local)):
        a, b = switch[ends[:, chosen]]
        builder.add_cables(a, b, rates[place] * GBPS, delays[place] * NS)
    return builder.graph(dims=dims)


def extent_direct(network: DirectNetwork, path: Path) -> Extent | None:
    """Return the size of the network; None if the file of neighbours is missing or wrong, which building it reports.

    Args:
        network: The numbers of the .topo file.
        path: The .topo file, beside which the file of neighbours is.
    """
    try:
        cables = _neighbours(path.with_suffix(".adjlist"), network.routers).shape[1]
    except TopologyError:
        return None
    npus = network.routers * network.p
    return Extent(npus, network.routers, npus + cables, network.routers)


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield number and words of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield number, words


def _neighbours(path: Path, routers: int) -> Int64:
    """Return the two ends of each cable, int64[2, cables]; TopologyError: the file is missing or wrong."""
    with inputs.refusing(str(path), _EXPECTED, TopologyError, UnicodeDecodeError):
        text = inputs.read_text(str(path))
    pairs: list[tuple[int, int]] = []
    for number, words in _lines(text):
        if not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
            raise TopologyError.at(f"{path}: line {number}", f"{' '.join(words)[:60]!r}", "numbers of routers")
        here, *others = map(int, words)
        if max(here, *others, here) >= routers or here in others:
            raise TopologyError.at(f"{path}: line {number}", f"router {max(here, *others)}", f"others below {routers}")
        pairs += [(here, other) for other in others]
        if len(pairs) > MAX_CABLES:
            raise TopologyError.at(path, f"more than {MAX_CABLES} cables", "fewer")
    return np.array(pairs, np.int64).reshape(-1, 2).T
