"""Chakra traces as a collective: sends, receives and computation of each member, as in ASTRA-sim's custom collectives.

A message has a number of bytes, but no place in the buffer. Nadi therefore checks only what it can: every message has
both ends with equal bytes, no node waits for itself, all data that a member must have at the end could have reached it
(a send can carry its member's initial data and everything in the receives before it), and no member sends or
receives fewer bytes than the kind needs at least.

The receives from one peer with one tag form a lane, which takes messages in the order of the trace. Sends with equal
bytes and equal computation before them share a lane if they depend on each other. Computation delays a send that waits
for it, from when all other dependencies of the send are done.
"""

import functools
import math
import re
from pathlib import Path
from typing import NamedTuple

from nadi.et import NodeType, TraceTable, read_trace, topological_order
from nadi.inputs.units import PS_PER_US
from nadi.workload.collectives.custom.export import StepGraph, flow_of
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own
from nadi.workload.errors import WorkloadError

KINDS = ("all-reduce", "reduce", "all-gather", "gather", "scatter", "broadcast", "all-to-all", "reduce-scatter")
BYTES_OF_TRACES = "simple"  # protocol whose bytes messages have: those of the trace, without flags
_MAX_INT32 = 2**31 - 1
_KEPT = 16
_FROM_ROOT = frozenset({"broadcast", "scatter"})
_TO_ROOT = frozenset({"reduce", "gather"})


class ChakraMessage(NamedTuple):
    """A send or a receive of a member."""

    where: str  # file and node, for messages
    sends: bool  # whether the node sends; else it receives
    peer: int  # the other member
    tag: int  # tag of the message
    bytes: int  # bytes of the message; -1 for a receive without a size
    delay_ps: int  # computation between the dependencies and a send
    after: tuple[int, ...]  # numbers of the member's earlier messages that it waits for, none of which precedes another
    before: int  # all messages that precede it, one bit each


def chakra_files(prefix: Path) -> list[Path]:
    """Return the traces of all members. Raises WorkloadError: no trace, or a missing one.

    Args:
        prefix: The prefix P of the file names P.0.et .. P.(n-1).et.
    """
    pattern = re.compile(re.escape(prefix.name) + r"\.(\d+)\.et")
    files = {}
    for file in prefix.parent.glob("*.et") if prefix.name else ():
        match = pattern.fullmatch(file.name)
        if match:
            files[int(match[1])] = file
    if not files:
        raise WorkloadError(f"{prefix}: no such file and no {prefix.name}.0.et, expected MSCCL's XML or Chakra traces")
    missing = [member for member in range(len(files)) if member not in files]
    if missing:
        raise WorkloadError(f"{prefix}: no {prefix.name}.{missing[0]}.et, expected traces 0 .. {max(files)}")
    return [files[member] for member in range(len(files))]


@functools.lru_cache(_KEPT)
def _members(files: tuple[Path, ...], stamps: object) -> list[list[ChakraMessage]]:  # noqa: ARG001 - a key of the cache
    """Return the messages of each member, in an order that respects dependencies."""
    return [_messages(read_trace(file), member, len(files)) for member, file in enumerate(files)]


@functools.lru_cache(_KEPT)
def chakra_plans(prefix: Path, files: tuple[Path, ...], stamps: object, kind: str, size_bytes: int) -> Plans:
    """Return the plans of the traces of all members.

    Args:
        prefix: The prefix of the file names, for errors.
        files: The trace file of each member.
        stamps: A value that changes when the files do: a key of the cache.
        kind: The kind of collective, one of workload.KINDS.
        size_bytes: The size in bytes of the buffer to which the messages belong; their bytes scale with the size of the
            buffer.
    """
    if kind not in KINDS:
        raise WorkloadError(f"{prefix}: Chakra traces for {kind}, expected one of {', '.join(KINDS)}")
    members = _members(files, stamps)
    builders = [_Lanes(own, size_bytes) for own in members]
    for member, builder in enumerate(builders):
        for k, message in enumerate(members[member]):
            if message.sends:
                lane = builders[message.peer].receiving.get((member, message.tag))
                if lane is None:
                    raise WorkloadError(
                        f"{message.where}: sends to {message.peer} with tag {message.tag}, which receives none; "
                        "expected a receive"
                    )
                builder.to_lane[k] = lane
        builder.write()
    regions = 2 if kind == "all-to-all" else 1
    plans = each_its_own(1, [builder.lanes for builder in builders], regions=regions)._replace(protocol=BYTES_OF_TRACES)
    which = [builder.which for builder in builders]

    def name(member: int, lane: int, number: int) -> str:
        """Return the name of a step, by `member`, `lane` and `number` of the step in the lane."""
        return members[member][which[member][lane][number]].where

    flow = flow_of(plans, name, lambda member, lane, number: which[member][lane][number])
    _check_equal_ends(flow, members, which)
    _check_reach(flow, kind, prefix)
    _check_bytes(prefix, members, kind, size_bytes)
    return plans


