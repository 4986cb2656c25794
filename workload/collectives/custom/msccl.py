"""MSCCL's XML: the steps of each thread block of each GPU, chunk by chunk.

msccl-tools writes it (Cowan et al., "MSCCLang: Microsoft collective communication language", 2023); Nadi reads it like
MSCCL's interpreter. A thread block is a lane. It sends to one GPU and receives from one; a message goes to the
receiver's thread block that names the sender and the same channel. `nchunksperloop` chunks are the whole buffer.

| type | meaning |
| --- | --- |
| s | send src |
| r | receive into dst |
| rcs | receive into dst, send it on |
| rrc | dst = src + received data |
| rrs | send src + received data, without keeping the sum |
| rrcs | dst = src + received data, send it on |
| cpy, re | dst = src, dst += src |
| nop | wait for a dependency only |

Buffers of a GPU: input and output are region 0; with inplace="0" the output is region 1 until the end. The input of
all-gather and the output of reduce-scatter are the GPU's own part. Scratch space is in further regions.
"""

import xml.etree.ElementTree as ET
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.inputs.units import short
from nadi.workload.collectives.plans.plan import AT_ONCE, Lane, Plans, each_its_own
from nadi.workload.errors import WorkloadError

KIND_OF = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
# (numerator, denominator) of bytes on the wire per byte of data
WIRE_OF = {"Simple": (1, 1), "LL": (2, 1), "LL128": (16, 15)}
SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVES = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
LOCAL = frozenset({"cpy", "re", "nop"})
_READS = frozenset({"s", "rrc", "rrs", "rrcs", "cpy", "re"})
_WRITES = frozenset({"r", "rcs", "rrc", "rrcs", "cpy", "re"})
# Bound on chunks, steps and ids: each needs at least one byte in a file of at most 16 MiB, and no buffer needs more
# chunks
_LARGEST_NUMBER = 1 << 24
# Queue pairs between two NPUs are numbered in 6 bits (docs/reference/interfaces.md, lane_connection)
_LAST_CONNECTION = 63
_IN_PARTS = frozenset({"all-gather", "reduce-scatter", "all-to-all"})


class MscclStep(NamedTuple):
    """A step of the file."""

    label: str  # name for messages
    type: str  # type as in the table above
    src: tuple[str, int]  # buffer and first chunk to read
    dst: tuple[str, int]  # buffer and first chunk to write
    length: int  # number of chunks
    depends: tuple[int, int] | None  # (thread block, step) that must be done before

    @property
    def steps(self) -> int:
        """Number of steps of a lane for this step."""
        kept_elsewhere = self.type in {"rrc", "rrcs"} and self.src != self.dst
        return {"rcs": 2, "rrs": 3, "rrcs": 2}.get(self.type, 1) + kept_elsewhere


class ThreadBlock(NamedTuple):
    """A thread block."""

    label: str  # name for messages
    send: int  # GPU to which it sends, -1 = none
    recv: int  # GPU from which it receives, -1 = none
    channel: int  # number of the channel, which is also that of the connection
    steps: list[MscclStep]  # steps in order


class MscclGpu(NamedTuple):
    """A GPU."""

    label: str  # name for messages
    chunks: dict[str, int]  # length of each buffer in chunks, by letter
    blocks: dict[int, ThreadBlock]  # thread blocks with steps, by number


class MscclAlgorithm(NamedTuple):
    """The contents of a file."""

    path: str  # name for messages
    kind: str  # kind of collective, see workload.kinds
    in_place: bool  # whether input and output are the same buffer
    chunks: int  # number of chunks of the buffer
    protocol: str  # one of WIRE_OF
    gpus: list[MscclGpu]  # GPUs by number


