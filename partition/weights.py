"""Work of each node and link of a fabric: expected from packets under each kind of routing, assumed, or measured."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.errors import InputError
from nadi.topologies import Graph


class PartitionError(InputError):
    """A fabric cannot be divided as the user requests."""


_STRIDE_RATIO = 8  # ratio between the distances at which `uniform` traffic flows
_UNIFORM_MESSAGES = 1000  # packets of each pair of `uniform` traffic; only the proportions matter


class TrafficWeights(NamedTuple):
    """Numbers of packets, data and acknowledgements together."""

    node: Int64  # [nodes] packets that arrive at a node: its events
    link: Int64  # [links] packets that a directed link carries


def expected(
    graph: Graph,
    src: ArrayLike,
    dst: ArrayLike,
    bytes: ArrayLike,  # noqa: A002 - as the field of workload.Traffic
    messages: ArrayLike,
    *,
    mtu_bytes: int = 4096,
) -> TrafficWeights:
    """Return the packets of traffic between NPUs, spread evenly over all equal-cost links like a fluid.

    Every packet is acknowledged by one that travels back as traffic from dst to src would.

    Args:
        graph: The fabric (`Graph`).
        src: int[p], the sending NPU of each pair.
        dst: int[p], the receiving NPU of each pair; a pair with `src` itself is ignored.
        bytes: int[p], payload of each pair in bytes.
        messages: int[p], number of messages of each pair, which are assumed to be of equal size.
        mtu_bytes: Payload in bytes of a packet; an empty message has one packet.
    """
    from_npu, to_npu = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    count = np.maximum(np.asarray(messages, np.int64), 1)
    # messages of equal size, each rounded up to whole packets
    packets = count * np.maximum(-(-np.asarray(bytes, np.int64) // (count * mtu_bytes)), 1)
    leaves = from_npu != to_npu
    from_npu, to_npu, packets = from_npu[leaves], to_npu[leaves], packets[leaves].astype(np.float64)
    # data one way, and as many acknowledgements back
    both = np.concatenate([from_npu, to_npu]), np.concatenate([to_npu, from_npu]), np.tile(packets, 2)
    return _weights(graph, link_loads(graph, *both))


def link_loads(graph: Graph, src: ArrayLike, dst: ArrayLike, loads: ArrayLike) -> Float64:
    """Return float64[links]: the load of each link, spread evenly over all equal-cost links like a fluid.

    Args:
        graph: The fabric (`Graph`).
        src: int[p], the sending NPU of each pair.
        dst: int[p], the receiving NPU of each pair, another than `src`.
        loads: float[p], load of each pair, as packets or bytes.
    """
    return graph.routing.loads(
        graph, np.asarray(src, np.int64), np.asarray(dst, np.int64), np.asarray(loads, np.float64)
    )


def uniform(graph: Graph) -> TrafficWeights:
    """Return the weights of an unknown run: each NPU sends equally to those 1, 8, 64, ... further that it can reach.

    Args:
        graph: The fabric (`Graph`).
    """
    npus = graph.npus
    # near and far peers, as rings and trees of collectives have them
    strides = _STRIDE_RATIO ** np.arange(20)
    strides = strides[strides < npus]
    src = np.tile(np.arange(npus), len(strides))
    dst = (src + np.repeat(strides, npus)) % npus
    reaches = graph.routing.reaches(src, dst)
    src, dst = src[reaches], dst[reaches]
    messages = np.full(len(src), _UNIFORM_MESSAGES)
    return expected(graph, src, dst, messages, messages)


def from_links(graph: Graph, tx_packets: ArrayLike) -> TrafficWeights:
    """Return weights measured in an earlier run on the same fabric; PartitionError if the number of links differs.

    Args:
        graph: The fabric (`Graph`).
        tx_packets: int[links], packets that each link sent: column tx_packets of the run's links.parquet.
    """
    sent = np.asarray(tx_packets, np.float64)
    if sent.shape != (graph.links,):
        raise PartitionError(f"{graph.name}: packets of {sent.size} links; expected {graph.links}, one for each link")
    return _weights(graph, sent)


def _weights(graph: Graph, link: Float64) -> TrafficWeights:
    # a packet is an event at the node at the end of the link
    node = np.bincount(graph.link_dst, link, minlength=graph.nodes)
    return TrafficWeights(np.rint(node).astype(np.int64), np.rint(link).astype(np.int64))
