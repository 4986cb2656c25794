"""What a run may choose about the packets: sizes, windows, queues, switching, seed.

The fields are the table of settings (pdes/core/setting.py): `nadi.config` makes the keys of run files from it, and a
test holds docs/run-file.md against it.
"""

from dataclasses import dataclass
from typing import Annotated

from pdes.build.schedule import NO_FAULTS, Faults
from pdes.core.setting import Setting
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
    """Switches that share a buffer among their ports (docs/fabric.md).

    With pfc a switch pauses who sends too much, else it drops, or trims to headers. pfc_headroom_bytes 0 settles it
    from rate and delay. The thresholds of ecn are at 25 Gb/s and scale with the rate. class_weights () serves class 0
    first.
    """

    buffer_bytes: Annotated[int, Setting("bytes that a switch has")] = 32_000_000
    pfc: Annotated[bool, Setting("pause who sends too much, so that nothing is dropped")] = True
    pfc_alpha: Annotated[
        float, Setting("share of what is free that one queue (with PFC: one way in) may use, also without PFC")
    ] = 0.125
    pfc_headroom_bytes: Annotated[
        int, Setting("of each way in and data class, beside what is shared, for what comes after a pause", "auto")
    ] = 0
    pfc_resume_offset_bytes: Annotated[int, Setting("how far below the threshold a paused class goes on")] = 8192
    ecn: Annotated[bool, Setting("mark packets that leave a long queue behind")] = True
    ecn_kmin_bytes: Annotated[int, Setting("no marks up to this queue, at 25 Gb/s")] = 100_000
    ecn_kmax_bytes: Annotated[int, Setting("all packets are marked from this queue on, at 25 Gb/s")] = 400_000
    ecn_pmax: Annotated[float, Setting("share that is marked just below ecn_kmax")] = 0.2
    trimming: Annotated[bool, Setting("cut packets to their headers in place of dropping them")] = False
    class_weights: Annotated[
        tuple[int, ...], Setting("packets of data class 0 and 1 in turn; without, class 0 goes first", "none")
    ] = ()


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

    fidelity: Annotated[Fidelity, Setting("how the network is modelled")] = PACKET
    mtu_bytes: Annotated[int, Setting("payload of a full packet")] = 4096
    header_bytes: Annotated[int, Setting("what a data packet adds on the wire; 82 is RoCEv2 over IPv4")] = 82
    ack_bytes: Annotated[int, Setting("size of an acknowledgement on the wire")] = 86
    window_bytes: Annotated[
        int, Setting("payload that a sender may have unacknowledged, for each peer and group", "auto")
    ] = 0
    queue_limit_bytes: Annotated[int, Setting("drop-tail limit of a switch port", "unlimited")] = 0
    cut_through: Annotated[bool, Setting("a switch waits for the header only, not for the whole packet")] = False
    rto_ps: Annotated[
        int, Setting("retransmission timeout: without progress for so long, a sender sends again", "auto")
    ] = 0
    max_retries: Annotated[int, Setting("timeouts in a row after which the run fails")] = 16
    nvlink_framing: Annotated[bool, Setting("links of NVSwitches carry flits in place of Ethernet's frames")] = True
    switch: Annotated[
        SharedBuffer | None, Setting("whether the ports of a switch share its buffer", "output-queued")
    ] = None
    p2p_share: Annotated[
        float,
        Setting("share of its NIC's rate at which an NPU sends messages to NPUs of other hosts, all of them together"),
    ] = 1.0
    p2p_class: Annotated[int, Setting("data class of messages between two NPUs; collectives have 0")] = 0
    congestion_control: Annotated[
        Control, Setting("how fast a queue pair may send: `nadi net controls` lists names and parameters")
    ] = NO_CONTROL
    cnp_interval_ps: Annotated[int, Setting("between two congestion notifications of one queue pair")] = 4_000_000
    load_balancing: Annotated[
        Balancing, Setting("how a switch chooses among equal links: `nadi net controls` lists them")
    ] = ECMP
    flowlet_gap_ps: Annotated[int, Setting("without packets for so long, a flow may take another link")] = 50_000_000
    selective_repeat: Annotated[
        bool | None,
        Setting("send only what is lost again, not all from there on; auto: where packets may overtake", "auto"),
    ] = None
    reorder_packets: Annotated[
        int | None, Setting("selective repeat: packets by which one may be late before it is taken for lost", "auto")
    ] = None
    seed: Annotated[int, Setting("of all hashed choices: ECMP and the order of events at the same time")] = 1
    concurrent_collectives: Annotated[
        bool, Setting("collectives of one group on an NPU do not wait for each other")
    ] = False
    phases_per_dimension: Annotated[
        int, Setting("phases of collectives that an NPU does in one dimension at a time", "unlimited")
    ] = 0
    scheduling: Annotated[str, Setting("which phase that waits for a dimension goes next")] = "fifo"
    collectives_in_flight: Annotated[
        int, Setting("collectives that an NPU does at a time; those that wait go by scheduling", "unlimited")
    ] = 0
    rendezvous_bytes: Annotated[
        int, Setting("messages of at least this size are asked for before they are sent", "unlimited")
    ] = 0
    rendezvous_control_bytes: Annotated[int, Setting("payload of a request to send and of its answer")] = 64
    compute_slowdown: Annotated[
        float, Setting("times as long compute takes while a collective runs on its NPU, to a thousandth")
    ] = 1.0
    faults: Annotated[Faults, Setting("what fails, slows down or comes back", is_given=False)] = NO_FAULTS
    record_nodes: Annotated[bool, Setting("keep the times of trace nodes", is_given=False)] = True
    record_flows: Annotated[bool, Setting("keep a row for each message", is_given=False)] = True
    queue_samples: Annotated[
        int, Setting("stretches of time in which the longest queue of a shared buffer is noted", is_given=False)
    ] = 0
    logged_pauses: Annotated[int, Setting("pauses and resumes that are kept", is_given=False)] = 0

    def __post_init__(self) -> None:
        overtakes = self.load_balancing.reorders
        if self.selective_repeat is None:
            object.__setattr__(self, "selective_repeat", overtakes)
        if self.reorder_packets is None:
            object.__setattr__(self, "reorder_packets", 0 if overtakes else USUAL_REORDER_PACKETS)

    def beyond_messages(self) -> str:
        """The first that is given of what only packets have in the system layer; empty if none is."""
        given = {
            "rendezvous_bytes": self.rendezvous_bytes > 0,
            "compute_slowdown": self.compute_slowdown > 1.0,
            "collectives_in_flight": self.collectives_in_flight > 0,
        }
        return next((name for name, value in given.items() if value), "")
