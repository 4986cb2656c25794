"""What a run may choose about the packets: sizes, windows, queues, switching, seed."""

from dataclasses import dataclass, field

from pdes.congestion import NO_CONTROL, Control


@dataclass(frozen=True)
class Settings:
    """Settled choices of the packet network.

    mtu_bytes is payload per packet. header_bytes is what a RoCEv2 data packet adds on the wire: preamble and SFD 8,
    Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4, inter-packet gap 12 = 82 (IEEE 802.3 clause 3; InfiniBand
    annex A17). ack_bytes is the same with an AETH of 4 bytes and no payload. window_bytes is the payload that one
    queue pair may have unacknowledged; 0 settles it from the fabric. queue_limit_bytes is the drop-tail limit of a
    switch port; 0 is no limit. rto_ps is the retransmission timeout; 0 settles it from the fabric, and means none
    where nothing can be lost.
    """

    mtu_bytes: int = 4096
    header_bytes: int = 82
    ack_bytes: int = 86
    window_bytes: int = 0
    queue_limit_bytes: int = 0
    cut_through: bool = False
    cut_through_header_bytes: int = 82
    rto_ps: int = 0
    max_retries: int = 16
    seed: int = 1
    concurrent_collectives: bool = False
    record_nodes: bool = True
    record_flows: bool = True
    control: Control = field(default=NO_CONTROL)
