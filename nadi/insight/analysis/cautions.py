"""Warnings about what a run leaves out or cannot show: sentences for the report and summary.json."""

import numpy as np

from nadi.inputs.units import format_time
from nadi.insight.analysis.node_times import utilisation
from nadi.pdes.wire import SELECTIVE_PACKETS, covering_packets
from nadi.simulation.run import WITH_TICKS, FinishedRun

SEVERAL_EPISODES = 50  # simulated episodes of which a run says that they seldom repeat
MANY_RESENDS = 10  # retransmissions for each packet of data, above which a run says so
FEW_REPLAYS = 4  # collectives that are replayed for each simulated episode, up to which they seldom repeat


def cautions(simulation: FinishedRun) -> list[str]:
    """Return the warnings about a run.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
    """
    end_ps, finish_ps = simulation.results.snapshot_ps, simulation.results.finish_time_ps
    warnings = [] if end_ps is None else [f"partial results, of the first {format_time(end_ps)}: the run is not over"]
    warnings += simulation.warnings
    others = _narrow_window(simulation), _overtaken(simulation), _sent_again(simulation), _seldom_repeats(simulation)
    without = simulation.without_effect.sentence(finish_ps)
    warnings += [sentence for sentence in (without, *others) if sentence]
    if finish_ps == 0:
        warnings.append(simulation.if_no_time)
    if simulation.settings.fidelity.hooks.overload:
        warnings += _too_much(simulation)
    return warnings


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
    # only models without queues let a link carry more than its rate
    if not (share > 1).any():
        return []
    most = int(share.argmax())
    name = f"{graph.node_name(graph.link_src[most])} → {graph.node_name(graph.link_dst[most])}"
    count = f"{np.count_nonzero(share > 1):,} of {graph.links:,} links"
    why = simulation.settings.fidelity.hooks.overload
    return [f"{count} would have to carry more than they can, up to {share[most]:.0%} of it ({name}): {why}"]
