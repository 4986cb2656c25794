"""Warnings about what a run leaves out or cannot show: sentences for the report and summary.json."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nadi.configuration.effects import DurationSources, without_effect
from nadi.configuration.from_model import remarks
from nadi.configuration.sections import RunConfig
from nadi.insight.analysis.node_times import utilisation
from nadi.simulation.run import WITH_TICKS, FinishedRun
from nadi.simulation.wiring.reading import memory_nodes
from pdes.wire import SELECTIVE_PACKETS, covering_packets
from topologies.units import format_time
from workload.generators.point_to_point import flow_lists
from workload.node_kinds import COLLECTIVE, COMPUTE, MEMORY

SEVERAL_EPISODES = 50  # simulated episodes of which a run says that they seldom repeat
MANY_RESENDS = 10  # retransmissions for each packet of data, above which a run says so
FEW_REPLAYS = 4  # collectives that are replayed for each simulated episode, up to which they seldom repeat


class WorkCounts(NamedTuple):
    """Counts of the trace nodes that the NPUs of a rank run."""

    nodes: int  # number of trace nodes
    timed: int  # number of compute and memory nodes
    collectives: int  # number of collective nodes
    remote: int  # number of nodes with a remote tensor in a run whose [memory] has no remote memory
    remote_npus: int  # number of NPUs that run such nodes
    times: DurationSources  # sources of the durations of compute and memory nodes
    first_remote: str  # file and node of the first such node; "" if there are no such nodes


def count(simulation: FinishedRun) -> WorkCounts:
    """Count the trace nodes of this rank's NPUs."""
    program = simulation.program
    npus = np.bincount(program.trace_of_npu[program.trace_of_npu >= 0], minlength=len(program.trace_ptr) - 1)
    users = np.repeat(npus, np.diff(program.trace_ptr))
    kind = program.node_kind
    remote, remote_npus, first = 0, 0, ""
    is_modelled, compute = simulation.config.memory.remote is not None, simulation.config.compute
    computed = np.zeros(3, np.int64)  # nodes with computed durations, by source; some may be of other types
    for number, table in enumerate(simulation.traces):
        running = int(np.count_nonzero(simulation.trace_of_npu == number))
        if not running:
            continue
        rows = np.flatnonzero(table.tensor_loc)
        if len(rows) and not is_modelled:
            first = first or f"{table.path}: node {table.node_id[rows[0]]}"
            remote += running * len(rows)
            remote_npus += running
        is_open = (table.duration_micros == 0) | (compute.model == "roofline")
        by_operators = is_open & (table.operators > 0) & (compute.gpu is not None)
        rest = is_open & ~by_operators
        masks = by_operators, rest & (table.num_ops > 0), rest & (table.tensor_size > 0)
        computed += [np.count_nonzero(mask) for mask in masks]
    return WorkCounts(
        nodes=int(users.sum()),
        timed=int(users[(kind == COMPUTE) | (kind == MEMORY)].sum()),
        collectives=int(users[kind == COLLECTIVE].sum()),
        remote=remote,
        remote_npus=remote_npus,
        times=DurationSources(*computed.tolist()),
        first_remote=first,
    )


def cautions(simulation: FinishedRun, counts_of_ranks: Sequence[WorkCounts]) -> list[str]:
    """Return the warnings about a run, from the counts of all ranks."""
    nodes, timed, collectives, remote, remote_npus, times, first_remote = zip(*counts_of_ranks, strict=True)
    sources = DurationSources(*map(sum, zip(*times, strict=True)))
    first = next(filter(None, first_remote), "")
    total = WorkCounts(sum(nodes), sum(timed), sum(collectives), sum(remote), sum(remote_npus), sources, first)
    memories = memory_nodes(simulation.config, simulation.graph)
    cut_ps = simulation.results.cut_ps
    warnings = [] if cut_ps is None else [f"partial results, of the first {format_time(cut_ps)}: the run is not over"]
    warnings += remarks(simulation.config, simulation.graph.npus - len(memories))
    warnings += simulation.graph.remarks
    warnings += [text for single in simulation.config.single_jobs() for text in _unread_flows(single)]
    if total.remote:
        warnings.append(
            f"{total.remote:,} trace nodes on {total.remote_npus:,} NPUs have a tensor that is not in local memory "
            f"(tensor_loc other than 0, first in {total.first_remote}); without [memory] remote they are treated as "
            "local"
        )
    without = without_effect(
        simulation.config, total.times, simulation.graph, simulation.settings.faults, simulation.results.finish_time_ps
    )
    others = _narrow_window(simulation), _overtaken(simulation), _sent_again(simulation), _seldom_repeats(simulation)
    warnings += [sentence for sentence in (without, *others) if sentence]
    if simulation.results.finish_time_ps == 0:
        warnings.append(_why_no_time(simulation, total))
    if simulation.settings.fidelity.hooks.overload:
        warnings += _too_much(simulation)
    return warnings


