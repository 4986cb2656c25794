"""The packet model in closed form: sizes on the wire, windows, round trips, buffers, credits; rules of detours."""

from nadi.pdes.construction.fabric import (
    MAX_BATCH,
    Fabric,
    at_tiers,
    covering_packets,
    round_trip_ps,
    window_packets,
)
from nadi.pdes.construction.ports import headrooms, lane_units
from nadi.pdes.construction.settings import CreditSwitch, TierSwitch
from nadi.pdes.core.packet import MAX_DATA_CLASSES, MAX_WIRE_BYTES, SHARE_UNITS
from nadi.pdes.core.state import MAX_PATHS, MAX_SET, SELECTIVE_PACKETS
from nadi.pdes.network import detours
from nadi.pdes.network.framing import (
    FLIT_BYTES,
    LINE_BYTES,
    NVSWITCH_KIND,
    PER_LINE_BYTES,
    acknowledgement_bytes,
    is_framed,
    is_in_domain,
    is_nvlink,
    wire_bytes,
)
from nadi.pdes.nic import entropy
from nadi.pdes.nic.control import ECHO_MASK
