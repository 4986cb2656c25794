"""Settings of the packet network: sizes, windows, queues, switching, faults, seed.

The fields are the table of settings (pdes/core/__init__.py): `nadi.configuration.sections` makes the keys of run files
from it, and docs/reference/run-file.md shows it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from nadi.pdes.construction.faults import NO_FAULTS, Faults
from nadi.pdes.core import Bools, Int64, setting
from nadi.pdes.fidelity import Fidelity, flow
from nadi.pdes.network.balancing import ECMP, Balancing
from nadi.pdes.network.detours import MINIMAL, Detours
from nadi.pdes.network.disciplines import STRICT, Discipline, discipline
from nadi.pdes.nic.congestion import NO_CONTROL, Control
from nadi.pdes.nic.entropy import FIXED, EntropyRule

SCHEDULINGS = ("fifo", "lifo", "priority")  # orders in which phases of collectives that wait for a dimension are served
PAUSE_FRAME_BYTES = 84  # 64 bytes with preamble and gap (IEEE 802.3 annex 31B, 802.1Qbb)
USUAL_REORDER_PACKETS = 3
"""Default of selective repeat where links keep the order: TCP's three duplicate acknowledgements (RFC 5681)."""


class TierSwitch(NamedTuple):
    """What differs at the switches of one kind, by the word of their names; None = as at all others."""

    word: str  # "leaf" of the switches "leaf 0", "leaf 1", ...
    cut_through: bool | None = None
    load_balancing: Balancing | None = None
    buffer_bytes: int | None = None
    pfc: bool | None = None
    pfc_alpha: float | None = None
    pfc_headroom_bytes: int | None = None
    pfc_resume_offset_bytes: int | None = None
    ecn: bool | None = None
    ecn_kmin_bytes: int | None = None
    ecn_kmax_bytes: int | None = None
    ecn_pmax: float | None = None
    trimming: bool | None = None
    trim_threshold_bytes: int | None = None
    trim_share: float | None = None


@dataclass(frozen=True)
class SharedBuffer:
    """Switches whose ports share a buffer (docs/explanation/fabric.md).

    With pfc a switch pauses its senders; without, it drops packets or trims them to headers. pfc_headroom_bytes 0 is
    computed from rate and delay. The thresholds of ecn refer to 25 Gb/s and scale with the rate. A discipline of None
    follows from class_weights: weighted round robin with them and where packets rise, "ets" with a 0, strict otherwise.
    """

    buffer_bytes: int = setting(32_000_000, "buffer memory of a switch in bytes")
    pfc: bool = setting(True, "pause senders before the buffer overflows, so that no packet is dropped")
    pfc_alpha: float = setting(
        0.125, "share of the free buffer that one queue (with PFC: one ingress port) may use, also without PFC"
    )
    pfc_headroom_bytes: int = setting(0, "headroom per ingress port and class for packets after a pause", "auto")
    pfc_resume_offset_bytes: int = setting(8192, "bytes below the pause threshold at which a paused class resumes")
    ecn: bool = setting(True, "mark packets that leave a long queue behind them")
    ecn_kmin_bytes: int = setting(100_000, "queue length up to which no packet is marked, at 25 Gb/s")
    ecn_kmax_bytes: int = setting(400_000, "queue length from which every packet is marked, at 25 Gb/s")
    ecn_pmax: float = setting(0.2, "share of packets that are marked just below ecn_kmax")
    trimming: bool = setting(False, "trim packets to their headers instead of dropping them")
    trim_threshold_bytes: int = setting(
        0,
        "queue of a port above which packets are trimmed or dropped, at 25 Gb/s; auto: pfc_alpha of the free buffer",
        "auto",
    )
    trim_last_hop: float = setting(1.0, "factor on trim_threshold at ports to NPUs")
    trim_share: float = setting(
        0.0,
        "share of a port's bytes for trimmed packets while data waits; 1: they precede data; "
        "0: ten of them for each packet of data",
    )
    trimmed_size_bytes: int = setting(0, "size of a trimmed packet on the wire; auto: header", "auto")
    ecn_last_hop: bool = setting(True, "mark packets also at ports to NPUs")
    pfc_classes: tuple[int, ...] = setting(
        (), "data classes whose senders switches pause; packets of the others are dropped", "all"
    )
    pfc_rising_classes: int = setting(1, "data classes through which packets rise, so that pauses form no circle")
    class_weights: tuple[int, ...] = setting(
        (), "weights of data classes 0, 1, ... in packets; with discipline ets, 0 = before all others", "none"
    )
    discipline: Discipline | None = setting(
        None,
        "order in which a port sends its data classes; auto: strict without class_weights, weighted with them, ets if "
        "one is 0",
        "auto",
    )
    # (rate in bit/s, kmin and kmax in bytes, pmax) of links of exactly that rate, in place of the keys without rate
    ecn_by_rate: tuple[tuple[int, int, int, float], ...] = setting(
        (), "ecn_kmin, ecn_kmax and ecn_pmax of links of exactly some rates, by rate", "none"
    )
    # (data class, kmin and kmax in bytes, pmax), in place of all other thresholds
    ecn_by_class: tuple[tuple[int, int, int, float], ...] = setting(
        (), "ecn_kmin, ecn_kmax and ecn_pmax of data classes, by class, at 25 Gb/s", "none"
    )

    def __post_init__(self) -> None:
        if self.discipline is None:
            by_turns = discipline("weighted" if all(self.class_weights) else "ets")
            turns = self.class_weights or self.pfc_rising_classes > 1
            object.__setattr__(self, "discipline", by_turns if turns else STRICT)


