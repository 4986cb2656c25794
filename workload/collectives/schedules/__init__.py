"""Schedules, the plans of all members as arrays for the engine, and what can be read back from them."""

from nadi.workload.collectives.schedules.packed import DONE_AT_ONCE, Schedules, ScheduleSet, appended, pack
from nadi.workload.collectives.schedules.sends import (
    connections_of_pairs,
    message_count,
    most_bytes,
    offsets,
    packet_count,
    pairs,
    peer,
    peers_of_members,
    usual_message,
)
from nadi.workload.kept import KeptResults
