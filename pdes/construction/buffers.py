"""The initial state of switches that share a buffer: how much their queues may share, and the headroom of each port.

Also the state of links that are sampled.
"""

from typing import Any

import numpy as np

from nadi.pdes.construction.fabric import Fabric
from nadi.pdes.construction.layout import Part
from nadi.pdes.construction.settings import PAUSE_FRAME_BYTES, Settings
from nadi.pdes.core.errors import ImpossibleRunError
from nadi.pdes.core.inputs import Graph, Int64, Record
from nadi.pdes.core.memory import rows_of, zeros
from nadi.pdes.core.rows.network import Gate, LinkSample, SampleEntry, SwitchBuffer
from nadi.pdes.network.framing import domain_switches

_SAMPLE_ENTRIES = 1 << 14  # entries of the log of samples beside those that one action may use: 512 KB


def classes_in_use(settings: Settings) -> int:
    """Return the number of data classes of a run.

    Args:
        settings: Settings of the run.
    """
    return 1 + settings.p2p_class


def headrooms(graph: Graph, fabric: Fabric, settings: Settings) -> Int64:
    """Return int64[links], bytes per class that may still arrive over a link after its receiver asks for a pause.

    The value is 0 for NVLink within a domain, which knows no pauses.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        settings: Settings of the run.
    """
    # The pause frame waits behind a packet that has just begun, both directions take their propagation time, and the
    # other end may just have begun a packet; one more packet is the one that caused the pause. (IEEE 802.1Qbb annex O
    # counts the same terms.)
    if settings.switch and settings.switch.pfc_headroom_bytes:
        found = np.full(graph.links, settings.switch.pfc_headroom_bytes, np.int64)
    else:
        packet = settings.mtu_bytes + settings.header_bytes
        round_trip_ps = fabric.delay_ps + fabric.delay_ps[np.arange(graph.links) ^ 1]
        found = np.ceil(round_trip_ps / fabric.psb).astype(np.int64) + 3 * packet + PAUSE_FRAME_BYTES
    found[fabric.inside] = 0
    return found


def shared_buffers(graph: Graph, fabric: Fabric, part: Part, settings: Settings) -> dict[str, Any]:
    """Return arrays gate, pool, backlog, facing, depth, marks and pause_log of an LP; {} without shared buffers.

    The log has room for twice the pauses that are kept, so that no more are lost in the cell during which it fills up.
    Raises ImpossibleRunError: the headrooms of a switch leave nothing to share, or no packet could ever enter a buffer.

    Args:
        graph: The fabric (`Graph`).
        fabric: Links of the fabric by class, and their times (`Fabric`).
        part: Nodes and links of the LP (`Part`).
        settings: Settings of the run.
    """
    if settings.switch is None:
        return {}
    gate = rows_of(Gate, len(part.links))
    pool = rows_of(SwitchBuffer, len(part.nodes))
    pool.shared_bytes = settings.switch.buffer_bytes
    if settings.switch.pfc and len(part.links):
        headroom = headrooms(graph, fabric, settings)[part.links ^ 1]
        gate.headroom_bytes[:] = headroom
        # each port and class has a headroom of its own, and all share the rest
        node_headroom = np.bincount(part.local[graph.link_src[part.links]], headroom, len(part.nodes)).astype(np.int64)
        pool.shared_bytes -= node_headroom * classes_in_use(settings)
    of_domain = domain_switches(graph)[part.nodes]
    switches = np.flatnonzero((part.nodes >= graph.npus) & ~of_domain)
    too_small = switches[pool.shared_bytes[switches] <= 0]
    if len(too_small):
        node = int(part.nodes[too_small[0]])
        need = settings.switch.buffer_bytes - int(pool.shared_bytes[too_small[0]])
        raise ImpossibleRunError(
            f"switch {node}: a buffer of {settings.switch.buffer_bytes} bytes, but the headrooms of its ports take "
            f"{need}; expected a larger buffer or smaller headrooms"
        )
    packet = settings.mtu_bytes + settings.header_bytes
    max_queue_bytes = min(1024, round(1024 * settings.switch.pfc_alpha)) * settings.switch.buffer_bytes >> 10
    if len(switches) and not settings.switch.pfc and max_queue_bytes < packet:
        raise ImpossibleRunError(
            f"a switch with a buffer of {settings.switch.buffer_bytes} bytes and pfc_alpha {settings.switch.pfc_alpha} "
            f"lets {max_queue_bytes} bytes wait in a queue; expected at least a packet of {packet}"
        )
    pool.shared_bytes[of_domain] = 0
    samples = len(part.links) * settings.queue_samples
    facing = zeros(graph.links, np.int32)
    # links 2k and 2k + 1 are the directions of one cable
    facing[part.links ^ 1] = np.arange(len(part.links))
    return {
        "gate": gate,
        "pool": pool,
        "backlog": zeros(len(part.links), np.int32),
        "facing": facing,
        "depth": zeros(samples, np.int32),
        "marks": zeros(samples if settings.switch.ecn else 1, np.int32),
        "pause_log": zeros(2 * 2 * settings.logged_pauses),
    }


def samples(rows: int, const: Record) -> dict[str, Any]:
    """Return arrays sample and sample_log of an LP, {} if links are not sampled.

    Args:
        rows: Number of rows of `tx`, each of which gets a row of `sample`.
        const: Constants of the LP (a row `Constants`).
    """
    if const.sample_ps == 0:
        return {}
    entries = _SAMPLE_ENTRIES + int(const.reserve_samples)
    return {"sample": rows_of(LinkSample, rows), "sample_log": rows_of(SampleEntry, entries)}
