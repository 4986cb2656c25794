"""Files and options of htsim's UEC program (htsim_uec) and ATLAHS: connection matrices, topologies and GOAL schedules.

Sources of the meanings: ultraethernet/uet-htsim, Broadcom/csg-htsim and spcl/HTSIM, sim/datacenter
(connection_matrix.cpp, fat_tree_topology.cpp, main_uec.cpp) and sim/trigger.cpp.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nadi import topologies
from nadi.errors import ConfigError
from nadi.et import NodeType
from nadi.et.formats import goal
from nadi.importers import TranslatedRun
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S, PS_PER_US, format_rate, format_time
from nadi.pdes import wire
from nadi.simulation.run import FinishedRun
from nadi.terminal import say
from nadi.topologies import SWITCH, Graph
from nadi.topologies.builders.htsim import DirectNetwork, HtsimTree, read_network
from nadi.workload import TraceSet
from nadi.workload.generators import point_to_point

HEADER_BYTES = 64  # UecSrc::_hdr_size, and the size of acknowledgements and trimmed packets
_ECN_REFERENCE_BPS = 25 * 10**9  # rate for which [network] ecn_kmin and ecn_kmax hold
_FAILED_SHARE = 0.25  # of the rate, queue and thresholds that a link of -failed keeps (FatTreeTopologyCfg)
_MAX_BUFFER_BYTES = 2_000_000_000  # buffer of a switch: each port has a queue of its own, and none shares
_ECN_SHARES = (0.2, 0.8)  # of the bandwidth-delay product, if -ecn is not given
_TARGET_WITH_TRIMMING = 0.75  # target queueing delay in round trips where switches trim (UecSrc::initNsccParams)
_CONTROLS = {"nscc": "nscc", "dctcp": "dctcp", "constant": "none"}
_STRATEGIES = {"ecmp_ar": "adaptive", "ecmp_host_ar": "adaptive"}
_ENTROPY_RULES = {
    **{name: name for name in ("oblivious", "bitmap", "reps", "mixed")},
    "reps_legacy": "reps",
    "freezing": "reps",
}
_BALANCINGS = (*_ENTROPY_RULES, "ecmp")


class HtsimOptions(NamedTuple):
    """Options of htsim_uec with its defaults."""

    traffic: Path | None = None  # -tm, connection matrix
    goal: Path | None = None  # -goal, GOAL schedule
    topology: str = ""  # -topo, tree of a file, or a specification of Nadi
    nodes: int = 0  # -nodes; 0 = those of the traffic
    tiers: int = 3  # -tiers of a tree without a file
    link_mbps: float = 100_000.0  # -linkspeed of a tree without a file
    hop_us: float = 1.0  # -hop_latency of a tree without a file
    switch_us: float = 0.0  # -switch_latency of a tree without a file
    packet_bytes: int = 4150  # -mtu, bytes of a full packet with header
    queue_packets: int = 0  # -q; 0 = the bandwidth-delay product
    ecn_packets: tuple[int, int] | None = None  # -ecn
    window_packets: int = 0  # -cwnd; 0 = that of the control
    paths: int = 64  # -paths
    control: str = "nscc"  # -sender_cc_algo
    strategy: str = "ecmp_host"  # -strat
    balancing: str = "mixed"  # -load_balancing_algo
    target_us: float = 0.0  # -target_q_delay; 0 = by the round trip
    trims: bool = True  # without -disable_trim
    seed: int = 13  # -seed
    sender_controls: bool = True  # without -receiver_cc_only
    receiver_controls: bool = False  # -receiver_cc, -receiver_cc_only
    oversubscribed: bool = True  # without -force_disable_oversubscribed_cc
    sack_bytes: int = 16_384  # -sack_threshold, UecSink::_bytes_unacked_threshold
    failed: int = 0  # -failed, switches of the upper tier whose links are slow


def translated(options: HtsimOptions) -> TranslatedRun:
    """Return the sections of a run file; ConfigError or TopologyError if a file or option is wrong."""
    if (options.traffic is None) == (options.goal is None):
        found = "neither" if options.goal is None else "both"
        raise ConfigError(f"found {found} of -tm MATRIX and -goal SCHEDULE; expected one of them")
    matrix = point_to_point.read_connections(options.traffic) if options.traffic is not None else None
    warnings: list[str] = []
    if matrix is not None:
        made = point_to_point.flow_traces(matrix)
        traces = made.traces
        if made.signals:
            warnings.append(f"{made.signals} triggers reach other nodes by messages of one byte; htsim takes no time")
    else:
        tables = goal.read([options.goal or Path()], {}).tables
        traces = TraceSet.of([tables[rank] for rank in range(len(tables))])
    graph, form = _fabric(options, traces.npus)
    tree = form if isinstance(form, HtsimTree) else None
    network, differences = _network(options, graph, form)
    # With acknowledgements both ends of a message end when the last one is back, without them when the bytes are.
    flows = matrix.flows if matrix is not None else ()
    by_receiver = any(flow.recv_done for flow in flows)
    network["acknowledged"] = not by_receiver
    if by_receiver and any(flow.send_done for flow in flows):
        warnings.append("send_done_trigger fires when the last byte has left, as recv_done_trigger is used too")
    sections: dict[str, Any] = {
        "workload": {"trace_set": traces},
        "topology": {"graph": graph},
        "network": network,
        "engine": {"seed": options.seed},
    }
    if matrix is not None:
        sections["compute"] = {"peak_flops": f"{point_to_point.OPS_PER_S}FLOPS"}
    if matrix is not None and matrix.failures:
        sections["faults"] = list(_faults(matrix, tree))
    return TranslatedRun(sections, (*warnings, *differences))


def _fabric(options: HtsimOptions, nodes: int) -> tuple[Graph, HtsimTree | DirectNetwork | None]:
    """Return the fabric, and its form if a file of htsim describes it."""
    form: HtsimTree | DirectNetwork | None = None
    if options.topology:
        graph = topologies.build(options.topology)
        spec = topologies.parse_spec(options.topology)
        if spec.get("name") == "htsim":
            form = read_network(str(spec["path"]), options.topology)
    else:
        graph = topologies.build(_usual_tree(options, options.nodes or nodes))
    if graph.npus < nodes or (options.nodes and graph.npus != options.nodes):
        wanted = options.nodes or nodes
        raise ConfigError(f"{graph.name}: {graph.npus} nodes; expected {wanted}, those of -nodes and the traffic")
    return _with_failed(graph, options.failed), form


def _with_failed(graph: Graph, failed: int) -> Graph:
    """Return the fabric in which all links of the first `failed` switches of the upper of two tiers are slow."""
    if not failed:
        return graph
    is_leaf = np.zeros(graph.nodes, bool)
    is_leaf[graph.link_dst[graph.link_src < graph.npus]] = True
    spines = np.flatnonzero((graph.node_kind == SWITCH) & ~is_leaf)
    if is_leaf[graph.link_src[np.isin(graph.link_dst, spines)]].all() and failed <= len(spines):
        slow = np.isin(graph.link_src, spines[:failed]) | np.isin(graph.link_dst, spines[:failed])
        rates = np.where(slow, (graph.link_rate_bps * _FAILED_SHARE).astype(np.int64), graph.link_rate_bps)
        return replace(graph, link_rate_bps=rates)
    raise ConfigError(f"-failed {failed} on {graph.name}; expected a tree of two tiers with as many upper switches")


def _usual_tree(options: HtsimOptions, nodes: int) -> str:
    """Return the specification of htsim's tree of switches with K ports: K^3 / 4 nodes of 3 tiers, K^2 / 2 of 2."""
    ports = next((k for k in range(2, 1024, 2) if (k**3 // 4 if options.tiers == 3 else k * k // 2) >= nodes), 0)
    if not ports or (ports**3 // 4 if options.tiers == 3 else ports**2 // 2) != nodes:
        form = "K^3 / 4" if options.tiers == 3 else "K^2 / 2"
        raise ConfigError(f"{nodes} nodes on {options.tiers} tiers; expected {form} for an even K, or -topo FILE")
    rate, delay = f"{round(options.link_mbps)}Mbps", format_time(round(options.hop_us * PS_PER_US))
    rest = f"rate={rate},delay={delay},switch_latency={format_time(round(options.switch_us * PS_PER_US))}"
    if options.tiers == 3:
        return f"fat-tree:k={ports},{rest}"
    return f"leaf-spine:npus={nodes},hosts_per_leaf={ports // 2},spines={ports // 2},{rest}"


def _network(
    options: HtsimOptions, graph: Graph, form: HtsimTree | DirectNetwork | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the section [network], and sentences about what differs."""
    if options.control not in _CONTROLS or options.balancing not in _BALANCINGS:
        known = ", ".join(_CONTROLS if options.control not in _CONTROLS else _BALANCINGS)
        found = options.control if options.control not in _CONTROLS else options.balancing
        raise ConfigError(f"found {found[:40]!r}; expected one of {known}")
    payload = options.packet_bytes - HEADER_BYTES
    tree = form if isinstance(form, HtsimTree) else None
    round_trip_ps, bdp_packets = _round_trip(options, graph, form)
    queue = options.queue_packets or bdp_packets
    low, high = options.ecn_packets or tuple(math.ceil(share * bdp_packets) for share in _ECN_SHARES)
    if low > high:
        raise ConfigError(f"-ecn {low} {high}; expected the lower threshold first")
    rates, counts = np.unique(graph.link_rate_bps[graph.node_kind[graph.link_src] == SWITCH], return_counts=True)
    rate = int(rates[np.argmax(counts)])
    scale = options.packet_bytes * _ECN_REFERENCE_BPS / rate
    control = _CONTROLS[options.control] if options.sender_controls else "none"
    network: dict[str, Any] = {
        "mtu": payload,
        "header": f"{HEADER_BYTES}B",
        "ack": f"{HEADER_BYTES}B",
        "switch": "shared-buffer",
        "buffer": f"{_MAX_BUFFER_BYTES}B",
        "pfc": False,
        "pfc_alpha": 1.0,
        "trim_threshold": f"{round(queue * scale)}B",
        "trimming": options.trims,
        "ecn": True,
        "ecn_kmin": f"{round(low * scale)}B",
        "ecn_kmax": f"{round(high * scale)}B",
        "ecn_pmax": 1.0,
        "congestion_control": control,
        "delivery": "rud",
        "ack_every": f"{options.sack_bytes}B",
        "queue_pairs": "message",
        "load_balancing": _STRATEGIES.get(options.strategy, "ecmp"),
    }
    paths = min(options.paths, wire.MAX_PATHS)
    if options.strategy not in _STRATEGIES and paths > 1 and options.balancing in _ENTROPY_RULES:
        # htsim takes the number of paths as a mask, so it expects a power of two
        network |= {"entropy": _ENTROPY_RULES[options.balancing], "paths": 1 << (paths.bit_length() - 1)}
    if options.trims:
        # CompositeQueue sends headers before data (100,000 to 1)
        network |= {"trimmed_size": f"{HEADER_BYTES}B", "trim_share": 1.0}
    if options.receiver_controls:
        slows = tree is not None and options.oversubscribed and not options.sender_controls
        ratio = math.prod(tier["oversubscribed"] for tier in tree.tiers) if tree and slows else 1
        network |= {"receiver_credits": True, "ecn_last_hop": False, "oversubscription": float(ratio)}
    if not options.sender_controls:
        network["window"] = f"{wire.SELECTIVE_PACKETS * payload}B"  # credits alone limit what is under way
    elif options.window_packets:
        network["window"] = f"{options.window_packets * payload}B"
    if control == "nscc":
        target = options.target_us * PS_PER_US / round_trip_ps
        network["congestion"] = {"target_qdelay_rtts": target or (_TARGET_WITH_TRIMMING if options.trims else 1.0)}
        if isinstance(form, DirectNetwork):
            network["congestion"]["base_rtt_ps"] = round_trip_ps  # Nadi's bound has twice the longest shortest path
    others = [format_rate(int(other)) for other in rates if other != rate]
    text = f"thresholds of -ecn are scaled by rate at ports of {', '.join(others)}; htsim has them in packets"
    return network, [text] if others else []


def _round_trip(options: HtsimOptions, graph: Graph, form: HtsimTree | DirectNetwork | None) -> tuple[float, int]:
    """Return the longest idle round trip in picoseconds, and its product with the rate of an NPU's link in packets.

    Both as in calculate_rtt and calculate_bdp_pkt of main_uec.cpp, or in get_max_rtt of dragonflies and slim flies.
    """
    rate = int(graph.link_rate_bps[graph.out_links(0)[0]])
    packet_ps = options.packet_bytes * BITS_PER_BYTE / rate * PS_PER_S
    if isinstance(form, DirectNetwork):
        round_trip_ps = form.round_trip_ps(options.packet_bytes, HEADER_BYTES)
        return round_trip_ps, math.ceil(round_trip_ps / packet_ps)
    tiers = len(form.tiers) if form else options.tiers
    hops = 2 * tiers
    usual_ps = (hops * options.hop_us + (hops - 1) * options.switch_us) * PS_PER_US
    # three tiers: 6 cables and 5 switches each way
    one_way_ps = form.diameter_ps if form else usual_ps
    bits = (options.packet_bytes + HEADER_BYTES) * BITS_PER_BYTE
    round_trip_ps = 2 * one_way_ps + hops * bits / rate * PS_PER_S
    return round_trip_ps, math.ceil(round_trip_ps / packet_ps)


def _faults(matrix: point_to_point.ConnectionMatrix, tree: HtsimTree | None) -> Iterator[dict[str, Any]]:
    """Yield the fault of each failed uplink, which carries nothing from the start; the first cable of a bundle."""
    for failed in matrix.failures:
        if tree is None or len(tree.tiers) != 3:
            raise ConfigError(f"{failed.place}: a failure on other than a .topo file of three tiers; expected one")
        core = _core_of(failed, tree)
        yield {"at": "0ps", "link": f"agg {failed.switch} - core {core}", "cable": 0, "state": "down"}


def _core_of(failed: point_to_point.FailedLink, tree: HtsimTree) -> int:
    """Return the core switch at the other end of a failed uplink."""
    aggs, uplinks = tree.pods * tree.aggs, tree.tiers[1]["radix_up"] // tree.tiers[2]["bundle"]
    if failed.switch_type != "AGG" or failed.switch >= aggs or failed.link >= uplinks:
        raise ConfigError(
            f"{failed.place}: {failed.switch_type} {failed.switch}, link {failed.link}; expected AGG 0 to {aggs - 1}, "
            f"link 0 to {uplinks - 1}"
        )
    # link 1 of the second of 2 aggregation switches of a pod leads to core 1 + 2 x 1 = 3
    return failed.switch % tree.aggs + tree.aggs * failed.link


def print_spread(run: FinishedRun, *, err: bool) -> None:
    """Print the shortest, longest and mean time of the flows: from the post of a send to its last acknowledgement.

    Nothing is printed if the run does not have sends wait for it. err: Whether the line goes to standard error.
    """
    if not run.settings.fidelity.acknowledged:
        return
    times = []
    for npu, trace in enumerate(run.trace_of_npu.tolist()):
        rows = slice(*run.results.npu_node_ptr[npu : npu + 2].tolist())
        if trace >= 0 and rows.stop > rows.start:
            is_send = run.traces[trace].type == NodeType.COMM_SEND_NODE
            times.append((run.results.node_finish_ps[rows] - run.results.node_start_ps[rows])[is_send])
    spent = np.concatenate(times) if times else np.zeros(0)
    if len(spent):
        low, high = spent.min() / PS_PER_US, spent.max() / PS_PER_US
        mean = spent.mean() / PS_PER_US
        spread = f"FCT spread {low:.6g} -> {high:.6g} us, ratio {high / low:.4g}, mean {mean:.6g} us"
        say(f"{spread}, {len(spent):,} flows", err=err)
