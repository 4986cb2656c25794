"""Messages without a model as traces of a run: random ones at a load, or those of a list."""

import numpy as np

from nadi.configuration.traffic import TrafficSection
from nadi.errors import ConfigError
from nadi.inputs.arrays import Int32
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S
from nadi.simulation.wiring.affordable import check_trace
from nadi.topologies import NVSWITCH, Graph
from nadi.topologies.endpoints import NO_NUMBER
from nadi.workload import TraceSet
from nadi.workload.generators.point_to_point import (
    NODE_BYTES,
    arrivals,
    flow_list,
    message_sizes,
    random_messages,
    trace_set,
)

_NODES = 3  # nodes of the traces per message: a wait, a send and a receive


def traffic_traces(section: TrafficSection, graph: Graph, npus: Int32, *, force: bool) -> TraceSet:
    """Return the traces of messages between ranks; perhaps of fewer ranks.

    WorkloadError and ConfigError refuse wrong files and numbers.

    Args:
        section: Section [traffic] of the run file.
        graph: The fabric (`Graph`).
        npus: int32[ranks], the NPU of each rank.
        force: Whether to make traces that need more memory than is free.
    """
    if section.file is not None:
        traces = flow_list(section.file, rank_of_numbers(graph))
        if traces.npus > len(npus):
            raise ConfigError(
                f"{section.file}: flows between {traces.npus} NPUs; expected at most {len(npus)}, those of the job"
            )
        return traces
    sizes, load, duration_ps = message_sizes(section.sizes or ""), section.load or 0.0, section.duration or 0
    rate_bps = section.rate or network_rate_bps(graph, npus)
    # the expected number: their bytes over the mean size
    messages = len(npus) * load * rate_bps * duration_ps / PS_PER_S / (sizes.mean_bytes * BITS_PER_BYTE)
    check_trace(int(_NODES * messages), fewer="messages", node_bytes=NODE_BYTES, force=force)
    made = random_messages(len(npus), load, rate_bps, duration_ps, sizes, section.seed, arrivals(section.arrivals))
    if not len(made.src):
        raise ConfigError(
            f"traffic: no message arrives within the duration, where {messages:.2g} are expected; expected a longer one"
        )
    return trace_set(made)


def rank_of_numbers(graph: Graph) -> dict[int, int] | None:
    """Return the NPU of each number of a GPU in the file of the network; None if the file has no numbers of its own.

    Args:
        graph: The fabric (`Graph`).
    """
    numbers = graph.numbers[: graph.npus]
    return {number: npu for npu, number in enumerate(numbers) if number != NO_NUMBER} or None


def network_rate_bps(graph: Graph, npus: Int32) -> int:
    """Return the minimum over NPUs of the total rate of links to other nodes than NVSwitches; if none, of all.

    Args:
        graph: The fabric (`Graph`).
        npus: int32[ranks], the NPU of each rank.
    """
    counts = graph.node_kind[graph.link_dst] != NVSWITCH
    rates = np.bincount(graph.link_src, np.where(counts, graph.link_rate_bps, 0), graph.nodes)[npus]
    # a fabric of NVSwitches alone
    if not rates.all():
        rates = np.bincount(graph.link_src, graph.link_rate_bps, graph.nodes)[npus]
    return int(rates.min())