def _parse(path: Path, kind: str) -> MscclAlgorithm:
    """Return the contents of MSCCL's XML for a kind of collective, after checking them one by one."""
    try:
        root = ET.fromstring(inputs.read_bytes(path))  # noqa: S314 - the user's own file; expat bounds entities
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}, expected an algorithm of MSCCL") from None
    except (ET.ParseError, ValueError, LookupError) as error:  # the last two for an encoding that is unknown or no text
        other = inputs.kind_of(path)
        if other is not None and other.key not in {"msccl", "xml"}:
            raise WorkloadError(inputs.complaint(path, other, "an algorithm (MSCCL's XML)")) from None
        raise WorkloadError(f"{path}: no XML: {error}, expected an algorithm of MSCCL") from None
    if root.tag != "algo":
        raise WorkloadError(f"{path}: <{root.tag}>, expected <algo>")
    coll, label = root.get("coll", ""), str(path)
    if KIND_OF.get(coll) != kind:
        names = [name for name, known in KIND_OF.items() if known == kind]
        raise WorkloadError(f"{path}: coll {coll!r}, expected {' or '.join(map(repr, names)) or f'none for {kind}'}")
    n, chunks = _int(root, "ngpus", label, least=2), _int(root, "nchunksperloop", label, least=1)
    proto = root.get("proto", "Simple")
    if proto not in WIRE_OF:
        raise WorkloadError(f"{path}: proto {proto!r}, expected one of {', '.join(WIRE_OF)}")
    if kind in _IN_PARTS and chunks % n:
        raise WorkloadError(f"{path}: nchunksperloop {chunks}, expected a multiple of {n} GPUs for {kind}")
    elements = _children(root, "gpu", label)
    if len(elements) != n:
        raise WorkloadError(f"{path}: {len(elements)} elements <gpu>, expected ngpus {n}")
    gpus = {_int(element, "id", f"{path}: gpu"): element for element in elements}
    if sorted(gpus) != list(range(n)):
        raise WorkloadError(f"{path}: gpus {sorted(gpus)}, expected each of 0 .. {n - 1} once")
    in_place = _int(root, "inplace", label, default=0) != 0
    return MscclAlgorithm(label, kind, in_place, chunks, proto, [_gpu(gpus[k], k, n, label) for k in range(n)])


def _gpu(element: ET.Element, gpu_number: int, gpus: int, file_name: str) -> MscclGpu:
    """Return a GPU of an algorithm for `gpus` GPUs, with the thread blocks that have steps, from its XML element."""
    label = f"{file_name}: gpu {gpu_number}"
    chunks = {letter: _int(element, f"{letter}_chunks", label, default=0, least=0) for letter in "ios"}
    blocks: dict[int, ThreadBlock] = {}
    for child in _children(element, "tb", label):
        block = _int(child, "id", f"{label} tb")
        if block in blocks:
            raise WorkloadError(f"{label} tb {block}: stands twice, expected each id once")
        blocks[block] = _block(child, f"{label} tb {block}", gpu_number, gpus)
    return MscclGpu(label, chunks, {gpu_number: block for gpu_number, block in blocks.items() if block.steps})


def _block(element: ET.Element, label: str, gpu_number: int, gpus: int) -> ThreadBlock:
    """Return a thread block of a GPU of `gpus`, from its XML element; label: name of the element in errors."""
    send, recv = (_int(element, key, label, default=-1) for key in ("send", "recv"))
    for key, peer in (("send", send), ("recv", recv)):
        if not -1 <= peer < gpus or peer == gpu_number:
            raise WorkloadError(f"{label}: {key} {peer}, expected another GPU from 0 to {gpus - 1}, or -1")
    steps = [_step(child, i, label) for i, child in enumerate(_children(element, "step", label))]
    for step in steps:
        for key, peer, types in (("send", send, SENDS), ("recv", recv, RECEIVES)):
            if step.type in types and peer < 0:
                raise WorkloadError(f"{step.label}: type {step.type} in a tb with {key} -1, expected a GPU")
    return ThreadBlock(
        label, send, recv, _int(element, "chan", label, default=0, least=0, most=_LAST_CONNECTION), steps
    )


def _step(element: ET.Element, number: int, block_label: str) -> MscclStep:
    """Return step `number` of a thread block from its XML element; block_label: the block's name in errors."""
    label = f"{block_label} step {number}"
    if _int(element, "s", label) != number:
        raise WorkloadError(f"{label}: s {element.get('s')}, expected {number}")
    kind = element.get("type", "")
    if kind not in SENDS | RECEIVES | LOCAL:
        raise WorkloadError(f"{label}: type {kind!r}, expected one of s, r, rcs, rrc, rrs, rrcs, cpy, re, nop")
    places = {"src": ("", 0), "dst": ("", 0)}
    for side, types in (("src", _READS), ("dst", _WRITES)):
        if kind in types:
            letter = element.get(f"{side}buf", "")
            if letter not in {"i", "o", "s"}:
                raise WorkloadError(f"{label}: {side}buf {letter!r}, expected i, o or s")
            places[side] = letter, _int(element, f"{side}off", label, least=0)
    count = _int(element, "cnt", label, default=1, least=0 if kind == "nop" else 1)
    block_of, step_of = (_int(element, key, label, default=-1) for key in ("depid", "deps"))
    return MscclStep(label, kind, places["src"], places["dst"], count, None if block_of < 0 else (block_of, step_of))


def _children(element: ET.Element, tag: str, label: str) -> list[ET.Element]:
    """Return the elements within an XML element, which all must have one tag. Raises WorkloadError: another tag.

    Args:
        element: The outer element.
        tag: The tag that all of them must have.
        label: The name of the outer element in errors.
    """
    other = next((child.tag for child in element if child.tag != tag), None)
    if other is not None:
        raise WorkloadError(f"{label}: <{other[:40]}>, expected <{tag}>")
    return list(element)


