"""A program's traces and plans as the kernels walk them."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from pdes.core import packet
from pdes.core import state as s
from pdes.core.inputs import Array, Int64, Program, Rows, Schedules
from pdes.core.memory import rows_of
from pdes.core.rows.npu import GroupView, PlanLane, PlanStep


def trace_tables(program: Program, p2p_share: float) -> s.Trace:
    """The program's traces under the names and with the types of the kernel; worlds of one process share them.

    p2p_share: of the settings.
    """
    made = {"connections": padded(_channel_connections(program, p2p_share), np.int64)}
    names = ((name, name if hasattr(program, name) else f"node_{name}") for name in s.Trace.__annotations__)
    plain = {name: _typed(s.Trace, name, getattr(program, found)) for name, found in names if name not in made}
    return s.Trace(**made, **plain)


def plan_tables(program: Program) -> s.PlanTables:
    """Likewise its groups, and the schedules of its collectives."""
    schedules = program.schedules
    size, parts, first = schedules.view_size, schedules.view_parts, schedules.view_ptr[:-1]
    views = rows_of(GroupView, len(size), members=size, parts=parts, first=first)
    made = {"lane_row": _lane_rows(schedules), "view_row": views, "step": _step_rows(schedules)}
    owners = ((name, program if hasattr(program, name) else schedules) for name in s.PlanTables.__annotations__)
    plain = {name: _typed(s.PlanTables, name, getattr(owner, name)) for name, owner in owners if name not in made}
    return s.PlanTables(**made, **plain)


def _typed(tables: Any, name: str, values: ArrayLike) -> Any:
    return padded(values, tables.__annotations__[name].__metadata__[0])


def _step_rows(schedules: Schedules) -> Rows:
    """The same memory as the steps of schedules, in rows with names."""
    if len(schedules.steps) == 0:
        return rows_of(PlanStep, 1)
    return np.ascontiguousarray(schedules.steps, np.int32).reshape(-1).view(PlanStep.dtype).view(np.recarray)


def _lane_rows(schedules: Schedules) -> Rows:
    """Rows of all lanes, with views counted over all schedules."""
    lanes = len(schedules.lane_ptr) - 1
    rows = rows_of(
        PlanLane,
        lanes,
        plain=schedules.lane_plain
        & (schedules.lane_latency_ps == 0)
        & (schedules.lane_gate < 0)
        & (schedules.lane_blocking == 0)
        & (schedules.lane_begins == 0),
        view_number=schedules.lane_view,
        gate=np.where(schedules.lane_phase >= 0, schedules.lane_gate, -1),
        alike=_lanes_alike(schedules),
        connection=_connections(schedules),
        waited_for=_waited_for(schedules),
    )
    for name in ("part", "parts", "chunks", "wire_num", "wire_den", "latency_ps", "phase", "blocking", "begins"):
        rows[name][:lanes] = getattr(schedules, f"lane_{name}")
    views = rows.view_number[:lanes]
    for base, first in zip(schedules.view_base.tolist(), schedules.plan_of_ptr[:-1].tolist(), strict=True):
        if base:  # only a schedule of one plan has views
            plan = schedules.plan_of[first]
            own = views[schedules.plan_ptr[plan] : schedules.plan_ptr[plan + 1]]
            own[own >= 0] += base
    return rows


def _channel_connections(program: Program, p2p_share: float) -> Int64:
    """Group, number and share of each way of messages between two NPUs; a given p2p_share holds to other hosts."""
    channels = program.channels
    found = packet.P2P | _numbered(channels.connection, channels.shares)
    return np.where(channels.between_hosts & (p2p_share < 1), packet.P2P, found)


def _connections(schedules: Schedules) -> Int64:
    """Word `connection` of each lane."""
    return _numbered(schedules.lane_connection, schedules.lane_shares)


def _numbered(number: Array, shares: Array) -> Int64:
    """Of connections, their numbers and shares, without a group."""
    shares = np.round(shares * packet.SHARE_UNITS).astype(np.int64)
    number = number.astype(np.int64)
    return number << packet.CONNECTION_SHIFT | np.where(shares > packet.SHARE_UNITS, shares, 0) << packet.SHARES_SHIFT


def _lanes_alike(schedules: Schedules) -> Int64:
    """Of each lane, how many of its plan are of its phase."""
    plan = np.repeat(np.arange(len(schedules.plan_ptr) - 1), np.diff(schedules.plan_ptr))
    pairs = np.stack([plan, schedules.lane_phase], axis=1)
    _, which, count = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    return count[which.reshape(-1)]


def _waited_for(schedules: Schedules) -> Int64:
    """Of each lane, as a bit set, lanes of its plan that wait for a step of it; those beyond the set are left out."""
    waited_for = np.zeros(len(schedules.lane_ptr) - 1, np.int64)
    number = np.arange(len(waited_for)) - np.repeat(schedules.plan_ptr[:-1], np.diff(schedules.plan_ptr))
    lane = np.repeat(np.arange(len(waited_for), dtype=np.int32), np.diff(schedules.lane_ptr))
    needs = schedules.dep_lane
    first = needs >= 0
    first[1:] &= (lane[1:] != lane[:-1]) | (needs[1:] != needs[:-1])
    lane, needs = lane[first], needs[first]
    told = number[lane] < s.STIRRED_LANES
    lane, needs = lane[told], needs[told]
    np.bitwise_or.at(waited_for, lane - number[lane] + needs, 1 << number[lane])
    return waited_for


def padded(values: ArrayLike, dtype: DTypeLike) -> Any:
    """A contiguous array of the type, never empty (an empty array has no address to read from)."""
    values = np.ascontiguousarray(values, dtype)
    return values if len(values) else np.zeros(1, dtype)
