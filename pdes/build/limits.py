"""Checks that a run fits into the words of packets and rows."""

from pdes.build.fabric import window_packets
from pdes.build.settings import Settings
from pdes.core import packet
from pdes.core import state as s
from pdes.core.errors import RunError
from pdes.core.inputs import Graph, Program
from pdes.nic.rendezvous import MAX_TAG
from pdes.npu.trace import KIND_SEND


def check_sizes(graph: Graph, program: Program, settings: Settings) -> None:
    """Refuse a run that the words of packets and rows cannot hold.

    Raises:
        RunError: A size exceeds its limit, or settings contradict each other.
    """
    if program.in_network:
        raise RunError("the program needs switches that reduce: expected it with their aggregators")
    if program.npus > graph.npus:
        raise RunError(f"the program has {program.npus} NPUs, the fabric {graph.npus}")
    window = window_packets(graph, settings) if settings.selective_repeat else 0
    for size, unit, maximum in (
        (graph.npus, "NPUs", packet.MAX_NPUS - 1),
        (graph.nodes, "nodes", s.MAX_NODES - 1),
        (graph.links, "links", s.MAX_LINKS - 1),
        (len(program.group_ptr) - 1, "groups", packet.MAX_GROUPS - 1),
        (program.node_seq.max(initial=0), "collectives of one group", packet.MAX_SEQ - 1),
        (window, "packets of a window with selective repeat", s.SELECTIVE_PACKETS),
        (settings.mtu_bytes + settings.header_bytes, "bytes of a packet", packet.MAX_WIRE_BYTES),
    ):
        if size > maximum:
            raise RunError(f"{size} {unit}: at most {maximum} are possible")
    if settings.load_balancing.reorders and not settings.selective_repeat:
        raise RunError(
            f"load balancing {settings.load_balancing.name} lets packets overtake; it needs selective repeat"
        )
    tags = program.node_tag[program.node_kind == KIND_SEND]
    if settings.rendezvous_bytes and tags.max(initial=0) >= MAX_TAG:
        raise RunError(f"tag {tags.max()} of a send: at most {MAX_TAG - 1} is possible with rendezvous")
    if settings.fidelity.act and settings.beyond_messages():
        raise RunError(f"{settings.beyond_messages()} with a message-level model; expected packets")
