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
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import inputs
from topologies.units import short
from workload.collectives.plans.plan import Lane, Plans, each_its_own
from workload.errors import WorkloadError

KIND_OF = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
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
    """A step of the file; src and dst: (buffer, first of `length` chunks); depends: (thread block, step) or None."""

    where: str
    type: str
    src: tuple[str, int]
    dst: tuple[str, int]
    length: int
    depends: tuple[int, int] | None


class ThreadBlock(NamedTuple):
    """A thread block; send and recv are GPUs, -1 = none."""

    where: str
    send: int
    recv: int
    channel: int
    ops: list[MscclStep]


class MscclGpu(NamedTuple):
    """A GPU: lengths of its buffers in chunks, by letter, and its thread blocks with steps, by number."""

    where: str
    chunks: dict[str, int]
    blocks: dict[int, ThreadBlock]


class MscclAlgorithm(NamedTuple):
    """The contents of a file."""

    path: str
    kind: str
    in_place: bool
    chunks: int
    wire: tuple[int, int]
    gpus: list[MscclGpu]


def _parse(path: Path, kind: str) -> MscclAlgorithm:
    try:
        root = ET.fromstring(inputs.read_bytes(path))  # noqa: S314 - the user's own file; expat bounds entities
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}, expected an algorithm of MSCCL") from None
    except (ET.ParseError, ValueError, LookupError) as error:  # the last two for an encoding that is unknown or no text
        other = inputs.kind_of(path)
        if other is not None and other.key not in {"msccl", "xml"}:
            raise WorkloadError(inputs.complaint(path, other, "an algorithm (MSCCL's XML)")) from None
        raise WorkloadError(f"{path}: no XML: {error}, expected an algorithm of MSCCL") from None
    label = str(path)
    if root.tag != "algo":
        raise WorkloadError(f"{label}: <{root.tag}>, expected <algo>")
    coll = root.get("coll", "")
    if KIND_OF.get(coll) != kind:
        names = [name for name, known in KIND_OF.items() if known == kind]
        raise WorkloadError(f"{label}: coll {coll!r}, expected {' or '.join(map(repr, names)) or f'none for {kind}'}")
    n, chunks = _int(root, "ngpus", label, low=2), _int(root, "nchunksperloop", label, low=1)
    proto = root.get("proto", "Simple")
    if proto not in WIRE_OF:
        raise WorkloadError(f"{label}: proto {proto!r}, expected one of {', '.join(WIRE_OF)}")
    if kind in _IN_PARTS and chunks % n:
        raise WorkloadError(f"{label}: nchunksperloop {chunks}, expected a multiple of {n} GPUs for {kind}")
    elements = root.findall("gpu")
    if len(elements) != n:
        raise WorkloadError(f"{label}: {len(elements)} elements <gpu>, expected ngpus {n}")
    gpus = {_int(element, "id", f"{label}: gpu"): element for element in elements}
    if sorted(gpus) != list(range(n)):
        raise WorkloadError(f"{label}: gpus {sorted(gpus)}, expected each of 0 .. {n - 1} once")
    in_place = _int(root, "inplace", label, default=0) != 0
    return MscclAlgorithm(label, kind, in_place, chunks, WIRE_OF[proto], [_gpu(gpus[k], k, n, label) for k in range(n)])


def _gpu(element: ET.Element, number: int, n: int, path: str) -> MscclGpu:
    label = f"{path}: gpu {number}"
    chunks = {letter: _int(element, f"{letter}_chunks", label, default=0, low=0) for letter in "ios"}
    blocks: dict[int, ThreadBlock] = {}
    for child in element.findall("tb"):
        block = _int(child, "id", f"{label} tb")
        if block in blocks:
            raise WorkloadError(f"{label} tb {block}: stands twice, expected each id once")
        blocks[block] = _block(child, f"{label} tb {block}", number, n)
    return MscclGpu(label, chunks, {block: thread_block for block, thread_block in blocks.items() if thread_block.ops})


def _block(element: ET.Element, label: str, own: int, n: int) -> ThreadBlock:
    send, recv = (_int(element, key, label, default=-1) for key in ("send", "recv"))
    for key, peer in (("send", send), ("recv", recv)):
        if not -1 <= peer < n or peer == own:
            raise WorkloadError(f"{label}: {key} {peer}, expected another GPU from 0 to {n - 1}, or -1")
    ops = [_op(child, i, label) for i, child in enumerate(element.findall("step"))]
    for op in ops:
        for key, peer, types in (("send", send, SENDS), ("recv", recv, RECEIVES)):
            if op.type in types and peer < 0:
                raise WorkloadError(f"{op.where}: type {op.type} in a tb with {key} -1, expected a GPU")
    return ThreadBlock(label, send, recv, _int(element, "chan", label, default=0, low=0, high=_LAST_CONNECTION), ops)


