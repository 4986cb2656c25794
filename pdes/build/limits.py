"""What the words of packets and rows cannot hold."""

import numpy as np

from pdes.build.fabric import window_packets
from pdes.build.settings import Settings
from pdes.core import packet
from pdes.core import state as s
from pdes.core.errors import RunError
from pdes.core.inputs import Graph, Program
from pdes.nic.rendezvous import MAX_TAG
from pdes.npu.trace import KIND_SEND


def check_sizes(graph: Graph, program: Program, settings: Settings) -> None:
    """Refuse what the packet words cannot hold."""
    if program.in_network:
        raise RunError("the program needs switches that reduce: expected it with their aggregators")
    if program.npus > graph.npus:
        raise RunError(f"the program has {program.npus} NPUs, the fabric {graph.npus}")
    if graph.npus >= packet.MAX_NPUS:
        raise RunError(f"{graph.npus} NPUs: at most {packet.MAX_NPUS - 1} are possible")
    if graph.nodes >= s.MAX_NODES or graph.links >= s.MAX_LINKS:
        raise RunError(f"{graph.nodes} nodes and {graph.links} links: at most {s.MAX_NODES - 1} and {s.MAX_LINKS - 1}")
    if len(program.group_ptr) - 1 >= packet.MAX_GROUPS:
        raise RunError(f"{len(program.group_ptr) - 1} groups: at most {packet.MAX_GROUPS - 1} are possible")
    if len(program.node_seq) and program.node_seq.max() >= packet.MAX_SEQ:
        raise RunError(f"{program.node_seq.max()} collectives of one group: at most {packet.MAX_SEQ - 1} are possible")
    if settings.selective_repeat and window_packets(graph, settings) > s.SELECTIVE_PACKETS:
        raise RunError(
            f"selective repeat with a window of {window_packets(graph, settings)} packets: at most "
            f"{s.SELECTIVE_PACKETS} are possible"
        )
    if settings.load_balancing.reorders and not settings.selective_repeat:
        raise RunError(
            f"load balancing {settings.load_balancing.name} lets packets overtake; it needs selective repeat"
        )
    tags = np.asarray(program.node_tag)[np.asarray(program.node_kind) == KIND_SEND]
    if settings.rendezvous_bytes and tags.max(initial=0) >= MAX_TAG:
        raise RunError(f"tag {tags.max()} of a send: where messages are asked for, at most {MAX_TAG - 1} is possible")
    if settings.fidelity.act and settings.beyond_messages():
        raise RunError(f"{settings.beyond_messages()} with a message-level model; expected packets")
    if settings.mtu_bytes + settings.header_bytes > packet.MAX_WIRE_BYTES:
        raise RunError(
            f"packets of {settings.mtu_bytes + settings.header_bytes} bytes: at most {packet.MAX_WIRE_BYTES}"
        )
