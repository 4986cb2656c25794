"""Switches that share a buffer, as they begin: what each may share, and how much may still come after a pause."""

from typing import Any

import numpy as np

from pdes.build.fabric import Fabric
from pdes.build.part import Part
from pdes.build.settings import PAUSE_FRAME_BYTES, Settings
from pdes.core.errors import RunError
from pdes.core.inputs import Graph, Int64
from pdes.core.memory import rows_of, zeros
from pdes.core.rows.network import Gate, SwitchBuffer


def classes_in_use(settings: Settings) -> int:
    """How many data classes a run has."""
    return 1 + settings.p2p_class


def headrooms(graph: Graph, fabric: Fabric, settings: Settings) -> Int64:
    """int64[links]: bytes of a class that may come over a link after its receiver has asked for a pause.

    The pause frame waits behind a packet that has just begun, both ways take their time, and at the other end a packet
    may just have begun; one more is the packet that asked. (IEEE 802.1Qbb annex O counts the same terms.)
    """
    if settings.switch and settings.switch.pfc_headroom_bytes:
        return np.full(graph.links, settings.switch.pfc_headroom_bytes, np.int64)
    packet = settings.mtu_bytes + settings.header_bytes
    there_and_back = fabric.delay_ps + fabric.delay_ps[np.arange(graph.links) ^ 1]
    return np.ceil(there_and_back / fabric.psb).astype(np.int64) + 3 * packet + PAUSE_FRAME_BYTES


def shared_buffers(graph: Graph, fabric: Fabric, part: Part, settings: Settings) -> dict[str, Any]:
    """Arrays gate, pool, backlog, facing, depth, marks and pause_log of an LP; none, if no switch shares its buffer.

    The log has room for twice the pauses that are kept, so that no more are lost in the cell in which it fills up.

    Raises:
        RunError: the headrooms of a switch leave nothing to share, or no packet could ever enter a buffer.
    """
    if settings.switch is None:
        return {}
    gate = rows_of(Gate, len(part.links))
    gate.turn = (settings.switch.class_weights or (0,))[0] << 1
    pool = rows_of(SwitchBuffer, len(part.nodes))
    pool.shared_bytes = settings.switch.buffer_bytes
    if settings.switch.pfc and len(part.links):
        headroom = headrooms(graph, fabric, settings)[part.links ^ 1]
        gate.headroom_bytes[:] = headroom
        of_node = np.bincount(part.local[graph.link_src[part.links]], headroom, len(part.nodes)).astype(np.int64)
        pool.shared_bytes -= of_node * classes_in_use(settings)
    switches = np.flatnonzero(part.nodes >= graph.npus)
    short = switches[pool.shared_bytes[switches] <= 0]
    if len(short):
        node = int(part.nodes[short[0]])
        need = settings.switch.buffer_bytes - int(pool.shared_bytes[short[0]])
        raise RunError(
            f"switch {node}: a buffer of {settings.switch.buffer_bytes} bytes, but the headrooms of its ports take "
            f"{need}; expected a larger buffer or smaller headrooms"
        )
    packet = settings.mtu_bytes + settings.header_bytes
    most = min(1024, round(1024 * settings.switch.pfc_alpha)) * settings.switch.buffer_bytes >> 10
    if len(switches) and not settings.switch.pfc and most < packet:
        raise RunError(
            f"a switch with a buffer of {settings.switch.buffer_bytes} bytes and pfc_alpha {settings.switch.pfc_alpha} "
            f"lets {most} bytes wait in a queue; expected at least a packet of {packet}"
        )
    samples = len(part.links) * settings.queue_samples
    facing = zeros(graph.links, np.int32)
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
