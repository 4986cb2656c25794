"""Servers from a description of one: GPUs, NVLinks, PCIe switches, CPUs and NICs, which meet those of others on rails.

NVLink is nearer than PCIe: a GPU reaches the PCIe tree through a port of its own, so that packets take PCIe only where
no NVLink joins two GPUs; a GPU with several NICs at it has a port for each. Two GPUs with a direct NVLink have a node
between them, as NPUs carry no transit.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pydantic import Field

from nadi.inputs.limits import LINK_RATE_BPS
from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import NVSWITCH, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Parameters, Time

Cable = tuple[int, int, int, int]  # two nodes, rate in bps, delay in ps


class GpuGeneration(NamedTuple):
    """What a description may leave out about GPUs and their servers."""

    accelerator: str  # model for NCCL's constants
    nvlink_bps: int  # rate of an NVLink or xGMI link, each direction
    nvlinks: int  # NVLinks or xGMI links of a GPU
    pcie_bps: int  # rate of its PCIe link of 16 lanes, as NCCL takes it
    nic_bps: int  # rate of the NICs of its servers


GENERATIONS = {
    "v100": GpuGeneration("v100", 200 * GBPS, 6, 96 * GBPS, 100 * GBPS),
    "a100": GpuGeneration("a100", 200 * GBPS, 12, 192 * GBPS, 200 * GBPS),
    "h100": GpuGeneration("h100", 200 * GBPS, 18, 384 * GBPS, 400 * GBPS),
    "b200": GpuGeneration("b200", 400 * GBPS, 18, 384 * GBPS, 400 * GBPS),
}
# AMD's GPUs, whose xGMI links join pairs. Three eighths of the rates of a link that AMD's white papers on CDNA, CDNA 2,
# CDNA 3 and CDNA 4 state for both directions, 92, 100, 128 and 153.6 GB/s (MI50 as MI100): CRC and the protocol leave
# 48 of the 64 GB/s of MI300X (AMD, Understanding RCCL Bandwidth and xGMI Performance on MI300X), as RCCL counts it
# (GFX94X_XGMI_WIDTH of topo.h), and rccl-tests show as much of MI355X: 407 GB/s over seven links. NICs are assumed.
AMD_GENERATIONS = {
    "mi50": GpuGeneration("mi50", 276 * GBPS, 2, 192 * GBPS, 100 * GBPS),
    "mi100": GpuGeneration("mi100", 276 * GBPS, 3, 192 * GBPS, 200 * GBPS),
    "mi250x": GpuGeneration("mi250x", 300 * GBPS, 3, 192 * GBPS, 200 * GBPS),
    "mi300x": GpuGeneration("mi300x", 384 * GBPS, 7, 384 * GBPS, 400 * GBPS),
    "mi355x": GpuGeneration("mi355x", 460_800_000_000, 7, 384 * GBPS, 400 * GBPS),
}


class DelayArguments(Parameters):
    """Delays, which descriptions of servers do not have."""

    nvlink_delay: Time = Field(25 * NS, description="propagation delay between a GPU and an NVSwitch or another GPU")
    pcie_delay: Time = Field(100 * NS, description="propagation delay of a PCIe link or a link between CPUs")
    delay: Time = Field(500 * NS, description="propagation delay between a NIC and the switch of its rail")
    switch_latency: Time = Field(0, description="forwarding latency of the switch of a rail")


class HostArguments(DelayArguments):
    """Parameters that descriptions of a server do not have."""

    servers: Count = Field(1, description="number of servers of this kind; their NICs meet on a switch for each NIC")


class HostPlan(NamedTuple):
    """One server, or several: nodes 0 .. gpus-1 are the GPUs, those behind them the `parts`, in order."""

    host: list[int]  # server of each GPU
    parts: list[str]  # names of PCIe switches, CPUs and NICs
    nvlinks: dict[int, int]  # rate of all NVLinks of a GPU to the NVSwitch of its server, by GPU
    direct: list[Cable]  # NVLinks between two GPUs, all of a pair together
    cables: list[Cable]  # other links between parts, or of a GPU and a part
    nics: dict[int, int]  # rate of the uplink of a NIC to a rail, by its node
    accelerator: str = ""
    direct_name: str = "nvlink"  # begin of the names of the links in `direct`

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return len(self.host)


def generation_of(name: str, label: str, known: Mapping[str, GpuGeneration] = GENERATIONS) -> GpuGeneration:
    """Return the generation of a name; TopologyError, which begins with `label`, if it is unknown.

    Args:
        name: The name of the generation, as the user or a file gives it.
        label: The name of the network, with which errors begin.
        known: The generations by name.
    """
    if name not in known:
        raise TopologyError.at(label, f"accelerator {name[:40]!r}", f"one of {', '.join(known)}")
    return known[name]


def graph_of(name: str, plan: HostPlan, arguments: DelayArguments, servers: int = 1) -> Graph:
    """Return the network of the servers; TopologyError: there is no GPU, or nothing joins two of them.

    Args:
        name: The name of the network, with which errors begin.
        plan: The GPUs, NVLinks, PCIe parts and NICs of one server.
        arguments: The delays and latencies that the plan does not hold.
        servers: The number of servers, 1 or more.
    """
    builder = GraphBuilder(name, plan.gpus * servers)
    nics: list[int] = []
    if servers > 1:
        plan = with_own_nics(plan, fewest_gpus=2)
        plan = _with_parallel_nics_as_one(plan, _nearest_nics(plan))
        nics = sorted({nic for own in _nearest_nics(plan) for nic in own})
        if not nics:
            raise TopologyError.at(name, f"servers = {servers}, but no NIC", "one that a GPU reaches")
    rails = builder.add_switches("rail", len(nics), latency_ps=arguments.switch_latency)
    for server in range(servers):
        node = _add_server(builder, plan, arguments, server if servers > 1 else None)
        for rail, nic in zip(rails.tolist(), nics, strict=True):
            builder.add_cables(node(nic), rail, plan.nics[nic], arguments.delay)
    hosts = 1 + max(plan.host)
    host = [server * hosts + own for server in range(servers) for own in plan.host]
    each = len(host) // len(set(host))
    # only consecutive and equally many GPUs per server are two logical dimensions
    in_order = 1 < each < len(host) and host == [gpu // each for gpu in range(len(host))]
    sizes = (each, len(host) // each) if in_order else ()
    return builder.graph(dims=sizes, host=host, accelerator=plan.accelerator)


def _add_server(
    builder: GraphBuilder, plan: HostPlan, arguments: DelayArguments, server: int | None
) -> Callable[[int], int]:
    """Add the nodes and cables of a server, None = the only one; return the function from a plan's node to its node."""
    before = "" if server is None else f"{server}/"
    first_gpu, n, first = (server or 0) * plan.gpus, plan.gpus, int(builder.nodes)

    def node(own: int) -> int:
        return first_gpu + own if own < n else first + own - n

    builder.add_named_switches([f"{kind} {before}{part}" for kind, _, part in (p.rpartition(" ") for p in plan.parts)])
    linked = {*plan.nvlinks, *(gpu for cable in plan.direct for gpu in cable[:2])}
    own_port = _cables_to_several_nics(plan)
    rate_of: dict[tuple[int, int], int] = {}  # of the first cable at a port, by GPU, and NIC if there are several
    for a, b, rate, _ in plan.cables:
        for gpu in {a, b} & linked:
            rate_of.setdefault((gpu, a + b - gpu if (gpu, a + b - gpu) in own_port else -1), rate)
    names = [f"pcie port {before}{gpu}" + f".{nic - n}" * (nic >= 0) for gpu, nic in sorted(rate_of)]
    port_of = dict(zip(sorted(rate_of), builder.add_named_switches(names).tolist(), strict=True))
    for end, port in port_of.items():
        builder.add_cables(node(end[0]), port, rate_of[end], 0)
    for a, b, rate, delay_ps in plan.cables:
        # a + b - one is the other end of the cable
        end, other = (port_of.get((one, a + b - one), port_of.get((one, -1), node(one))) for one in (a, b))
        builder.add_cables(end, other, rate, delay_ps)
    hosts = sorted({plan.host[gpu] for gpu in plan.nvlinks})
    switches = builder.add_named_switches([f"nvswitch {before}{host}" for host in hosts], kind=NVSWITCH)
    switch_of = dict(zip(hosts, switches.tolist(), strict=True))
    for gpu, rate in plan.nvlinks.items():
        builder.add_cables(node(gpu), switch_of[plan.host[gpu]], rate, arguments.nvlink_delay)
    for a, b, rate, delay_ps in plan.direct:
        between = builder.add_named_switches([f"{plan.direct_name} {before}{a}-{b}"], kind=NVSWITCH)
        # the node between them takes half of the delay each way: the link keeps its delay to the picosecond
        builder.add_cables([node(a), node(b)], between.repeat(2), rate, [delay_ps // 2, delay_ps - delay_ps // 2])
    return node


def _nearest_nics(plan: HostPlan) -> list[tuple[int, ...]]:
    """Return the NICs that are nearest to each GPU by links of PCIe, ascending."""
    near = _neighbours(plan)
    found = []
    for gpu in range(plan.gpus):
        level, seen = [gpu], {gpu}
        # breadth first, one cable further per round, until a round meets a NIC
        while level and not any(node in plan.nics for node in level):
            level = list(dict.fromkeys(other for node in level for other in near.get(node, ()) if other not in seen))
            seen.update(level)
        found.append(tuple(sorted(node for node in level if node in plan.nics)))
    return found


def with_own_nics(plan: HostPlan, fewest_gpus: int) -> HostPlan:
    """Return the plan with NICs that several GPUs are nearest to at the ports of those GPUs, if each gets equally much.

    NCCL shares such NICs out among the GPUs, and packets shall go as it sends them. The links of both stay as they are.

    Args:
        plan: The servers; `nics` has the NICs that may move, by their rates.
        fewest_gpus: The smallest number of GPUs that share NICs which move.
    """
    gpus_of: dict[tuple[int, ...], list[int]] = {}
    for gpu, own in enumerate(_nearest_nics(plan)):
        gpus_of.setdefault(own, []).append(gpu)
    owner: dict[int, int] = {}
    for nics, gpus in gpus_of.items():
        are_alike = len(gpus) == 1 or len({plan.nics[nic] for nic in nics}) == 1
        if len(gpus) >= fewest_gpus and len(nics) > 1 and len(nics) % len(gpus) == 0 and are_alike:
            owner.update({nic: gpus[i % len(gpus)] for i, nic in enumerate(nics)})
    steps = _steps_from_gpus(plan)
    stays: list[Cable] = []
    moved: list[Cable] = []
    for cable in plan.cables:
        # the cable by which GPUs reach an owned NIC moves to its owner's port; its cables further on stay
        near, far = sorted(cable[:2], key=lambda node: steps.get(node, math.inf))
        if far in owner and steps[near] < steps[far]:
            moved.append((owner[far], far, *cable[2:]))
        else:
            stays.append(cable)
    return plan._replace(cables=stays + moved)


def _steps_from_gpus(plan: HostPlan) -> dict[int, int]:
    """Return the number of cables from the nearest GPU to each node that a GPU reaches without NVLink."""
    near = _neighbours(plan)
    steps = dict.fromkeys(range(plan.gpus), 0)
    level = list(steps)
    for node in level:  # grows by what each node reaches first
        for other in near.get(node, ()):
            if other not in steps:
                steps[other] = steps[node] + 1
                level.append(other)
    return steps


def _cables_to_several_nics(plan: HostPlan) -> set[tuple[int, int]]:
    """Return GPU and other end of the cables of GPUs that lead out of the server, if it has several of these.

    They lead to chips with one other cable, as NICs are, or to switches that GPUs of other servers reach, too.
    """
    near = _neighbours(plan)

    def leads_out(end: int) -> bool:
        return len(near[end]) == 2 or len({plan.host[gpu] for gpu in near[end] if gpu < plan.gpus}) > 1

    chips = {gpu: [end for end in near.get(gpu, ()) if leads_out(end)] for gpu in range(plan.gpus)}
    return {(gpu, chip) for gpu, own in chips.items() if len(own) > 1 for chip in own}


def _neighbours(plan: HostPlan) -> dict[int, list[int]]:
    """Return the other ends of the cables at each node that has one."""
    near: dict[int, list[int]] = {}
    for a, b, *_ in plan.cables:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    return near


def _with_parallel_nics_as_one(plan: HostPlan, nearest: list[tuple[int, ...]]) -> HostPlan:
    """Return the plan with NICs at one place that the same GPUs use as the first of them, with their rates together.

    NCCL spreads its channels over them in proportion to their rates, which no choice of a path by connection imitates.
    """
    users = {nic: tuple(gpu for gpu, own in enumerate(nearest) if nic in own) for nic in plan.nics}
    place = {nic: tuple(sorted(a + b - nic for a, b, *_ in plan.cables if nic in {a, b})) for nic in plan.nics}
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    one_of = {nic: first.setdefault((users[nic], place[nic]), nic) if users[nic] else nic for nic in sorted(plan.nics)}
    kept = [node for node in range(plan.gpus + len(plan.parts)) if one_of.get(node, node) == node]
    number = {node: i for i, node in enumerate(kept)}
    number |= {nic: number[one] for nic, one in one_of.items()}
    nics: dict[int, int] = {}
    for nic, rate_bps in plan.nics.items():
        nics[number[nic]] = nics.get(number[nic], 0) + rate_bps
    cables: dict[tuple[int, int, int], Cable] = {}
    for i, (a, b, rate_bps, delay_ps) in enumerate(plan.cables):
        ends = number[a], number[b]
        parallel = 0 if a in one_of or b in one_of else i  # only the cables of NICs become one
        *_, rate_before, delay_before = cables.get((*ends, parallel), (0, 0, 0, 0))
        total_bps = min(rate_before + rate_bps, LINK_RATE_BPS.maximum)
        cables[*ends, parallel] = (*ends, total_bps, max(delay_before, delay_ps))
    parts = [plan.parts[node - plan.gpus] for node in kept[plan.gpus :]]
    return plan._replace(parts=parts, cables=list(cables.values()), nics=nics)