def _messages(trace: TraceTable, member: int, members: int) -> list[ChakraMessage]:
    """Return the messages of a member, from its trace, in an order in which parents come first."""
    messages: list[ChakraMessage] = []
    number: dict[int, int] = {}
    waits: dict[int, tuple[int, int]] = {}  # of a row: messages before it as bits, and computation after the last
    for row in topological_order(trace).tolist():
        parents = trace.dep[trace.dep_ptr[row] : trace.dep_ptr[row + 1]].tolist()
        direct, before, delay_ps = 0, 0, 0
        for parent in parents:
            bits, delay = waits[parent]
            direct, delay_ps = direct | bits, max(delay_ps, delay)
        for k in _bits(direct):
            before |= messages[k].before
        kind, label = int(trace.type[row]), f"{trace.path}: node {trace.node_id[row]}"
        if kind == NodeType.COMP_NODE:
            waits[row] = direct, delay_ps + int(trace.duration_micros[row]) * PS_PER_US
        elif kind == NodeType.METADATA_NODE:
            waits[row] = direct, delay_ps
        elif kind in {NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE}:
            sends = kind == NodeType.COMM_SEND_NODE
            # Messages that another dependency already waits for need no step of their own
            after = tuple(_bits(direct & ~before))
            peer, tag = int((trace.comm_dst if sends else trace.comm_src)[row]), int(trace.comm_tag[row])
            size = int(trace.comm_size[row])
            message = ChakraMessage(label, sends, peer, tag, size, delay_ps * sends, after, direct | before)
            if not 0 <= message.peer < members or message.peer == member:
                end = "comm_dst" if sends else "comm_src"
                raise WorkloadError(f"{label}: {end} {message.peer}, expected another member from 0 to {members - 1}")
            if sends and message.bytes < 0:
                raise WorkloadError(f"{label}: no comm_size, expected the bytes of the message")
            number[row] = len(messages)
            messages.append(message)
            # What comes after waits for this message alone, which implies its dependencies; computation counts anew
            waits[row] = 1 << number[row], 0
        else:
            raise WorkloadError(
                f"{label}: {NodeType(kind).name}, expected COMM_SEND_NODE, COMM_RECV_NODE or COMP_NODE in a collective"
            )
    return messages


def _bits(bits: int) -> list[int]:
    """Return the numbers of the bits that are set in an int."""
    return [k for k in range(bits.bit_length()) if bits >> k & 1]


class _Lanes:
    """The lanes of a member's messages."""

    def __init__(self, messages: list[ChakraMessage], size_bytes: int) -> None:
        """Choose each message's lane; messages: of one member, by number; size_bytes: of the collective's buffer."""
        self.messages = messages
        self.to_lane: dict[int, int] = {}  # receiver's lane of each send
        self.lane_of: list[int] = []  # lane of each message
        self.receiving: dict[tuple[int, int], int] = {}  # lane of the receives from a peer with a tag
        attributes: list[Lane] = []
        last: list[tuple[tuple[int, int], int]] = []  # of each lane of sends: bytes and delay, and its last send
        for k, message in enumerate(messages):
            key = (message.bytes, message.delay_ps) if message.sends else (-1, -1)
            if message.sends:
                # A lane does its steps in order, so it may only hold sends that depend on each other anyway
                fits = (i for i, (own, end) in enumerate(last) if own == key and end >= 0 and message.before >> end & 1)
                lane = next(fits, len(attributes))
            else:
                lane = self.receiving.setdefault((message.peer, message.tag), len(attributes))
            if lane == len(attributes):
                attributes.append(_lane(message, size_bytes))
                last.append((key, -1))
            last[lane] = (key, k if message.sends else -1)
            self.lane_of.append(lane)
        self.lanes = attributes  # lanes that `write` fills
        # number of the message that a step is, or waits for, by lane and step
        self.which: list[list[int]] = [[] for _ in attributes]

    def write(self) -> None:
        """Add the steps to the lanes; before a message that waits for several others there are waiting steps."""
        end: list[tuple[int, int]] = []
        for k, message in enumerate(self.messages):
            number = self.lane_of[k]
            lane = self.lanes[number]
            after = [end[other] for other in message.after if self.lane_of[other] != number]
            for dependency in after[:-1]:
                lane.step(after=dependency)
                self.which[number].append(k)
            last = after[-1] if after else (-1, -1)
            if message.sends:
                lane.step(send_to=message.peer, to_lane=self.to_lane[k], after=last)
            else:
                lane.step(receive_from=message.peer, after=last)
            self.which[number].append(k)
            end.append((number, len(lane.steps) - 1))