@dataclass(frozen=True)
class CreditSwitch:
    """Switches and NICs that send only what the other end has room for, by virtual lane (pdes/network/lane_credits.py).

    The defaults are InfiniBand's: units of 64 bytes, frames of 8 bytes (IBTA volume 1, 7.9.4: 48 bits and two
    delimiters). A lane's automatic buffer covers the round trip of its link, and holds at least 51,200 bytes: the 800
    units of lane 0 in Mellanox's model of InfiniBand for OMNeT++, as is the limit of 16 times 4 KiB of high priority.
    Credit-based flow control of Ultra Ethernet has units of 32 bytes.
    """

    virtual_lanes: int = setting(1, "virtual lanes of a link, each with a buffer and credits of its own")
    lane_buffer_bytes: int = setting(0, "input buffer of each virtual lane at each end of a link", "auto")
    credit_unit_bytes: int = setting(64, "unit of credits; a packet takes whole units")
    credit_return_bytes: int = setting(
        0, "bytes that must have left a lane's buffer before their credits return, unless the buffer is empty"
    )
    credit_frame_bytes: int = setting(8, "bytes on the wire of the control frame that returns credits")
    lane_weights: tuple[int, ...] = setting((), "units of 64 bytes that each virtual lane sends in its turn", "packets")
    high_lanes: int = setting(0, "number of lanes, the last ones, that have priority over the others")
    high_limit_bytes: int = setting(
        65536, "bytes that lanes of high priority send before a waiting lane of low priority has a turn"
    )


class CoupledCollectives(NamedTuple):
    """K kinds of collectives that are coupled flows (pdes/messages/coupled.py), those of a group together."""

    ptr: Int64  # int64[G+1], first kind of each group
    schedule: Int64  # int64[K], number of the schedule
    bytes: Int64  # int64[K], size of the buffer
    alone_ps: Int64  # int64[K], time of one collective alone on the idle fabric
    is_coupled: Bools  # bool[S], schedules of such collectives; those of others send message by message


