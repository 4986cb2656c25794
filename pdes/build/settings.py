"""What a run may choose about the packets: sizes, windows, queues, switching, seed.

The fields are the table of settings (pdes/core/setting.py): `nadi.configuration.sections` makes the keys of run files
from it, and a
test holds docs/reference/run-file.md against it.
"""

from dataclasses import dataclass

from pdes.build.schedule import NO_FAULTS, Faults
from pdes.core.setting import setting
from pdes.messages.fidelity import PACKET, Fidelity
from pdes.network.balancing import ECMP, Balancing
from pdes.nic.congestion import NO_CONTROL, Control

SCHEDULINGS = ("fifo", "lifo", "priority")
"""Which phase of a collective that waits for a dimension goes next."""
PAUSE_FRAME_BYTES = 84
"""64 bytes with preamble and gap (IEEE 802.3 annex 31B, 802.1Qbb)."""
USUAL_REORDER_PACKETS = 3
"""Of selective repeat where links keep the order, as TCP's three duplicate acknowledgements (RFC 5681)."""


@dataclass(frozen=True)
class SharedBuffer:
    """Switches that share a buffer among their ports (docs/explanation/fabric.md).

    With pfc a switch pauses who sends too much, else it drops, or trims to headers. pfc_headroom_bytes 0 settles it
    from rate and delay. The thresholds of ecn are at 25 Gb/s and scale with the rate. class_weights () serves class 0
    first.
    """

    buffer_bytes: int = setting(32_000_000, "bytes that a switch has")
    pfc: bool = setting(True, "pause who sends too much, so that nothing is dropped")
    pfc_alpha: float = setting(
        0.125, "share of what is free that one queue (with PFC: one way in) may use, also without PFC"
    )
    pfc_headroom_bytes: int = setting(
        0, "of each way in and data class, beside what is shared, for what comes after a pause", "auto"
    )
    pfc_resume_offset_bytes: int = setting(8192, "how far below the threshold a paused class goes on")
    ecn: bool = setting(True, "mark packets that leave a long queue behind")
    ecn_kmin_bytes: int = setting(100_000, "no marks up to this queue, at 25 Gb/s")
    ecn_kmax_bytes: int = setting(400_000, "all packets are marked from this queue on, at 25 Gb/s")
    ecn_pmax: float = setting(0.2, "share that is marked just below ecn_kmax")
    trimming: bool = setting(False, "cut packets to their headers in place of dropping them")
    class_weights: tuple[int, ...] = setting(
        (), "packets of data class 0 and 1 in turn; without, class 0 goes first", "none"
    )


@dataclass(frozen=True)
class Settings:
    """Settled choices of the packet network.

    header_bytes is what a RoCEv2 data packet adds on the wire: preamble and SFD 8, Ethernet 14, IPv4 20, UDP 8, BTH 12,
    ICRC 4, FCS 4, inter-packet gap 12 = 82 (IEEE 802.3 clause 3; InfiniBand annex A17). ack_bytes is the same with an
    AETH of 4 bytes and no payload. window_bytes and rto_ps 0 are settled from the fabric, the latter as none where
    nothing can be lost. selective_repeat and reorder_packets None are settled by the load balancing. The 64 bytes of
    rendezvous_control_bytes hold what MPI and UCX put there: a tag, sizes, addresses and keys. queue_samples is a power
    of two. At message level, only seed, collectives, records and fidelity matter.
    """

    fidelity: Fidelity = setting(PACKET, "how the network is modelled")
    mtu_bytes: int = setting(4096, "payload of a full packet")
    header_bytes: int = setting(82, "what a data packet adds on the wire; 82 is RoCEv2 over IPv4")
    ack_bytes: int = setting(86, "size of an acknowledgement on the wire")
    window_bytes: int = setting(0, "payload that a sender may have unacknowledged, for each peer and group", "auto")
    queue_limit_bytes: int = setting(0, "drop-tail limit of a switch port", "unlimited")
    cut_through: bool = setting(False, "a switch waits for the header only, not for the whole packet")
    rto_ps: int = setting(0, "retransmission timeout: without progress for so long, a sender sends again", "auto")
    max_retries: int = setting(16, "timeouts in a row after which the run fails")
    nvlink_framing: bool = setting(True, "links of NVSwitches carry flits in place of Ethernet's frames")
    switch: SharedBuffer | None = setting(None, "whether the ports of a switch share its buffer", "output-queued")
    p2p_share: float = setting(
        1.0, "share of its NIC's rate at which an NPU sends messages to NPUs of other hosts, all of them together"
    )
    p2p_class: int = setting(0, "data class of messages between two NPUs; collectives have 0")
    congestion_control: Control = setting(
        NO_CONTROL, "how fast a queue pair may send: `nadi net controls` lists names and parameters"
    )
    cnp_interval_ps: int = setting(4_000_000, "between two congestion notifications of one queue pair")
    load_balancing: Balancing = setting(ECMP, "how a switch chooses among equal links: `nadi net controls` lists them")
    flowlet_gap_ps: int = setting(50_000_000, "without packets for so long, a flow may take another link")
    selective_repeat: bool | None = setting(
        None, "send only what is lost again, not all from there on; auto: where packets may overtake", "auto"
    )
    reorder_packets: int | None = setting(
        None, "selective repeat: packets by which one may be late before it is taken for lost", "auto"
    )
    seed: int = setting(1, "of all hashed choices: ECMP and the order of events at the same time")
    concurrent_collectives: bool = setting(False, "collectives of one group on an NPU do not wait for each other")
    phases_per_dimension: int = setting(
        0, "phases of collectives that an NPU does in one dimension at a time", "unlimited"
    )
    scheduling: str = setting("fifo", "which phase that waits for a dimension goes next")
    collectives_in_flight: int = setting(
        0, "collectives that an NPU does at a time; those that wait go by scheduling", "unlimited"
    )
    rendezvous_bytes: int = setting(0, "messages of at least this size are asked for before they are sent", "unlimited")
    rendezvous_control_bytes: int = setting(64, "payload of a request to send and of its answer")
    compute_slowdown: float = setting(
        1.0, "times as long compute takes while a collective runs on its NPU, to a thousandth"
    )
    faults: Faults = setting(NO_FAULTS, "what fails, slows down or comes back", is_given=False)
    record_nodes: bool = setting(True, "keep the times of trace nodes", is_given=False)
    record_flows: bool = setting(True, "keep a row for each message", is_given=False)
    queue_samples: int = setting(0, "stretches of time whose longest queue is noted", is_given=False)
    logged_pauses: int = setting(0, "pauses and resumes that are kept", is_given=False)

    def __post_init__(self) -> None:
        overtakes = self.load_balancing.reorders
        if self.selective_repeat is None:
            object.__setattr__(self, "selective_repeat", overtakes)
        if self.reorder_packets is None:
            object.__setattr__(self, "reorder_packets", 0 if overtakes else USUAL_REORDER_PACKETS)

    def beyond_messages(self) -> str:
        """The first that is given of what only packets have in the system layer; empty if none is."""
        least = {"rendezvous_bytes": 0, "collectives_in_flight": 0}
        return next((name for name, value in least.items() if getattr(self, name) > value), "")
