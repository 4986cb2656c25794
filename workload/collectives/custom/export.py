"""Absolute plans of users: checks before they run, and their export as MSCCL's XML.

Messages must have both ends, no step may wait for itself, and no chunk may be written while another step may use it.

Every step is two nodes of a graph, its post (2k) and its end (2k + 1). A post follows the end of the previous step in
its lane and of the step that it waits for; an end follows the post, and the post of the send that it receives.
"""

import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from nadi.workload.collectives.custom.msccl import KIND_OF
from nadi.workload.collectives.plans.plan import NONE, PLAIN, Plans, Step
from nadi.workload.collectives.schedules.oracle import OracleError, check
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.collectives.schedules.sends import buffers, unpack
from nadi.workload.errors import WorkloadError

Name = Callable[[int, int, int], str]  # the user's name of a step, by member, lane and number

Turn = Callable[[int, int, int], int]  # sort key of a member's sends to a lane, by member, lane and number


_MAX_NAMES = 8  # maximum number of steps that the message about a cycle names
_MAX_REASON = 160  # maximum number of characters of the oracle's reason in a message


class StepPlace(NamedTuple):
    """Member, lane and number of a step."""

    member: int  # member whose plan has the step
    lane: int  # lane of the plan
    number: int  # number of the step in its lane


class StepGraph(NamedTuple):
    """The graph of s steps."""

    places: list[StepPlace]  # place of each step
    steps: list[Step]  # all steps, in the order of places
    before: list[list[int]]  # nodes that must come before each of the 2s nodes
    order: list[int]  # the nodes, each after those before it


