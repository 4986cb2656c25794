"""Checks of plans: that their peers, lanes and chunks exist, and that each connection has one rate."""

from collections.abc import Iterable
from itertools import chain

import numpy as np

from nadi.et.arrays import Int64
from nadi.workload.collectives.plans.plan import (
    MAX_CONNECTIONS,
    MAX_SHARES,
    Attributes,
    LaneSteps,
    Plans,
    Step,
    step_table,
)
from nadi.workload.errors import WorkloadError

# By connection: the divisor of the line rate that limits it, and the algorithm that set it
SharesOf = dict[int, tuple[float, str]]
_PIECE_STEPS = 1 << 19  # number of steps that are checked at a time, which bounds the memory of the check


def checked(plans: Plans, label: str, kind: str = "", earlier_shares: SharesOf | None = None) -> Plans:
    """Return the plans after checking that their peers, lanes and chunks exist; the oracle checks the result."""
    # label: name of the schedule in errors; earlier_shares: connections' shares in schedules of equal groups, added to.
    given, min_regions = len(plans.plans), 2 if kind == "all-to-all" else 1
    attributes = [plans.attributes_of(i) for i in range(given)]
    for holds, problem in (
        (
            given == (1 if plans.relative else plans.members) and plans.chunks >= 1,
            f"{given} plans and {plans.chunks} chunks, expected one plan or one each",
        ),
        (
            plans.regions >= min_regions and plans.launch_ps >= 0,
            f"{plans.regions} regions, launch after {plans.launch_ps} ps; expected {min_regions} and 0 or more",
        ),
        (
            [len(own) for own in attributes] == [len(plan) for plan in plans.plans],
            "lanes and attributes differ in number, expected one each",
        ),
    ):
        if not holds:
            raise WorkloadError(f"{label}: {problem}")
    for view in plans.views:
        if len(view.member) != plans.members:
            raise WorkloadError(f"{label}: a view of {len(view.member)} members, expected all {plans.members}")
    for arrangement in plans.arrangements:
        if not np.array_equal(np.sort(arrangement), np.arange(len(arrangement))):
            raise WorkloadError(f"{label}: an arrangement of {len(arrangement)} pieces, expected each once")
    for lane in dict.fromkeys(chain.from_iterable(attributes)):
        _check_attributes(plans, lane, label)
    _check_shares(plans, attributes, label, {} if earlier_shares is None else earlier_shares)
    first = steps = 0
    for i, plan in enumerate(plans.plans):  # in pieces, which bound the memory of the check
        steps += sum(len(lane) for lane in plan)
        if steps >= _PIECE_STEPS or i == given - 1:
            _check_steps(plans, range(first, i + 1), attributes[first : i + 1], label)
            first, steps = i + 1, 0
    return plans


def _check_attributes(plans: Plans, lane: Attributes, label: str) -> None:
    """Check the attributes of a lane by themselves and against those of the plans; label: for errors."""
    has_view = -1 <= lane.view < len(plans.views) and (lane.view < 0 or plans.relative)
    has_part = 0 <= lane.part < lane.parts and (lane.chunks is None or lane.chunks >= 1)
    has_times = min(lane.wire) >= 1 and lane.latency_ps >= 0 and min(lane.phase, lane.gate) >= -1
    views, arrangements, connections = len(plans.views), len(plans.arrangements), MAX_CONNECTIONS
    for holds, problem in (
        (has_view, f"view {lane.view}, expected one of {views} in relative plans"),
        (-1 <= lane.arrangement < arrangements, f"arrangement {lane.arrangement}, expected one of {arrangements}"),
        (has_part, f"part {lane.part} of {lane.parts} in {lane.chunks} chunks, expected one"),
        (has_times, f"{lane}, expected a wire factor above 0 and no negative times"),
        (0 <= lane.connection < connections, f"connection {lane.connection}, expected one of 0 .. {connections - 1}"),
        (1 <= lane.shares <= MAX_SHARES, f"{lane.shares} shares of a line rate, expected 1 .. {MAX_SHARES}"),
    ):
        if not holds:
            raise WorkloadError(f"{label}: a lane with {problem}")
    chunks, size = lane.chunks or plans.chunks, _line_size(plans, lane)
    if plans.relative and chunks > 1 and chunks % size:
        members = "the members" if size == plans.members else f"the {size} members of a line"
        raise WorkloadError(f"{label}: {chunks} chunks, expected 1 or a multiple of {members}")


