"""What a run may choose about the packets: sizes, windows, queues, switching, seed."""

from dataclasses import dataclass, field

from pdes.build.schedule import NO_FAULTS, Faults
from pdes.messages.fidelity import PACKET, Fidelity
from pdes.network.balancing import ECMP, Balancing
from pdes.nic.congestion import NO_CONTROL, Control

SCHEDULINGS = ("fifo", "lifo", "priority")
"""Which phase of a collective that waits for a dimension goes next."""
PAUSE_FRAME_BYTES = 84
"""64 bytes with preamble and gap (IEEE 802.3 annex 31B, 802.1Qbb)."""


@dataclass(frozen=True)
class SharedBuffer:
    """Switches that share a buffer among their ports (docs/fabric.md).

    buffer_bytes is what a switch has. With pfc it pauses who sends too much, else it drops, or trims to headers. alpha
    is the dynamic threshold's share of what is free. headroom_bytes is for each ingress port and class; 0 settles it
    from rate and delay. A paused class goes on resume_offset_bytes below the threshold. kmin_bytes and kmax_bytes are
    at 25 Gb/s and scale with the rate. weights are packets of class 0 and 1 in turn; () serves class 0 first.
    """

    buffer_bytes: int = 32_000_000
    pfc: bool = True
    alpha: float = 0.125
    headroom_bytes: int = 0
    resume_offset_bytes: int = 8192
    ecn: bool = True
    kmin_bytes: int = 100_000
    kmax_bytes: int = 400_000
    pmax: float = 0.2
    trim: bool = False
    weights: tuple[int, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Settled choices of the packet network.

    queue_samples, a power of two, is into how many stretches of time the depth of each queue of a shared buffer is
    noted, 0 = not; logged_pauses is how many pauses and resumes are kept.

    mtu_bytes is payload per packet. header_bytes is what a RoCEv2 data packet adds on the wire: preamble and SFD 8,
    Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4, inter-packet gap 12 = 82 (IEEE 802.3 clause 3; InfiniBand
    annex A17). ack_bytes is the same with an AETH of 4 bytes and no payload. window_bytes is the payload that one
    queue pair may have unacknowledged; 0 settles it from the fabric. queue_limit_bytes is the drop-tail limit of a
    switch port; 0 is no limit. rto_ps is the retransmission timeout; 0 settles it from the fabric, and means none
    where nothing can be lost. With selective_repeat a receiver keeps what comes out of order, and a sender takes a
    packet for lost when one sent reorder_packets later has come, 0 = never. switch is None where switches have
    output queues that share nothing. control is the congestion control; a receiver sends one notification per queue
    pair in cnp_interval_ps. p2p_class is the data class (0 or 1) of messages between two NPUs. balancing chooses
    among equal links; flowlet_gap_ps is for flowlets. With nvlink_framing links of NVSwitches carry flits
    (pdes/network/framing.py). An NPU does phases_per_dimension phases of
    collectives in one dimension at a time, 0 = as many as there are; scheduling says which goes next
    (pdes/npu/tokens.py), also of collectives where an NPU does collectives_in_flight at a time, 0 = all that are ready
    (pdes/npu/in_flight.py). Messages of rendezvous_bytes or more are asked for before they are sent, 0 = none
    (pdes/nic/rendezvous.py); a request or its answer has rendezvous_control_bytes of payload: 64 hold what MPI and UCX
    put there, a tag, sizes, addresses and keys. Compute takes compute_slowdown times as long while a collective
    runs, to a thousandth (pdes/npu/contention.py). faults is what fails, slows down or comes back during the run.
    fidelity is how the network is modelled; where messages go whole, of the above only seed, collectives and
    records matter.
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
    switch: SharedBuffer | None = None
    control: Control = field(default=NO_CONTROL)
    cnp_interval_ps: int = 4_000_000
    p2p_class: int = 0
    queue_samples: int = 0
    logged_pauses: int = 0
    balancing: Balancing = field(default=ECMP)
    flowlet_gap_ps: int = 50_000_000
    selective_repeat: bool = False
    reorder_packets: int = 3
    faults: Faults = field(default=NO_FAULTS)
    nvlink_framing: bool = True
    phases_per_dimension: int = 0
    scheduling: str = "fifo"
    rendezvous_bytes: int = 0
    rendezvous_control_bytes: int = 64
    compute_slowdown: float = 1.0
    collectives_in_flight: int = 0
    fidelity: Fidelity = field(default=PACKET)

    def beyond_messages(self) -> str:
        """The first that is given of what only packets have in the system layer; empty if none is."""
        given = {
            "rendezvous_bytes": self.rendezvous_bytes > 0,
            "compute_slowdown": self.compute_slowdown > 1.0,
            "collectives_in_flight": self.collectives_in_flight > 0,
        }
        return next((name for name, value in given.items() if value), "")