def _op(element: ET.Element, number: int, block: str) -> MscclStep:
    label = f"{block} step {number}"
    if _int(element, "s", label) != number:
        raise WorkloadError(f"{label}: s {element.get('s')}, expected {number}")
    kind = element.get("type", "")
    if kind not in SENDS | RECEIVES | LOCAL:
        raise WorkloadError(f"{label}: type {kind!r}, expected one of s, r, rcs, rrc, rrs, rrcs, cpy, re, nop")
    src, dst = (_chunk(element, side, label, needed=kind in of) for side, of in (("src", _READS), ("dst", _WRITES)))
    count = _int(element, "cnt", label, default=1, low=0 if kind == "nop" else 1)
    block_of, step_of = (_int(element, key, label, default=-1) for key in ("depid", "deps"))
    return MscclStep(label, kind, src, dst, count, None if block_of < 0 else (block_of, step_of))


def _chunk(element: ET.Element, side: str, label: str, *, needed: bool) -> tuple[str, int]:
    if not needed:
        return "", 0
    letter = element.get(f"{side}buf", "")
    if letter not in {"i", "o", "s"}:
        raise WorkloadError(f"{label}: {side}buf {letter!r}, expected i, o or s")
    return letter, _int(element, f"{side}off", label, low=0)


def _int(
    element: ET.Element, key: str, label: str, default: int | None = None, low: int = -1, high: int = _LARGEST_NUMBER
) -> int:
    text = element.get(key)
    if text is None and default is not None:
        return default
    try:
        number = int(text or "")
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise WorkloadError(f"{label}: {key} {short(text)}, expected a whole number from {low} to {high}")
    return number