def _int(
    element: ET.Element, key: str, label: str, default: int | None = None, least: int = -1, most: int = _LARGEST_NUMBER
) -> int:
    """Return a whole number from an attribute of an XML element. Raises WorkloadError: it is none, or out of range.

    Args:
        element: The XML element.
        key: The name of the attribute.
        label: The name of the element in errors.
        default: The value if the attribute is missing; None = it is required.
        least: The smallest number that is allowed.
        most: The largest number that is allowed.
    """
    text = element.get(key)
    if text is None and default is not None:
        return default
    try:
        number = int(text or "")
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise WorkloadError(f"{label}: {key} {short(text)}, expected a whole number from {least} to {most}")
    return number


class ChunkMemory:
    """Chunk numbers of a GPU's buffers."""

    def __init__(self, algorithm: MscclAlgorithm, gpu_number: int) -> None:
        """Lay out the buffers of a GPU of the algorithm."""
        self.chunks, self.gpu, kind = algorithm.chunks, algorithm.gpus[gpu_number], algorithm.kind
        part = algorithm.chunks // len(algorithm.gpus)
        all_chunks, own = (0, self.chunks), (gpu_number * part, part)
        first, length = own if kind == "reduce-scatter" else all_chunks
        self.output = (first + (0 if algorithm.in_place else self.chunks), length)
        self.spans = {"i": own if kind == "all-gather" else all_chunks, "o": self.output}
        for letter, (_, longest) in self.spans.items():
            if self.gpu.chunks[letter] > longest:
                raise WorkloadError(
                    f"{self.gpu.label}: {letter}_chunks {self.gpu.chunks[letter]}, expected at most {longest} of "
                    f"{kind} in {self.chunks} chunks"
                )
        self.first_scratch = 1 if algorithm.in_place and kind != "all-to-all" else 2
        self._lay_out_scratch()

    def _lay_out_scratch(self) -> None:
        """Lay out the used stretches of scratch space so that none crosses the end of a region."""
        steps = [step for block in self.gpu.blocks.values() for step in block.steps if step.type != "nop"]
        used = sorted(
            (begin, begin + step.length) for step in steps for letter, begin in (step.src, step.dst) if letter == "s"
        )
        stretches: list[list[int]] = []
        for begin, end in used:
            if stretches and begin < stretches[-1][1]:
                stretches[-1][1] = max(stretches[-1][1], end)
            else:
                stretches.append([begin, end])
        self.begins = [begin for begin, _ in stretches]
        self.homes: list[int] = []
        free = 0
        for begin, end in stretches:
            if end - begin > self.chunks:
                raise WorkloadError(
                    f"{self.gpu.label}: scratch chunks {begin} .. {end - 1} in one stretch, expected at most "
                    f"{self.chunks} (nchunksperloop)"
                )
            # A message must lie within one region: a stretch that would cross its end begins in the next one
            if free % self.chunks + end - begin > self.chunks:
                free += -free % self.chunks
            self.homes.append(free)
            free += end - begin
        self.regions = self.first_scratch + -(-free // self.chunks)

    def chunk(self, place: tuple[str, int], step: MscclStep) -> int:
        """Return the number of the first chunk that a step uses.

        Args:
            place: The letter of a buffer ("i", "o" or "s"), and the first chunk in it.
            step: The step of the file.
        """
        letter, offset = place
        longest = self.gpu.chunks["s"] if letter == "s" else self.spans[letter][1]
        if offset + step.length > longest:
            raise WorkloadError(
                f"{step.label}: chunks {offset} .. {offset + step.length - 1} of {letter}, expected 0 .. {longest - 1}"
            )
        if letter != "s":
            return self.spans[letter][0] + offset
        # The stretch that holds the offset is the last one that begins at or before it
        stretch = bisect_right(self.begins, offset) - 1
        return self.first_scratch * self.chunks + self.homes[stretch] + offset - self.begins[stretch]


def read_msccl(path: Path, kind: str) -> tuple[Plans, list[list[list[str]]]]:
    """Return a file's plans, and each step's name by member, lane and number. WorkloadError if invalid.

    Args:
        path: The path of MSCCL's XML.
        kind: The kind of collective, one of workload.KINDS.
    """
    algorithm = _parse(path, kind)
    memories = [ChunkMemory(algorithm, number) for number in range(len(algorithm.gpus))]
    shared = max(memory.regions for memory in memories)
    lane_to = {
        (number, block.recv, block.channel): lane
        for number, gpu in enumerate(algorithm.gpus)
        for lane, block in enumerate(gpu.blocks.values())
        if block.recv >= 0
    }
    lanes, names, regions = [], [], shared
    for number, memory in enumerate(memories):
        own, own_names = _lanes(algorithm, number, memory, shared, lane_to)
        lanes.append(own)
        names.append(own_names)
        regions = max(regions, shared + len(own))
    return each_its_own(algorithm.chunks, lanes, regions=regions)._replace(protocol=algorithm.protocol.lower()), names


def _lanes(
    algorithm: MscclAlgorithm,
    gpu_number: int,
    memory: ChunkMemory,
    first_kept: int,
    lane_to: dict[tuple[int, int, int], int],
) -> tuple[list[Lane], list[list[str]]]:
    """Return the lanes of a GPU, and the names of their steps; rrs keeps its sum in regions from first_kept on."""
    # There is one such region per lane, used at src's offset. lane_to: (GPU, sender, channel) -> receiving lane there.
    gpu = algorithm.gpus[gpu_number]
    blocks = gpu.blocks
    _check_connections(blocks)
    # (lane, last step) of each step of the file
    ends = {
        block_number: [(lane, end - 1) for end in accumulate(step.steps for step in block.steps)]
        for lane, (block_number, block) in enumerate(blocks.items())
    }
    lanes: list[Lane] = []
    names = []
    for block in blocks.values():
        to_lane = lane_to.get((block.send, gpu_number, block.channel), -1)
        if to_lane < 0 and any(step.type in SENDS for step in block.steps):
            raise WorkloadError(
                f"{block.label}: sends to {block.send} on chan {block.channel}, where no tb has recv {gpu_number}; "
                "expected one"
            )
        lane = Lane(wire=WIRE_OF[algorithm.protocol], connection=block.channel)
        for step in block.steps:
            after = AT_ONCE
            if step.depends is not None:
                other, other_step = step.depends
                if not 0 <= other_step < len(ends.get(other, ())):
                    raise WorkloadError(
                        f"{step.label}: depends on tb {other} step {other_step}, expected one that is there"
                    )
                after = ends[other][other_step]
            _add(lane, step, block, to_lane, memory, (first_kept + len(lanes)) * algorithm.chunks, after)
        lanes.append(lane)
        names.append([step.label for step in block.steps for _ in range(step.steps)])
    output = final_output(algorithm, gpu_number, memory)
    if output is not None:
        last = Lane()
        for number_of_lane, before in enumerate(lanes):
            last.step(after=(number_of_lane, len(before.steps) - 1))
        last.copy(memory.output[0], to=output, count=memory.output[1])
        lanes.append(last)
        names.append([f"{gpu.label} output"] * len(last.steps))
    return lanes, names


def _check_connections(blocks: dict[int, ThreadBlock]) -> None:
    """Check that only one thread block sends to a GPU on a channel, and one receives."""
    for key in ("send", "recv"):
        ends = [(getattr(block, key), block.channel) for block in blocks.values()]
        for block, (peer, channel) in zip(blocks.values(), ends, strict=True):
            if peer >= 0 and ends.count((peer, channel)) > 1:
                label = f"{block.label}: {key} {peer} on chan {channel}"
                raise WorkloadError(f"{label} as another tb, expected one of them")


def final_output(algorithm: MscclAlgorithm, gpu_number: int, memory: ChunkMemory) -> int | None:
    """Return the first chunk of the required place of a GPU's output at the end, None = where it is."""
    if algorithm.kind == "all-to-all":
        return algorithm.chunks if algorithm.in_place else None
    if algorithm.in_place or (algorithm.kind == "reduce" and gpu_number > 0):
        return None
    return memory.output[0] - algorithm.chunks


def _add(
    lane: Lane,
    step: MscclStep,
    block: ThreadBlock,
    to_lane: int,
    memory: ChunkMemory,
    kept: int,
    after: tuple[int, int],
) -> None:
    """Add to a lane the steps for a step of the file, the first of which waits for `after`, a (lane, step)."""
    # block: thread block of the step; to_lane: lane of the receiver; memory: buffers of the GPU; kept: first
    # chunk for sums of rrs.
    src = memory.chunk(step.src, step) if step.type in _READS else -1
    dst = memory.chunk(step.dst, step) if step.type in _WRITES else -1
    if step.type == "rrs":
        dst = kept + src % memory.chunks
    if step.type == "nop":
        lane.step(after=after)
    elif step.type in {"cpy", "re"}:
        lane.copy(src, to=dst, count=step.length, reduce=step.type == "re", after=after)
    elif step.type == "s":
        lane.step(send_to=block.send, to_lane=to_lane, send=src, send_count=step.length, after=after)
    else:
        adds = step.type.startswith("rr")
        if adds and src != dst:
            lane.copy(src, to=dst, count=step.length, after=after)
            after = AT_ONCE
        lane.step(receive_from=block.recv, receive=dst, receive_count=step.length, reduce=adds, after=after)
        if step.type in SENDS:
            lane.step(send_to=block.send, to_lane=to_lane, send=dst, send_count=step.length)
