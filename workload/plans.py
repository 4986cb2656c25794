"""How a collective algorithm says what its members do: lanes of steps.

A member runs its lanes side by side, and the steps of a lane one after another. A step waits for its dependency, posts
its send (which never blocks), then waits for its receive.

    ring = Lane()
    for k in range(n - 1):
        ring.step(send_to=1, send=-k % n, receive_from=n - 1, receive=(-k - 1) % n)
    everyone_alike(n, chunks=n, lanes=[ring])
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

NONE = -1


class Step(NamedTuple):
    """One step; the fields are the columns of `workload.schedules.Schedules`, -1 = none."""

    dep_lane: int
    dep_step: int
    send_peer: int
    send_lane: int
    send_chunk: int
    send_count: int
    recv_peer: int
    recv_chunk: int
    recv_count: int
    reduce: bool


Plan = tuple[tuple[Step, ...], ...]
"""What one member does: its lanes, each a tuple of steps."""


class Lane:
    """A lane under construction."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(
        self,
        *,
        send_to: int = NONE,
        to_lane: int = 0,
        send: int = 0,
        send_count: int = 1,
        receive_from: int = NONE,
        receive: int = 0,
        receive_count: int = 1,
        reduce: bool = False,
        after: tuple[int, int] = (NONE, NONE),
    ) -> "Lane":
        """Add a step and return the lane.

        Args:
            send_to: member to send to; where everyone is alike, how far on in the group it is (1 .. n-1). -1 = no send.
            to_lane: lane of the receiver that takes the message.
            send: first chunk to send; where everyone is alike, counted from the member's own.
            send_count: how many chunks in a row.
            receive_from: member to receive from, as send_to.
            receive: first chunk that is received, as send.
            receive_count: how many chunks in a row.
            reduce: what is received is added to the chunk, else it replaces it.
            after: (lane, step) of the same member that must be done before the step starts.
        """
        sends, receives = send_to != NONE, receive_from != NONE
        self.steps.append(
            Step(
                *after,
                send_to,
                to_lane if sends else NONE,
                send if sends else NONE,
                send_count if sends else NONE,
                receive_from,
                receive if receives else NONE,
                receive_count if receives else NONE,
                reduce,
            )
        )
        return self


class Plans(NamedTuple):
    """An algorithm for one kind and number of members.

    Attributes:
        members: n.
        chunks: into how many the buffer is cut.
        relative: one plan for all members, peers and chunks counted from the member; else one plan each, absolute.
        plans: 1 plan if relative, else n.
    """

    members: int
    chunks: int
    relative: bool
    plans: tuple[Plan, ...]


def everyone_alike(members: int, chunks: int, lanes: Sequence[Lane]) -> Plans:
    """All members do the same: peer p means member (me + p) mod n, chunk c means (me chunks/n + c) mod chunks."""
    return Plans(members, chunks, relative=True, plans=(_plan(lanes),))


def each_its_own(chunks: int, lanes_of_members: Iterable[Sequence[Lane]]) -> Plans:
    """Every member has lanes of its own, with peers and chunks as they are."""
    plans = tuple(_plan(lanes) for lanes in lanes_of_members)
    return Plans(len(plans), chunks, relative=False, plans=plans)


def _plan(lanes: Sequence[Lane]) -> Plan:
    return tuple(tuple(lane.steps) for lane in lanes)