def _unread_flows(config: RunConfig) -> tuple[str, ...]:
    """Return a sentence about the lines of a list of flows that are not read, none if all are."""
    traffic = config.workload.traffic
    return flow_lists.remarks(traffic.file) if traffic is not None and traffic.file is not None else ()


def _narrow_window(simulation: FinishedRun) -> str:
    """Return a warning if selective repeat keeps `window = "auto"` below the bandwidth-delay product, else ""."""
    settings = simulation.settings
    if not settings.fidelity.model.has_packets or settings.window_bytes or not settings.selective_repeat:
        return ""
    packets = covering_packets(simulation.graph, settings)
    if packets <= SELECTIVE_PACKETS:
        return ""
    return (
        f'[network] window = "auto" is {SELECTIVE_PACKETS} packets, the most that selective repeat keeps, and the '
        f"longest round trip holds {packets:,}: one flow alone may not fill the fastest port; a larger mtu helps"
    )


def _overtaken(simulation: FinishedRun) -> str:
    """Return a warning if all retransmissions come from reordering by flowlets, else ""."""
    settings, counters = simulation.settings, simulation.results.counters
    again = int(counters.get("retransmitted_packets", 0))
    may_overtake = settings.load_balancing.has_flowlets and not settings.selective_repeat
    if not again or counters.get("dropped_packets", 0) or not may_overtake:
        return ""
    return (
        f'{again:,} packets were sent again, and none was dropped: with load_balancing = "flowlet" packets overtook '
        "others of their flow, which go-back-N takes for a loss; selective_repeat = true, or a flowlet_gap longer than "
        f"{format_time(settings.flowlet_gap_ps)}, avoids it"
    )


def _sent_again(simulation: FinishedRun) -> str:
    """Return a warning if the network carried mostly packets that were sent again, else ""."""
    counters = simulation.results.counters
    again = int(counters.get("retransmitted_packets", 0))
    fresh = int(counters.get("data_packets", 0)) - again
    if again <= MANY_RESENDS * fresh:
        return ""
    return (
        f"{again:,} packets were sent again, {again / fresh:.3g} times the {fresh:,} of the data: the network is "
        "overloaded, and times depend on its retransmissions; a congestion control, a smaller window, larger buffers "
        "or selective_repeat = true avoid it"
    )


def _seldom_repeats(simulation: FinishedRun) -> str:
    """Return a warning if collectives of NVLink domains start at so many offsets that few are replayed, else ""."""
    counts = simulation.results.reuse
    simulated, replayed = (counts.get(f"episodes_{how}", 0) for how in ("simulated", "replayed"))
    if simulation.settings.tick_ps or simulated < SEVERAL_EPISODES or replayed > FEW_REPLAYS * simulated:
        return ""
    return (
        f"collectives of NVLink domains seldom repeat: of {replayed:,}, {simulated:,} start at offsets of their "
        f"members that no other has{WITH_TICKS}"
    )


def _too_much(simulation: FinishedRun) -> list[str]:
    """Return a warning if links would have to carry more than their capacity."""
    graph, results = simulation.graph, simulation.results
    share = utilisation(graph, results.links["tx_bytes"], results.finish_time_ps)
    if not (share > 1).any():
        return []
    most = int(share.argmax())
    name = f"{graph.node_name(graph.link_src[most])} → {graph.node_name(graph.link_dst[most])}"
    count = f"{np.count_nonzero(share > 1):,} of {graph.links:,} links"
    why = simulation.settings.fidelity.hooks.overload
    return [f"{count} would have to carry more than they can, up to {share[most]:.0%} of it ({name}): {why}"]


def _why_no_time(simulation: FinishedRun, work_counts: WorkCounts) -> str:
    """Return why a run takes no time, judged from the traces."""
    if work_counts.nodes == 0:
        files = "the trace is" if len(simulation.traces) == 1 else f"all {len(simulation.traces)} traces are"
        path = simulation.traces[0].path if simulation.traces else simulation.config.workload.traces or ""
        return f"no NPU has anything to do: {files} without nodes ({path})"
    reasons = []
    if work_counts.timed and simulation.config.compute.model == "trace":
        reasons.append(
            f'{work_counts.timed:,} compute and memory nodes have no duration, and [compute] model is "trace"'
        )
    elif work_counts.timed:
        reasons.append(
            f"{work_counts.timed:,} compute and memory nodes have neither a duration nor, for a roofline, num_ops or "
            "tensor_size"
        )
    if work_counts.collectives:
        reasons.append(f"{work_counts.collectives:,} collectives have no other member to send to")
    others = work_counts.nodes - work_counts.timed - work_counts.collectives
    if others:
        reasons.append(f"{others:,} nodes are of types that take no time")
    return f"the run takes no time: {'; '.join(reasons)}"