def _lane(message: ChakraMessage, size_bytes: int) -> Lane:
    """Return the lane for messages like this one, whose bytes are a fraction of a buffer of size_bytes."""
    if not message.sends or size_bytes < 1:
        return Lane()
    if message.bytes == 0:
        raise WorkloadError(f"{message.where}: a message of 0 B, expected some")
    common = math.gcd(message.bytes, size_bytes)
    # A lane carries this fraction of the buffer, so that messages scale with the buffer's size
    wire = message.bytes // common, size_bytes // common
    if max(wire) > _MAX_INT32:
        raise WorkloadError(f"{message.where}: {message.bytes} of {size_bytes} B, expected a simpler ratio")
    return Lane(wire=wire, latency_ps=message.delay_ps)


def _check_equal_ends(
    flow: StepGraph, members: list[list[ChakraMessage]], message_of_step: list[list[list[int]]]
) -> None:
    """Check that messages have as many bytes at both ends.

    Args:
        flow: The graph of the steps of all members.
        members: The messages of each member.
        message_of_step: The number of the message that each step is, or waits for, by member, lane and step.
    """
    messages = [members[p.member][message_of_step[p.member][p.lane][p.number]] for p in flow.places]
    for k, step in enumerate(flow.steps):
        if step.recv_peer < 0 or messages[k].bytes < 0:
            continue
        sent = next(messages[n // 2] for n in flow.before[2 * k + 1] if flow.places[n // 2].member == step.recv_peer)
        if sent.bytes != messages[k].bytes:
            raise WorkloadError(f"{messages[k].where}: {messages[k].bytes} B, expected {sent.bytes} B as {sent.where}")


def _check_reach(flow: StepGraph, kind: str, prefix: Path) -> None:
    """Check that all data that a member must have at the end could have reached it."""
    n = 1 + max(place.member for place in flow.places)
    had = [0] * len(flow.before)
    end = [1 << member for member in range(n)]
    for node in flow.order:
        member = flow.places[node // 2].member
        # Bit m: data of member m can be in what the node sends or keeps
        had[node] = 1 << member
        for other in flow.before[node]:
            had[node] |= had[other]
        end[member] |= had[node]
    needed = 1 if kind in _FROM_ROOT else (1 << n) - 1
    for member in range(1 if kind in _TO_ROOT else n):
        missing = _bits(needed & ~end[member])
        if missing:
            raise WorkloadError(
                f"{prefix}.{member}.et: no message brings what member {missing[0]} had; expected one for {kind}"
            )


def _check_bytes(prefix: Path, members: list[list[ChakraMessage]], kind: str, size_bytes: int) -> None:
    """Check that each member sends and receives the minimum bytes of a kind.

    Args:
        prefix: The beginning of the files' names, for errors.
        members: The messages of each member.
        kind: The kind of collective.
        size_bytes: The size of the whole buffer in bytes.
    """
    n = len(members)
    sent = [sum(m.bytes for m in own if m.sends) for own in members]
    received = [0] * n
    for own in members:
        for message in own:
            if message.sends:
                received[message.peer] += message.bytes
    for member in range(n):
        minimum = _min_bytes(kind, n, size_bytes, is_root=member == 0)
        for does, moved, expected in zip(("sends", "receives"), (sent[member], received[member]), minimum, strict=True):
            if moved < expected:
                raise WorkloadError(
                    f"{prefix}.{member}.et: {does} {moved} B, expected at least {expected} B for {kind} of "
                    f"{size_bytes} B"
                )


def _min_bytes(kind: str, members: int, size_bytes: int, *, is_root: bool) -> tuple[int, int]:
    """Return the minimum bytes that a member (is_root: number 0) sends and receives under any algorithm of a kind."""
    part = size_bytes // members
    others = (members - 1) * part
    return {
        "all-reduce": (size_bytes, size_bytes),
        "all-gather": (part, others),
        "reduce-scatter": (others, part),
        "all-to-all": (others, others),
        "broadcast": (size_bytes, 0) if is_root else (0, size_bytes),
        "reduce": (0, size_bytes) if is_root else (size_bytes, 0),
        "scatter": (others, 0) if is_root else (0, part),
        "gather": (0, others) if is_root else (part, 0),
    }[kind]