def flow_of(plans: Plans, name_of: Name, turn: Turn | None = None) -> StepGraph:
    """Return the graph of plans that are not relative.

    Raises WorkloadError: a send without a receive or vice versa, unequal counts, a missing lane or step, or a cycle of
    steps.

    Args:
        plans: The plans, one for each member, with absolute peers and chunks.
        name_of: A function of member, lane and step that returns the user's name of the step, for errors.
        turn: A function of member, lane and step that returns the sort key of a member's sends to one lane; None = they
            are in one lane.
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
            # Steps of a lane are consecutive rows: 2k - 1 is the end of the step before
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
    """Check that steps of a member that use a chunk are ordered, if one of them writes; WorkloadError if not.

    Args:
        flow: The graph of the steps of the plans.
        plans: The plans, one for each member, with absolute peers and chunks.
        name_of: A function of member, lane and step that returns the user's name of the step, for errors.
    """
    for member in range(plans.members):
        uses = _uses(flow, member)
        known = {node: bit for bit, node in enumerate(dict.fromkeys(node for own in uses.values() for node, _ in own))}
        earlier = _earlier(flow, known)
        for own in uses.values():
            for i, (node, writes) in enumerate(own):
                for other, other_writes in own[:i]:
                    # Either node comes before the other on some path of the graph
                    in_order = node == other or (earlier[node] >> known[other] | earlier[other] >> known[node]) & 1
                    if (writes or other_writes) and not in_order:
                        first, second = (name_of(*flow.places[k // 2]) for k in sorted((other, node)))
                        raise WorkloadError(
                            f"{second}: may be at the same chunk at the same time as "
                            f"{_short_name(first, second)}, and one of them writes it; expected a dependency "
                            "between them"
                        )


def check_result(plans: Plans, kind: str, label: str) -> None:
    """Check with the oracle that plans do what a kind promises; WorkloadError if not.

    Args:
        plans: The plans, one for each member, with absolute peers and chunks.
        kind: The kind of collective, one of workload.KINDS.
        label: The subject of the error, a file or other source of the plans.
    """
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
    # Begin the cycle at its first step in the file, so that the message does not depend on the search
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
            # A send reads its chunk when it is posted, a copy when it ends
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


# Export of plans as MSCCL's XML, which workload.collectives.custom.msccl can read.
#
# A lane becomes one thread block if it sends only to the lane of its own number at one member and receives from one
# member. Otherwise it becomes one thread block per peer, and each of these waits for the one before.


_NAME_OF = {kind: name for name, kind in reversed(KIND_OF.items())}

Block = tuple[int, int, int, int]  # lane, send, recv and channel of a thread block

At = tuple[Block, int]  # a step of a thread block


def to_msccl(plans: Plans, kind: str, name: str) -> str:
    """Return MSCCL's XML of plans; a lane is a thread block. Raises WorkloadError: the format cannot express the plans.

    Args:
        plans: The plans, whose lanes all cut the whole buffer into equal chunks.
        kind: The kind of collective, one of workload.KINDS.
        name: The name of the algorithm in the XML.
    """
    if kind not in _NAME_OF:
        raise WorkloadError(f"MSCCL's XML of {kind}: expected one of {', '.join(_NAME_OF)}")
    packed = pack([plans])
    attributes = {
        lane_attributes._replace(view=NONE)
        for i in range(len(plans.plans))
        for lane_attributes in plans.attributes_of(i)
    }
    own_chunks = {buffer.chunks for own in buffers(packed, 0) for buffer in own}
    in_parts = kind in {"all-gather", "reduce-scatter", "all-to-all"} and plans.chunks % plans.members
    if attributes - {PLAIN} or own_chunks - {plans.chunks} or plans.launch_ps or in_parts:
        raise WorkloadError(f"MSCCL's XML of {name}: lanes of parts, other chunks or latencies, expected plain ones")
    root = ET.Element("algo", name=name, proto="Simple", nchannels="1", nchunksperloop=str(plans.chunks))
    root.attrib |= {"ngpus": str(plans.members), "coll": _NAME_OF[kind], "inplace": str(int(kind != "all-to-all"))}
    gpus = [_Gpu(lanes, plans, kind, member) for member, lanes in enumerate(unpack(packed, 0))]
    root.extend(gpu.element() for gpu in gpus)
    root.set("nchannels", str(1 + max(channel for gpu in gpus for _, _, _, channel in gpu.blocks)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


class _Gpu:
    """Thread blocks of a member, in the order of its lanes."""

    def __init__(self, lanes: list[list[Step]], plans: Plans, kind: str, member: int) -> None:
        """Cut the lanes of a member, lists of steps, into thread blocks."""
        self.member, self.kind, self.chunks, self.part = member, kind, plans.chunks, plans.chunks // plans.members
        self.buffers = 2 if kind == "all-to-all" else 1
        self.scratch = (plans.regions - self.buffers) * plans.chunks
        self.blocks: dict[Block, list[ET.Element]] = {}
        self.depends: list[tuple[ET.Element, int, int, At | None]] = []
        self.end: dict[tuple[int, int], At] = {}
        for number, lane in enumerate(lanes):
            self._lane(number, lane)
        if kind == "all-to-all":  # the own part, which all-to-all has at the start here but not there
            own = member * self.part
            self._add((len(lanes), NONE, NONE, 0), "cpy", own, self.chunks + own, self.part)

    def element(self) -> ET.Element:
        """Return the XML element `gpu` of the member."""
        part, all_chunks = str(self.part), str(self.chunks)
        sizes = {"i_chunks": part if self.kind == "all-gather" else all_chunks}
        sizes["o_chunks"] = part if self.kind == "reduce-scatter" else all_chunks
        gpu = ET.Element("gpu", {"id": str(self.member), **sizes, "s_chunks": str(self.scratch)})
        number = {block: i for i, block in enumerate(self.blocks)}
        for element, lane, step, before in self.depends:
            block, at = before if before is not None else self.end[lane, step]
            element.attrib |= {"depid": str(number[block]), "deps": str(at)}
            self.blocks[block][at].set("hasdep", "1")
        for block, steps in self.blocks.items():
            _, send, recv, channel = block
            peers = {"send": str(send), "recv": str(recv), "chan": str(channel)}
            ET.SubElement(gpu, "tb", {"id": str(number[block]), **peers}).extend(steps)
        return gpu

    def _lane(self, lane_number: int, lane: list[Step]) -> None:
        """Add the steps of a lane to thread blocks."""
        block_of_lane = _whole(lane_number, lane)
        last: At | None = None
        for k, step in enumerate(lane):
            dep = None if step.dep_lane == NONE else (step.dep_lane, step.dep_step)
            for own, does, src, dst, count in _halves(lane_number, step):
                block = block_of_lane or own
                before = last if last is not None and last[0] != block else None
                if dep is not None and before is not None:
                    self._add(block, "nop", NONE, NONE, 0, dep)
                    dep = None
                last = self._add(block, does, src, dst, count, dep, before)
                dep = None
            if last is not None:
                self.end[lane_number, k] = last

    def _add(
        self,
        block: Block,
        step_type: str,
        src: int,
        dst: int,
        count: int,
        lane_step: tuple[int, int] | None = None,
        before: At | None = None,
    ) -> At:
        """Add a step to a thread block, and return its position (block, index)."""
        # step_type: "s", "r", ...; src, dst: first chunks; count: their number; lane_step: (lane, step) that it waits
        # for; before: position in another thread block that it waits for.
        steps = self.blocks.setdefault(block, [])
        attributes = {"s": str(len(steps)), "type": step_type}
        for side, chunk in (("src", src), ("dst", dst)):
            region, offset = divmod(max(chunk, 0), self.chunks)
            letter = "o" if region or self.kind == "all-gather" else "i"
            if region >= self.buffers:
                letter, offset = "s", (region - self.buffers) * self.chunks + offset
            attributes |= {f"{side}buf": letter, f"{side}off": str(offset)}
        element = ET.Element(
            "step", {**attributes, "cnt": str(max(count, 0)), "depid": "-1", "deps": "-1", "hasdep": "0"}
        )
        steps.append(element)
        if lane_step is not None or before is not None:
            self.depends.append((element, *(lane_step or (NONE, NONE)), before))
        return block, len(steps) - 1


def _whole(lane_number: int, lane: list[Step]) -> Block | None:
    """Return the thread block that is equivalent to a lane, or None if a lane needs several."""
    to = {(step.send_peer, step.send_lane) for step in lane if step.send_peer != NONE}
    of = {step.recv_peer for step in lane if step.recv_peer != NONE}
    if len(to) > 1 or len(of) > 1:
        return None
    send, receiver = next(iter(to), (NONE, lane_number if of else 0))
    recv = next(iter(of), NONE)
    return None if of and receiver != lane_number else (lane_number, send, recv, receiver)


def _halves(lane_number: int, step: Step) -> list[tuple[Block, str, int, int, int]]:
    """Return the send and the receive of a step, or its local operation: thread block, type, chunks and count."""
    halves = []
    if step.send_peer != NONE:
        to = (lane_number, step.send_peer, NONE, step.send_lane)
        halves.append((to, "s", step.send_chunk, step.send_chunk, step.send_count))
    if step.recv_peer != NONE:
        of = (lane_number, NONE, step.recv_peer, lane_number)
        halves.append((of, "rrc" if step.reduce else "r", step.recv_chunk, step.recv_chunk, step.recv_count))
    if not halves:
        does = "nop" if step.recv_chunk == NONE else "re" if step.reduce else "cpy"
        halves.append(((lane_number, NONE, NONE, 0), does, step.send_chunk, step.recv_chunk, step.recv_count))
    return halves