def _line_size(plans: Plans, lane: Attributes) -> int:
    """Return the number of members that a lane's peers are counted among, the member itself included."""
    return plans.views[lane.view].size if lane.view >= 0 else plans.members


def _check_shares(plans: Plans, attributes: list[tuple[Attributes, ...]], label: str, earlier_shares: SharesOf) -> None:
    """Check that each connection has one rate; earlier_shares: shares in schedules of equal groups, added to."""
    for lane, own in zip(chain.from_iterable(plans.plans), chain.from_iterable(attributes), strict=True):
        if lane.sends() if isinstance(lane, LaneSteps) else any(step.send_peer >= 0 for step in lane):
            known, other = earlier_shares.setdefault(own.connection, (own.shares, label))
            if known != own.shares:
                also = "" if other == label else f" in {other}"
                raise WorkloadError(
                    f"{label}: connection {own.connection} at 1/{own.shares:g} of the line rate, "
                    f"and at 1/{known:g}{also}, expected one rate"
                )


def _check_steps(plans: Plans, plan_numbers: range, attributes_of: list[tuple[Attributes, ...]], label: str) -> None:
    """Check the peers, chunks and connections of the steps of some plans; label: for errors."""
    lanes = [lane for i in plan_numbers for lane in plans.plans[i]]
    lengths = [len(lane) for lane in lanes]
    steps = dict(zip(Step._fields, step_table(lanes).T, strict=True))

    def by_step(values: Iterable[int]) -> Int64:
        return np.repeat(np.fromiter(values, np.int64, len(lanes)), lengths)

    attributes = list(chain.from_iterable(attributes_of))
    chunks = by_step(a.chunks or plans.chunks for a in attributes)
    size = by_step(_line_size(plans, a) for a in attributes)
    copies = (steps["send_peer"] < 0) & (steps["recv_peer"] < 0) & (steps["send_chunk"] >= 0)
    for side in ("send", "recv"):
        peer, chunk, count = (steps[f"{side}_{field}"] for field in ("peer", "chunk", "count"))
        if np.any(peer >= size) or (plans.relative and np.any(peer == 0)):
            raise WorkloadError(f"{label}: {side} peer {peer.max()}, expected another of the members")
        outside = (chunk < 0) | (count < 1) | (chunk % chunks + count > chunks) | (chunk >= plans.regions * chunks)
        wrong = ((peer >= 0) | copies) & outside
        if np.any(wrong):
            last = plans.regions * int(chunks[np.argmax(wrong)]) - 1
            raise WorkloadError(f"{label}: {side} of a chunk that is not there, expected 0 .. {last}")
    if np.any(copies & (steps["send_count"] != steps["recv_count"])):
        raise WorkloadError(f"{label}: a copy of chunks to another number of them, expected equal numbers")
    connection = by_step(a.connection for a in attributes)
    if connection.any():  # a lane must receive a peer's messages over a single connection, to keep them in order
        plan = by_step(i for i in plan_numbers for _ in plans.plans[i])
        sender = plan * (len(plans.views) + 1) + by_step(a.view for a in attributes) + 1
        sends = steps["send_peer"] >= 0
        peer, lane = steps["send_peer"][sends].astype(np.int64), steps["send_lane"][sends].astype(np.int64)
        to = (sender[sends] * (peer.max(initial=0) + 1) + peer) * (lane.max(initial=0) + 1) + lane
        if len(np.unique(to)) < len(np.unique(to * MAX_CONNECTIONS + connection[sends])):
            raise WorkloadError(f"{label}: a lane that gets a peer's messages over several connections, expected one")