class _Memory:
    """Chunk numbers of a GPU's buffers."""

    def __init__(self, algorithm: MscclAlgorithm, number: int) -> None:
        self.chunks, kind, n = algorithm.chunks, algorithm.kind, len(algorithm.gpus)
        self.gpu, part = algorithm.gpus[number], algorithm.chunks // n
        all_chunks, own = (0, self.chunks), (number * part, part)
        first, length = own if kind == "all-gather" else all_chunks
        out_first, out_length = own if kind == "reduce-scatter" else all_chunks
        out_first += 0 if algorithm.in_place else self.chunks
        self.spans = {"i": (first, length), "o": (out_first, out_length)}
        for letter, (_, longest) in self.spans.items():
            if self.gpu.chunks[letter] > longest:
                given = self.gpu.chunks[letter]
                raise WorkloadError(
                    f"{self.gpu.where}: {letter}_chunks {given}, expected at most {longest} of {kind} in "
                    f"{self.chunks} chunks"
                )
        self.output = (out_first, out_length)
        self.first_scratch = 1 if algorithm.in_place and kind != "all-to-all" else 2
        self._scratch()

    def _scratch(self) -> None:
        """Lay out the used stretches of scratch space so that none crosses the end of a region."""
        ops = [op for block in self.gpu.blocks.values() for op in block.ops]
        used = sorted(
            (at, at + op.length) for op in ops for letter, at in (op.src, op.dst) if letter == "s" and op.type != "nop"
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
                    f"{self.gpu.where}: scratch chunks {begin} .. {end - 1} in one stretch, expected at most "
                    f"{self.chunks} (nchunksperloop)"
                )
            if free % self.chunks + end - begin > self.chunks:
                free += -free % self.chunks
            self.homes.append(free)
            free += end - begin
        self.regions = self.first_scratch + -(-free // self.chunks)

    def chunk(self, at: tuple[str, int], op: MscclStep) -> int:
        letter, offset = at
        longest = self.gpu.chunks["s"] if letter == "s" else self.spans[letter][1]
        if offset + op.length > longest:
            raise WorkloadError(
                f"{op.where}: chunks {offset} .. {offset + op.length - 1} of {letter}, expected 0 .. {longest - 1}"
            )
        if letter != "s":
            return self.spans[letter][0] + offset
        stretch = bisect_right(self.begins, offset) - 1
        return self.first_scratch * self.chunks + self.homes[stretch] + offset - self.begins[stretch]


def read_msccl(path: Path, kind: str) -> tuple[Plans, list[list[list[str]]]]:
    """Return the plans of a file, and the name of each step by member, lane and number.

    Raises WorkloadError: the file is unreadable or invalid, is of another kind, or refers to missing elements.
    """
    algorithm = _parse(path, kind)
    memories = [_Memory(algorithm, number) for number in range(len(algorithm.gpus))]
    shared = max(memory.regions for memory in memories)
    lane_to = {
        (number, block.recv, block.channel): lane
        for number, gpu in enumerate(algorithm.gpus)
        for lane, block in enumerate(gpu.blocks.values())
        if block.recv >= 0
    }
    lanes, names, regions = [], [], shared
    for number, memory in enumerate(memories):
        own, called = _lanes(algorithm, number, memory, shared, lane_to)
        lanes.append(own)
        names.append(called)
        regions = max(regions, shared + len(own))
    return each_its_own(algorithm.chunks, lanes, regions=regions), names


def _lanes(
    algorithm: MscclAlgorithm, number: int, memory: _Memory, first_kept: int, lane_to: dict[tuple[int, int, int], int]
) -> tuple[list[Lane], list[list[str]]]:
    """Return the lanes of a GPU; rrs keeps its sum in regions from first_kept on, one per lane, at src's offset."""
    blocks = algorithm.gpus[number].blocks
    lane_of = {block: lane for lane, block in enumerate(blocks)}
    ends = {block: _ends(thread_block.ops) for block, thread_block in blocks.items()}
    _check_connections(blocks)
    lanes = []
    for lane, thread_block in enumerate(blocks.values()):
        to_lane = lane_to.get((thread_block.send, number, thread_block.channel), -1)
        if to_lane < 0 and any(op.type in SENDS for op in thread_block.ops):
            raise WorkloadError(
                f"{thread_block.where}: sends to {thread_block.send} on chan {thread_block.channel}, "
                f"where no tb has recv {number}; expected one"
            )
        sends = Lane(wire=algorithm.wire, connection=thread_block.channel)
        writer = _Writer(sends, thread_block, to_lane, memory, (first_kept + lane) * algorithm.chunks)
        for op in thread_block.ops:
            block, step = op.depends or (-1, -1)
            if op.depends is not None and not 0 <= step < len(ends.get(block, ())):
                raise WorkloadError(f"{op.where}: depends on tb {block} step {step}, expected one that is there")
            writer.write(op, (-1, -1) if op.depends is None else (lane_of[block], ends[block][step]))
        lanes.append(writer.lane)
    names = [[op.where for op in thread_block.ops for _ in range(_steps(op))] for thread_block in blocks.values()]
    copies = _to_result(algorithm, number, memory)
    if copies is not None:
        last = Lane()
        for lane, before in enumerate(lanes):
            last.step(after=(lane, len(before.steps) - 1))
        last.copy(copies[0], to=copies[1], count=memory.output[1])
        lanes.append(last)
        names.append([f"{algorithm.gpus[number].where} output"] * len(last.steps))
    return lanes, names


def _check_connections(blocks: dict[int, ThreadBlock]) -> None:
    """Check that only one thread block sends to a GPU on a channel, and one receives."""
    for key in ("send", "recv"):
        peers = [(getattr(thread_block, key), thread_block.channel) for thread_block in blocks.values()]
        for thread_block, (peer, channel) in zip(blocks.values(), peers, strict=True):
            if peer >= 0 and peers.count((peer, channel)) > 1:
                raise WorkloadError(
                    f"{thread_block.where}: {key} {peer} on chan {channel} as another tb, expected one of them"
                )


def _to_result(algorithm: MscclAlgorithm, number: int, memory: _Memory) -> tuple[int, int] | None:
    """Return the output's first chunk and its required place at the end, if the two differ."""
    first, chunks = memory.output[0], algorithm.chunks
    if algorithm.kind == "all-to-all":
        return (first, chunks) if algorithm.in_place else None
    if algorithm.in_place or (algorithm.kind == "reduce" and number > 0):
        return None
    return first, first - chunks


def _steps(op: MscclStep) -> int:
    """Return the number of steps of a lane for an operation."""
    kept_elsewhere = op.type in {"rrc", "rrcs"} and op.src != op.dst
    return {"rcs": 2, "rrs": 3, "rrcs": 2}.get(op.type, 1) + kept_elsewhere


def _ends(ops: Iterable[MscclStep]) -> list[int]:
    """Return the number of each operation's last step."""
    ends, steps = [], 0
    for op in ops:
        steps += _steps(op)
        ends.append(steps - 1)
    return ends


class _Writer:
    """Adds the steps of a thread block to its lane."""

    def __init__(self, lane: Lane, block: ThreadBlock, to_lane: int, memory: _Memory, kept: int) -> None:
        self.lane, self.block, self.to_lane, self.memory, self.kept = lane, block, to_lane, memory, kept

    def write(self, op: MscclStep, after: tuple[int, int]) -> None:
        """Add the steps of an operation; the first of them waits for `after`."""
        src = self.memory.chunk(op.src, op) if op.type in _READS else -1
        dst = self.memory.chunk(op.dst, op) if op.type in _WRITES else -1
        if op.type == "rrs":
            dst = self.kept + src % self.memory.chunks
        if op.type == "nop":
            self.lane.step(after=after)
        elif op.type in {"cpy", "re"}:
            self.lane.copy(src, to=dst, count=op.length, reduce=op.type == "re", after=after)
        elif op.type == "s":
            self._send(src, op.length, after)
        else:
            adds = op.type.startswith("rr")
            if adds and src != dst:
                self.lane.copy(src, to=dst, count=op.length, after=after)
                after = (-1, -1)
            self.lane.step(receive_from=self.block.recv, receive=dst, receive_count=op.length, reduce=adds, after=after)
            if op.type in SENDS:
                self._send(dst, op.length)

    def _send(self, chunk: int, count: int, after: tuple[int, int] = (-1, -1)) -> None:
        self.lane.step(send_to=self.block.send, to_lane=self.to_lane, send=chunk, send_count=count, after=after)
