"""Checks of absolute plans before they run.

Messages must have both ends, no step may wait for itself, and no chunk may be written while another step may use it.

Every step is two nodes of a graph, its post (2k) and its end (2k + 1). A post follows the end of the previous step in
its lane and of the step that it waits for; an end follows the post, and the post of the send that it receives.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from nadi.workload.collectives.plans.plan import NONE, Plans, Step
from nadi.workload.collectives.schedules.oracle import OracleError, check
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.errors import WorkloadError

Name = Callable[[int, int, int], str]  # the user's name of a step, by member, lane and number

Turn = Callable[[int, int, int], int]  # sort key of a member's sends to a lane, by member, lane and number


_MAX_NAMES = 8  # maximum number of steps that the message about a cycle names
_MAX_REASON = 160  # maximum number of characters of the oracle's reason in a message


class StepPlace(NamedTuple):
    """Member, lane and number of a step."""

    member: int
    lane: int
    number: int


class StepGraph(NamedTuple):
    """The graph of s steps."""

    places: list[StepPlace]  # place of each step
    steps: list[Step]  # all steps, in the order of places
    before: list[list[int]]  # nodes that must come before each of the 2s nodes
    order: list[int]  # the nodes, each after those before it


def flow_of(plans: Plans, name_of: Name, turn: Turn | None = None) -> StepGraph:
    """Return the graph of plans that are not relative; turn: order of a member's sends to a lane, None = one lane.

    name_of: function of member, lane and step that names it in errors. Raises WorkloadError: a send without a receive
    or vice versa, unequal counts, a missing lane or step, or a cycle of steps.
    """
    places = [
        StepPlace(member, lane, number)
        for member, lanes in enumerate(plans.plans)
        for lane, steps in enumerate(lanes)
        for number in range(len(steps))
    ]
    steps = [plans.plans[p.member][p.lane][p.number] for p in places]
    row = {place: k for k, place in enumerate(places)}
    before: list[list[int]] = [[] for _ in range(2 * len(places))]
    for k, (place, step) in enumerate(zip(places, steps, strict=True)):
        before[2 * k + 1].append(2 * k)
        if place.number:
            before[2 * k].append(2 * k - 1)
        if step.dep_lane != NONE:
            needed = row.get(StepPlace(place.member, step.dep_lane, step.dep_step))
            if needed is None:
                raise WorkloadError(f"{name_of(*place)}: waits for a step that is not there, expected one of the file")
            before[2 * k].append(2 * needed + 1)
    for send, receive in _messages(places, steps, name_of, turn):
        before[2 * receive + 1].append(2 * send)
    try:
        order = list(TopologicalSorter(dict(enumerate(before))).static_order())
    except CycleError as error:
        raise WorkloadError(_cycle(error.args[1], places, name_of)) from None
    return StepGraph(places, steps, before, order)


def check_races(flow: StepGraph, plans: Plans, name_of: Name) -> None:
    """Check that steps of a member that use a chunk are ordered, if one of them writes; WorkloadError if not."""
    # name_of: function of member, lane and step that names it in errors.
    for member in range(plans.members):
        uses = _uses(flow, member)
        known = {node: bit for bit, node in enumerate(dict.fromkeys(node for own in uses.values() for node, _ in own))}
        earlier = _earlier(flow, known)
        for own in uses.values():
            for i, (node, writes) in enumerate(own):
                for other, other_writes in own[:i]:
                    in_order = node == other or (earlier[node] >> known[other] | earlier[other] >> known[node]) & 1
                    if (writes or other_writes) and not in_order:
                        first, second = (name_of(*flow.places[k // 2]) for k in sorted((other, node)))
                        raise WorkloadError(
                            f"{second}: may be at the same chunk at the same time as "
                            f"{_short_name(first, second)}, and one of them writes it; expected a dependency "
                            "between them"
                        )


def check_result(plans: Plans, kind: str, label: str) -> None:
    """Check with the oracle that plans do what a kind promises; WorkloadError with the subject `label` if not."""
    try:
        check(kind, pack([plans]), 0)
    except OracleError as error:
        reason = str(error)
        shown = reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}..."
        raise WorkloadError(f"{label}: no {kind}: {shown}") from None


def _messages(
    places: list[StepPlace], steps: list[Step], name_of: Name, turn: Turn | None
) -> Iterator[tuple[int, int]]:
    """Yield the rows of each send and its receive: those of one sender and lane are matched in order (turn)."""
    # steps and their places are by row; name_of names one in errors.
    sends, receives = defaultdict(list), defaultdict(list)
    for k, (place, step) in enumerate(zip(places, steps, strict=True)):
        if step.send_peer != NONE:
            sends[place.member, step.send_peer, step.send_lane].append(k)
        if step.recv_peer != NONE:
            receives[step.recv_peer, place.member, place.lane].append(k)
    for wire in {**sends, **receives}:
        sent, taken = sends[wire], receives[wire]
        if turn is not None:
            sent.sort(key=lambda k: turn(*places[k]))
        for send, receive in zip(sent, taken, strict=False):
            if steps[send].send_count != steps[receive].recv_count:
                receive_name, send_name = name_of(*places[receive]), name_of(*places[send])
                raise WorkloadError(
                    f"{receive_name}: receives {steps[receive].recv_count} chunks, expected "
                    f"{steps[send].send_count} that {_short_name(send_name, receive_name)} sends"
                )
            yield send, receive
        if len(sent) > len(taken):
            place = places[sent[len(taken)]]
            raise WorkloadError(f"{name_of(*place)}: sends to {wire[1]}, which does not receive it; expected a receive")
        if len(taken) > len(sent):
            place = places[taken[len(sent)]]
            raise WorkloadError(f"{name_of(*place)}: receives from {wire[0]}, which does not send it; expected a send")


def _cycle(cycle: list[int], places: list[StepPlace], name_of: Name) -> str:
    """Return the error message for a cycle of nodes, each before the next, from its first step on."""
    circle = [node // 2 for node in reversed(cycle[1:])]
    rows = [k for i, k in enumerate(circle) if k != circle[i - 1]] or circle[:1]
    first_row = rows.index(min(rows))
    rows = rows[first_row:] + rows[:first_row] + [rows[first_row]]
    first = name_of(*places[rows[0]])
    names = [_short_name(name_of(*places[k]), first) for k in rows]
    names = [step_name for i, step_name in enumerate(names) if i == 0 or step_name != names[i - 1]]
    if len(names) > _MAX_NAMES:
        names = [*names[: _MAX_NAMES - 1], "...", names[-1]]
    return f"{first}: waits for itself ({' after '.join(names)}), expected no cycle"


def _short_name(name: str, other: str) -> str:
    """Return a name without the file, if the other name has the same file."""
    return name.removeprefix(other.rpartition(": ")[0] + ": ")


def _uses(flow: StepGraph, member: int) -> dict[int, list[tuple[int, bool]]]:
    """Return, for each chunk of a member, the nodes (ends of steps) that use it and whether they write it."""
    uses: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for k, (place, step) in enumerate(zip(flow.places, flow.steps, strict=True)):
        if place.member != member:
            continue
        if step.send_chunk != NONE:
            read_at = 2 * k + (step.send_peer == NONE)
            for chunk in range(step.send_chunk, step.send_chunk + step.send_count):
                uses[chunk].append((read_at, False))
        if step.recv_chunk != NONE:
            for chunk in range(step.recv_chunk, step.recv_chunk + step.recv_count):
                uses[chunk].append((2 * k + 1, True))
    return uses


def _earlier(flow: StepGraph, bit_of_node: dict[int, int]) -> list[int]:
    """Return, for each node of the graph, the bits of the known nodes that come before it."""
    earlier = [0] * len(flow.before)
    for node in flow.order:
        bits = 0
        for other in flow.before[node]:
            bits |= earlier[other]
            if other in bit_of_node:
                bits |= 1 << bit_of_node[other]
        earlier[node] = bits
    return earlier
