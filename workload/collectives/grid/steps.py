"""Lanes of one phase as lanes of the whole schedule: their numbers, regions, peers and dependencies."""

from collections.abc import Sequence

from workload.collectives.plans.plan import NONE, Attributes, Lane, Step

# Lanes of a phase, whose steps number lanes and regions within the phase
LaneRows = list[tuple[Attributes, Sequence[Step]]]


def with_peers(step: Step, line: Sequence[int]) -> Step:
    """Return a step with the group's members in place of the places of a line."""
    send, receive = (NONE if peer == NONE else line[peer] for peer in (step.send_peer, step.recv_peer))
    return step._replace(send_peer=send, recv_peer=receive)


def append_phase(
    lanes: list[Lane], rows: LaneRows, mark: int, regions: Sequence[int], after: tuple[int, int], *, joined: bool
) -> tuple[int, int]:
    """Add the lanes of a phase, which begins after the step `after`, and return the (lane, step) that completes it.

    Args:
        lanes: Lanes of earlier phases.
        rows: Lanes of the phase.
        mark: Number of the phase.
        regions: Region of the schedule for each region of the phase.
        after: (lane, step), NONE = none.
        joined: Whether one more lane waits for all lanes of the phase.
    """
    base = len(lanes)
    for attributes, steps in rows:
        lane = Lane()
        lane.attributes = attributes._replace(phase=mark)
        chunks = attributes.chunks or 1
        for number, step in enumerate(steps):
            moved = _shifted(step, base, chunks, regions)
            lane.add(moved if number or step.dep_lane != NONE else _waiting(moved, after))
        lanes.append(lane)
    ends = [(base + i, len(steps) - 1) for i, (_, steps) in enumerate(rows) if steps]
    if not joined:
        return ends[0]
    join = Lane()
    join.attributes = Attributes(phase=mark, gate=rows[0][0].gate)
    for end in ends or [after]:
        join.add(_waiting(_IDLE, end))
    lanes.append(join)
    return len(lanes) - 1, len(join.steps) - 1


_IDLE = Step(NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, reduce=False)


def _waiting(step: Step, after: tuple[int, int]) -> Step:
    return step._replace(dep_lane=after[0], dep_step=after[1])


def _shifted(step: Step, base: int, chunks: int, regions: Sequence[int]) -> Step:
    """Return a step with the schedule's numbers of lanes and regions in place of the phase's."""
    send, receive = (
        NONE if chunk == NONE else regions[chunk // chunks] * chunks + chunk % chunks
        for chunk in (step.send_chunk, step.recv_chunk)
    )
    return step._replace(
        dep_lane=NONE if step.dep_lane == NONE else step.dep_lane + base,
        send_lane=NONE if step.send_lane == NONE else step.send_lane + base,
        send_chunk=send,
        recv_chunk=receive,
    )