@dataclass(frozen=True)
class Settings:
    """Settings of the packet network.

    header_bytes is what a RoCEv2 data packet adds on the wire: preamble and SFD 8, Ethernet 14, IPv4 20, UDP 8, BTH 12,
    ICRC 4, FCS 4, inter-packet gap 12 = 82 (IEEE 802.3 clause 3; InfiniBand annex A17). ack_bytes is the same with an
    AETH of 4 bytes and no payload. window_bytes 0 and rto_ps 0 are computed from the fabric; there is no timeout where
    nothing can be lost. selective_repeat and reorder_packets None follow from the load balancing. The 64 bytes of
    rendezvous_control_bytes hold what MPI and UCX send: a tag, sizes, addresses and keys. queue_samples is a power of
    two. At message level, only seed, collectives, records and fidelity matter.
    """

    fidelity: Fidelity = setting(Fidelity(), "model of the network")
    mtu_bytes: int = setting(4096, "payload of a full packet")
    header_bytes: int = setting(82, "bytes that a data packet adds on the wire; 82 is RoCEv2 over IPv4")
    ack_bytes: int = setting(86, "size of an acknowledgement on the wire")
    window_bytes: int = setting(0, "payload that a sender may have unacknowledged, per peer and group", "auto")
    queue_limit_bytes: int = setting(0, "drop-tail limit of a switch port", "unlimited")
    cut_through: bool = setting(False, "forward a packet as soon as its header has arrived")
    tiers: tuple[TierSwitch, ...] = setting(
        (),
        "keys of switches that differ by the word of their names: load balancing, latency, buffer, PFC, ECN, trimming",
        "none",
    )
    rto_ps: int = setting(0, "retransmission timeout: time without progress after which a sender retransmits", "auto")
    max_retries: int = setting(16, "consecutive timeouts after which the run fails")
    max_resends: int = setting(
        32768, "times that a queue pair sends its first unacknowledged packet again after trims, before the run fails"
    )
    nvlink_framing: bool = setting(True, "links of NVSwitches carry flits instead of Ethernet frames")
    switch: SharedBuffer | None = setting(
        None,
        "queues of switches: output-queued; shared-buffer = the ports share a buffer; credits = a port sends what the "
        "other end has room for",
        "output-queued",
    )
    credits: CreditSwitch | None = setting(None, "credits of links", is_given=False)
    p2p_share: float = setting(
        1.0, "share of its NIC's rate that an NPU uses for point-to-point messages to other hosts, in total"
    )
    queue_pairs: str = setting(
        "pair",
        "queue pairs of point-to-point messages: pair = one for all from one NPU to another, in order; message = each "
        "has its own, with its own path and congestion control",
    )
    p2p_class: int = setting(0, "data class, or virtual lane, of point-to-point messages; collectives have 0")
    group_classes: Int64 | None = setting(None, "data class of each group's messages; None: 0", is_given=False)
    named_classes: tuple[int, ...] = setting((), "data classes of the run; none: 0 and p2p_class", is_given=False)
    p2p_classes: Int64 | None = setting(
        None, "data class of each NPU's point-to-point messages; None: p2p_class", is_given=False
    )
    congestion_control: Control = setting(
        NO_CONTROL,
        "congestion control of queue pairs: `nadi net controls` lists names and parameters; or the user's own, FILE.py",
    )
    cnp_interval_ps: int = setting(4_000_000, "minimum time between two congestion notifications of a queue pair")
    cnp_delay_ps: int = setting(
        0, "time that a receiver's NIC takes from the arrival of a marked packet to its congestion notification"
    )
    receiver_credits: bool = setting(
        False, "receivers grant credit to senders at the rate of their links (RCCC), beside any congestion control"
    )
    credit_window_bytes: int = setting(0, "largest credit of a sender, and what it begins with", "auto")
    oversubscription: float = setting(
        1.0, "oversubscription r of the fabric, for which receivers slow their credits down to 0.9 / r; 1: they do not"
    )
    load_balancing: Balancing = setting(
        ECMP, "load balancing of switches over equal-cost links: `nadi net controls` lists the rules"
    )
    routing: Detours = setting(
        MINIMAL,
        "paths of packets through switches: shortest, or by way of other groups: `nadi net controls` lists them",
    )
    flowlet_gap_ps: int = setting(50_000_000, "gap between packets after which a flow may take another link")
    grade_thresholds: tuple[int, ...] = setting((1280, 2560, 5120), "bytes that wait, above which grades rise")
    routing_delay_ps: int = setting(
        0, "time from a switch's choice between a detour and a shortest path until the packet joins the port's queue"
    )
    selective_repeat: bool | None = setting(
        None, "retransmit only lost packets, not all packets after them; auto: where packets may overtake", "auto"
    )
    reorder_packets: int | None = setting(
        None, "selective repeat: reordering in packets beyond which a packet counts as lost", "auto"
    )
    delivery: str = setting(
        "auto",
        "delivery mode of Ultra Ethernet: rud = any order, selective repeat, windows count packets in flight; rod = in "
        "order, go-back-N; auto: windows count from the first unacknowledged packet on",
    )
    ack_every_bytes: int = setting(
        16_384,
        "delivery rud: data after which a receiver acknowledges, if nothing asks for it at once, as in htsim and Ultra "
        "Ethernet; 0: each packet",
    )
    sleek: bool = setting(
        False, "infer losses from the number of packets out of order, as SLEEK does where switches do not trim"
    )
    entropy: EntropyRule = setting(
        FIXED,
        "choice of the entropy that switches hash (ECMP), by the sender: fixed = one for all packets of a queue pair; "
        "docs/explanation/fabric.md lists the rules",
    )
    paths: int = setting(64, "number of entropies of a queue pair, a power of two")
    denied_paths: tuple[str, ...] = setting(
        (), 'planes, spines or paths that senders with entropy = "mrc" may not use, as DENIED by an operator', "none"
    )
    nic_ports: str = setting(
        "one",
        "ports that a queue pair uses of a NIC with several: one, those of two NPUs in turn; first, one for all; hash, "
        "one by a hash; or all, each packet the one that its entropy names",
    )
    seed: int = setting(1, "seed of all hashed choices: ECMP and the order of simultaneous events")
    concurrent_collectives: bool = setting(False, "let collectives of one group run concurrently on an NPU")
    one_at_a_time: bool = setting(
        False,
        "an NPU runs one computation and one collective, send or memory node at a time, the first of the trace that is "
        "ready",
    )
    phases_per_dimension: int = setting(
        0, "phases of collectives that an NPU runs in one dimension at a time", "unlimited"
    )
    scheduling: str = setting("fifo", "order in which phases that wait for a dimension are served")
    collectives_in_flight: int = setting(
        0, "collectives that an NPU runs at a time; scheduling orders those that wait", "unlimited"
    )
    rendezvous_bytes: int = setting(0, "minimum size of messages that use the rendezvous protocol", "unlimited")
    rendezvous_control_bytes: int = setting(64, "payload of a request to send and of its answer")
    compute_slowdown: float = setting(1.0, "factor on compute time while a collective runs on its NPU, to a thousandth")
    job_slowdowns: tuple[float, ...] = setting(
        (), "compute_slowdown of each job where jobs differ, in place of it", is_given=False
    )
    tick_ps: int = setting(
        0, "packets: interval, from the begin of its job, at which an NPU notices what has ended; 0: at once"
    )
    remote_sharers: int = setting(1, "message level: consecutive NPUs that share a remote memory", is_given=False)
    reuse: bool = setting(False, "replay collectives of NVLink domains that repeat", is_given=False)
    fast_forward: float = setting(0.0, "difference between periods of a run that count as alike", is_given=False)
    flow_groups: Bools | None = setting(
        None,
        "messages that are flows beside packets: bool[groups + 1], those of each group, at the end point-to-point ones",
        is_given=False,
    )
    coupled: CoupledCollectives | None = setting(None, "flows: collectives that are coupled flows", is_given=False)
    faults: Faults = setting(NO_FAULTS, "failures, slowdowns and recoveries", is_given=False)
    record_nodes: bool = setting(True, "keep the times of trace nodes", is_given=False)
    record_flows: bool = setting(True, "keep a row for each message", is_given=False)
    record_replayed: bool = setting(True, "also for each message of a replayed collective", is_given=False)
    queue_samples: int = setting(0, "intervals whose longest queue is recorded", is_given=False)
    logged_pauses: int = setting(0, "pauses and resumes that are kept", is_given=False)
    sample_ps: int = setting(0, "interval of the samples of links, 0: links are not sampled", is_given=False)

    def __post_init__(self) -> None:
        """Replace None by the usual value, by whether load balancing reorders packets, and unsupported settings."""
        if self.selective_repeat is None:
            object.__setattr__(self, "selective_repeat", self.overtakes if self.delivery == "auto" else self.by_flight)
        if self.reorder_packets is None:
            object.__setattr__(self, "reorder_packets", 0 if self.overtakes else USUAL_REORDER_PACKETS)
        if self.fidelity.hooks.act is None:  # NPUs act at different times within a cell
            object.__setattr__(self, "remote_sharers", 1)
        else:
            object.__setattr__(self, "tick_ps", 0)

    @property
    def overtakes(self) -> bool:
        """Whether packets of a queue pair may overtake each other, since they take different paths."""
        sprays = any(rule.reorders for rule in self.balancings)
        return sprays or self.routing.reorders or self.entropy.act is not None

    @property
    def balancings(self) -> tuple[Balancing, ...]:
        """Distinct rules of load balancing of the run: that of all switches, then those of tiers."""
        own = (tier.load_balancing for tier in self.tiers if tier.load_balancing)
        return tuple(dict.fromkeys((self.load_balancing, *own)))

    @property
    def spreads_ports(self) -> bool:
        """Whether packets of a queue pair take all ports of a NIC that has several."""
        return self.nic_ports == "all" and self.entropy.act is not None

    @property
    def smallest_bytes(self) -> int:
        """Size of the smallest packet on the wire in bytes."""
        trimmed_bytes = self.switch.trimmed_size_bytes if self.switch else 0
        return min(self.ack_bytes, self.header_bytes, trimmed_bytes or self.header_bytes)

    @property
    def by_flight(self) -> bool:
        """Whether windows count packets in flight."""
        return self.delivery == "rud"

    @property
    def coalesces(self) -> bool:
        """Whether one acknowledgement answers several packets."""
        return self.by_flight and self.ack_every_bytes > 0

    @property
    def has_port_queues(self) -> bool:
        """Whether switches hold packets in queues at their ports: they share buffers, or links have credits."""
        return self.switch is not None or self.credits is not None

    @property
    def has_ecn(self) -> bool:
        """Whether some switches mark packets."""
        return self.switch is not None and (self.switch.ecn or any(tier.ecn for tier in self.tiers))

    @property
    def trims(self) -> bool:
        """Whether some switches trim packets."""
        return self.switch is not None and (self.switch.trimming or any(tier.trimming for tier in self.tiers))

    @property
    def data_classes(self) -> tuple[int, ...]:
        """Data classes of the run's packets, in order."""
        above = range(self.switch.pfc_rising_classes) if self.switch else (0,)
        return tuple(sorted({each + more for each in self.message_classes for more in above}))

    @property
    def message_classes(self) -> tuple[int, ...]:
        """Data classes in which packets leave their senders, in order."""
        # requests to send belong to no group
        unnamed = not self.named_classes or self.rendezvous_bytes or self.collectives_in_flight
        return tuple(sorted({*(self.named_classes or {self.p2p_class}), *({0} if unnamed else ())}))

    @property
    def lossless_classes(self) -> tuple[int, ...]:
        """Those of them whose senders switches with PFC pause."""
        only = self.switch.pfc_classes if self.switch else ()
        return tuple(each for each in self.data_classes if not only or each in only)

    @property
    def slows_compute(self) -> bool:
        """Whether computation of any NPU is slower while a collective runs there."""
        return max(self.job_slowdowns, default=self.compute_slowdown) > 1

    @property
    def has_flows(self) -> bool:
        """Whether some messages share links as fluids, all or between packets."""
        return self.flow_groups is not None or self.fidelity.hooks.settle is not None

    @property
    def several_workers(self) -> bool:
        """Whether threads, processes and ranks may share the run."""
        return self.flow_groups is None and not self.routing.publish and self.fidelity.model.several_workers

    @property
    def max_link_rate_bps(self) -> int | None:
        """Maximum rate of a link in bit/s, but for those of aggregators; None = that of the fabric."""
        return (self.fidelity.model if self.flow_groups is None else flow.NETWORK).max_link_rate_bps

    def beyond_mixed(self) -> str:
        """Return the first setting given that flows beside packets do not support; "" without one."""
        ends = self.fidelity
        given = {
            "endpoint_delay": ends.endpoint_delay_ps,
            "reduction_bandwidth": ends.reduction_bandwidth_bps,
            "send_latency": ends.send_latency_ps,
            "acknowledged": ends.acknowledged,
            "faults": self.faults,
            "routing": self.routing.route,
        }
        return next((name for name, value in given.items() if value), self.beyond_messages())

    def beyond_messages(self) -> str:
        """Return the first setting given that only a packet-level model supports; "" without one."""
        inactive = {"rendezvous_bytes": 0, "collectives_in_flight": 0}
        return next((name for name, value in inactive.items() if getattr(self, name) > value), "")
