"""The packet model in closed form: sizes on the wire, windows and round trips, buffers, credits, limits."""

from nadi.pdes.construction.fabric import (
    MAX_BATCH,
    Fabric,
    classes_in_use,
    covering_packets,
    headrooms,
    lane_units,
    round_trip_ps,
    window_packets,
)
from nadi.pdes.construction.settings import CreditSwitch
from nadi.pdes.core.packet import MAX_WIRE_BYTES, SHARE_UNITS
from nadi.pdes.core.state import MAX_PATHS, MAX_SET, SELECTIVE_PACKETS
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
from nadi.pdes.nic.control import ECHO_MASK
from nadi.pdes.nic.entropy import FIXED, EntropyRule, entropy_rule
from nadi.pdes.nic.entropy import names as entropy_rules
