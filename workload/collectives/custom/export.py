"""Export of plans as MSCCL's XML, which workload.collectives.custom.msccl can read.

A lane becomes one thread block if it sends only to the lane of its own number at one member and receives from one
member. Otherwise it becomes one thread block per peer, and each of these waits for the one before.
"""

import xml.etree.ElementTree as ET

from nadi.workload.collectives.custom.msccl import KIND_OF
from nadi.workload.collectives.plans.plan import NONE, PLAIN, Plans, Step
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.collectives.schedules.read_back import buffers, unpack
from nadi.workload.errors import WorkloadError

_NAME_OF = {kind: name for name, kind in reversed(KIND_OF.items())}

Block = tuple[int, int, int, int]  # lane, send, recv and channel of a thread block

At = tuple[Block, int]  # a step of a thread block


def to_msccl(plans: Plans, kind: str, name: str) -> str:
    """Return the XML, called `name`, of plans in equal chunks for a kind of collective; a lane is a thread block."""
    # Raises WorkloadError: MSCCL's format cannot express the plans.
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
