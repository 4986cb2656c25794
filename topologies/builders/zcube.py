"""ZCube: two groups of switches, every switch of one linked to every switch of the other, without spines.

Z.ai, Harnets.AI and Tsinghua University, "Next-generation LLM Inference Network: How ZCube Alleviates Network
Bottlenecks" (z.ai/blog/zcube, May 2026): n NPUs with two ports on 2 n / k switches. Counted from 1, NPU i has port 1 on
odd switch ((i - 1) mod n / k) x 2 + 1, as on a rail, and port 2 on even switch ceil(i / k) x 2, as in a rack. Odd and
even switches are complete bipartite. Here both ports are used: a path leads from the odd switch of the sender to the
even one of the receiver, or from its even one to the receiver's odd one.
"""

import numpy as np
from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import NVSWITCH, Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Parameters, Rate, Time


class Arguments(Parameters):
    """Parameters of the ZCube."""

    npus: Count = Field(description="number of NPUs, a multiple of npus_per_switch and gpus_per_host")
    npus_per_switch: Count = Field(description="NPUs of each switch, k")
    gpus_per_host: Count = Field(1, description="NPUs of a server, which share an NVSwitch; 1 means none")
    uplinks: Count = Field(1, description="parallel cables between an odd and an even switch")
    rate: Rate = Field(200 * GBPS, description="rate of each of the two ports of an NPU")
    delay: Time = Field(500 * NS, description="propagation delay of an NPU's links")
    uplink_rate: Rate | None = Field(None, description="rate of a cable between switches; rate if not given")
    uplink_delay: Time | None = Field(None, description="delay of a cable between switches; delay if not given")
    nvlink_rate: Rate = Field(3600 * GBPS, description="rate between an NPU and the NVSwitch, each direction")
    nvlink_delay: Time = Field(25 * NS, description="propagation delay between an NPU and the NVSwitch")
    switch_latency: Time = Field(0, description="forwarding latency of a switch")
    nvswitch_latency: Time = Field(0, description="forwarding latency of an NVSwitch")


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the numbers of nodes and cables of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    half, hosts = _sizes(arguments, name)
    cables = arguments.npus * (3 if hosts else 2) + half * half * arguments.uplinks
    return Extent(arguments.npus, 2 * half + hosts, cables, 2 * half + hosts)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network, whose pods are the NPUs of an even switch; TopologyError for counts that do not divide npus.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    half, hosts = _sizes(arguments, name)
    npu = np.arange(arguments.npus)
    host = npu // arguments.gpus_per_host
    builder = GraphBuilder(name, arguments.npus)
    builder.set_npu_pods(npu // arguments.npus_per_switch)
    if hosts:
        nvswitch = builder.add_named_switches(
            [f"nvswitch {i}" for i in range(hosts)],
            latency_ps=arguments.nvswitch_latency,
            kind=NVSWITCH,
            pod=np.arange(hosts) * arguments.gpus_per_host // arguments.npus_per_switch,
        )
        builder.add_cables(npu, nvswitch[host], arguments.nvlink_rate, arguments.nvlink_delay)
    # numbers of the source less 1: odd switches are 0, 2, 4, ..., even ones 1, 3, 5, ...
    switch = builder.add_named_switches(
        [f"{('odd', 'even')[i % 2]} {i // 2}" for i in range(2 * half)],
        latency_ps=arguments.switch_latency,
        pod=np.stack([np.full(half, -1), np.arange(half)], axis=1).reshape(-1),
    )
    builder.add_cables(npu, switch[2 * (npu % half)], arguments.rate, arguments.delay)
    builder.add_cables(npu, switch[2 * (npu // arguments.npus_per_switch) + 1], arguments.rate, arguments.delay)
    uplink_delay = arguments.delay if arguments.uplink_delay is None else arguments.uplink_delay
    ends = np.repeat(switch[::2], half), np.tile(switch[1::2], half)
    builder.add_cables(*ends, arguments.uplink_rate or arguments.rate, uplink_delay, arguments.uplinks)
    dims = (arguments.gpus_per_host, hosts) if hosts else ()
    return builder.graph(dims=dims, host=host)


def _sizes(arguments: Arguments, name: str) -> tuple[int, int]:
    """Return the number of odd switches, which is that of even ones, and of NVSwitches; errors begin with the name."""
    for key in ("npus_per_switch", "gpus_per_host"):
        if arguments.npus % getattr(arguments, key):
            raise TopologyError.at(name, f"npus = {arguments.npus}", f"a multiple of {key} = {getattr(arguments, key)}")
    hosts = arguments.npus // arguments.gpus_per_host if arguments.gpus_per_host > 1 else 0
    return arguments.npus // arguments.npus_per_switch, hosts
