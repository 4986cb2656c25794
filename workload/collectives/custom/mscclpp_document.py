"""The contents of an execution plan of MSCCL++, checked one by one, and an order of its operations.

A thread block has operations, and numbers for the channels and remote buffers that they use. Chunks are counted in
parts, so that a group of thread blocks can share one; a part is 1 / `parts` of a chunk.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nadi import inputs
from nadi.workload.collectives.custom.msccl import KIND_OF, WIRE_OF
from nadi.workload.errors import WorkloadError

_EXPECTED = "an execution plan of MSCCL++ (JSON with gpus)"
_LARGEST_NUMBER = 1 << 20
_LARGEST_PARTS = 64
_LARGEST_SIZE = (1 << 64) - 1
_KINDS = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all"}  # in which every GPU has an input
_LETTERS = ("i", "o", "s")  # a tuple: values of a file may be unhashable
SIGNALS = {"signal", "rlxsignal"}
WAITS = {"wait", "rlxwait"}
PAIRS = {"put", "pws", "pwsf", "get", "copy", "ppkt", "rppkt", "cpkt", "upkt"}
"""Operations whose n-th source goes to the n-th destination, or the only one to all."""
SUMS = {"re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt"}
READS_PACKETS = {"upkt", "rppkt", "repkt", "respkt", "recpkt", "recspkt"}
_LOCAL = {"nop", "flush", "barrier", "sem_acquire", "sem_release"}
_OF_SWITCHES = {"glre", "glres", "gstore"}

Channel = tuple[str, int, int]
"""Type of a channel, the GPU at its other end, and its number among those of this type to that GPU."""


class Span(NamedTuple):
    """Consecutive parts of a buffer of a GPU; `letter` is "i" for input, "o" for output or "s" for scratch space."""

    gpu: int  # GPU that has the buffer
    letter: str  # kind of the buffer
    begin: int  # number of the first part
    length: int  # number of parts


def overlap(a: Span, b: Span) -> bool:
    """Return whether two spans have parts in common.

    Args:
        a: A span of a GPU.
        b: Another span of the same GPU.
    """
    return a.letter == b.letter and a.begin < b.begin + b.length and b.begin < a.begin + a.length


class PlanOperation(NamedTuple):
    """An operation of a thread block: what it reads and writes, and what it signals or waits for."""

    label: str  # name for messages
    name: str  # name of the operation in the file, such as "put"
    sources: list[Span]  # spans that it reads
    targets: list[Span]  # spans that it writes
    channels: list[Channel]  # channels that it uses
    barrier: tuple[int, int]  # number, thread blocks
    semaphores: list[int]  # numbers of the semaphores that it acquires or releases


class PlanGpu(NamedTuple):
    """The buffers, thread blocks and semaphores of a GPU."""

    label: str  # name for messages
    chunks: dict[str, int]  # length of each buffer in parts, by letter
    blocks: list[list[PlanOperation]]  # operations of each thread block, in order
    semaphores: list[int]  # initial values


class PlanDocument(NamedTuple):
    """The contents of a file."""

    kind: str
    in_place: bool
    protocol: str  # one of WIRE_OF
    sizes_bytes: tuple[int, int]  # smallest and largest buffer that MSCCL++ takes it for
    gpus: list[PlanGpu]  # plan of each GPU


def read_document(path: Path, kind: str) -> PlanDocument:
    """Return the contents of a file for a kind of collective. Raises WorkloadError: a value is wrong.

    Args:
        path: The path of an execution plan of MSCCL++ in JSON.
        kind: The kind of collective, one of workload.KINDS.
    """
    try:
        content = json.loads(inputs.read_bytes(path))
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}, expected {_EXPECTED}") from None
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: {inputs.shown(str(error))[:160]}, expected {_EXPECTED}") from None
    label = str(path)
    content = _mapping(content, label)
    gpus = _list(content, "gpus", label)
    if any("inputChunks" in gpu for gpu in gpus):
        raise WorkloadError(f"{path}: a plan of MSCCL++ before version 0.7, expected one with input_chunks")
    collective = str(content.get("collective"))
    if KIND_OF.get(collective) != kind or kind not in _KINDS:
        names = [name for name, known in KIND_OF.items() if known == kind and kind in _KINDS]
        raise WorkloadError(
            f"{path}: collective {collective[:40]!r}, expected {' or '.join(map(repr, names)) or f'none for {kind}'}"
        )
    protocol = str(content.get("protocol"))
    if protocol not in WIRE_OF or len(gpus) < 2:
        raise WorkloadError(
            f"{path}: protocol {protocol[:40]!r} of {len(gpus)} GPUs, expected {' or '.join(WIRE_OF)} of two or more"
        )
    parts = math.lcm(*_group_sizes(gpus, label))
    if parts > _LARGEST_PARTS:
        raise WorkloadError(f"{path}: groups of thread blocks that share a chunk in {parts} parts, expected fewer")
    found = [_gpu(gpu, number, gpus, parts, label) for number, gpu in enumerate(gpus)]
    least = _checked(content.get("min_message_size", 0), "min_message_size", label, most=_LARGEST_SIZE)
    most = _checked(
        content.get("max_message_size", _LARGEST_SIZE), "max_message_size", label, least=least, most=_LARGEST_SIZE
    )
    return PlanDocument(kind, content.get("inplace") in (True, "true"), protocol, (least, most), found)


def _group_sizes(gpus: list[dict[str, Any]], label: str) -> set[int]:
    """Return the sizes of the groups of thread blocks that share chunks."""
    blocks = [block for gpu in gpus for block in _list(gpu, "threadblocks", label)]
    infos = [op["tbg_info"] for block in blocks for op in _operations(block, label) if op.get("tbg_info")]
    return {1, *(_number(_mapping(info, label), "tbg_size", label, least=1, most=_LARGEST_PARTS) for info in infos)}


def _operations(block: Mapping[str, Any], label: str) -> list[dict[str, Any]]:
    """Return the operations of a thread block, with those in pipelines once, as if the pipeline had one turn."""
    found = []
    for op in _list(block, "ops", label):
        found += _list(op, "ops", label) if op.get("name") == "pipeline" else [op]
    return found


def _gpu(content: dict[str, Any], number: int, gpus: list[dict[str, Any]], parts: int, path: str) -> PlanGpu:
    """Return a GPU of a file."""
    label = f"{path}: gpu {number}"
    if _number(content, "id", label) != number:
        raise WorkloadError(f"{label}: id {content.get('id')}, expected {number}")
    names = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
    chunks = {letter: parts * _number(content, key, label) for letter, key in names.items()}
    channels: dict[str, list[Channel]] = {}
    for channel in _list(content, "channels", label):
        kind = str(channel.get("channel_type"))
        for peer in _items(channel.get("connected_to") or [], f"{label}: connected_to"):
            other = _checked(peer, "connected_to", label, most=len(gpus) - 1)
            if other == number:
                raise WorkloadError(f"{label}: connected_to {other}, expected other GPUs")
            known = channels.setdefault(kind, [])
            known.append((kind, other, sum(c[1] == other for c in known)))
    remote = []
    for buffer in _list(content, "remote_buffers", label):
        letter = buffer.get("type")
        if letter not in _LETTERS:
            raise WorkloadError(f"{label}: type {str(letter)[:20]!r} of a remote buffer, expected i, o or s")
        remote.append((_number(buffer, "rank", label, most=len(gpus) - 1), letter))
    blocks = _list(content, "threadblocks", label)
    made = [_block(block, b, number, channels, remote, parts, label) for b, block in enumerate(blocks)]
    semaphores = [_number(each, "init_value", label) for each in _list(content, "semaphores", label)]
    return PlanGpu(label, chunks, made, semaphores)


def _block(
    content: dict[str, Any],
    number: int,
    gpu: int,
    channels: dict[str, list[Channel]],
    remote: list[tuple[int, str]],
    parts: int,
    path: str,
) -> list[PlanOperation]:
    """Return the operations of a thread block."""
    label = f"{path} tb {number}"
    own_channels: dict[str, list[Channel]] = {}
    for channel in _list(content, "channels", label):
        kind = str(channel.get("channel_type"))
        ids = [] if kind == "switch" else channel.get("channel_ids")  # only refused operations use those of switches
        for index in _items(ids or [], f"{label}: channel_ids"):
            own_channels.setdefault(kind, []).append(_at(channels.get(kind, []), index, "channel_ids", label))
    own_buffers: dict[str, list[tuple[int, str]]] = {}
    for refs in _list(content, "remote_buffer_refs", label):
        for index in _items(refs.get("remote_buffer_ids") or [], f"{label}: remote_buffer_ids"):
            kind = str(refs.get("access_channel_type"))
            own_buffers.setdefault(kind, []).append(_at(remote, index, "remote_buffer_ids", label))
    found = []
    for k, op in enumerate(_operations(content, label)):
        where, name = f"{label} op {k}", str(op.get("name"))
        if name not in SIGNALS | WAITS | PAIRS | SUMS | _LOCAL:
            reason = "switches that add or copy are not modelled" if name in _OF_SWITCHES else "it is unknown"
            raise WorkloadError(f"{where}: {name[:40]!r}, expected another operation, as {reason}")
        kind = str(op.get("channel_type"))
        buffers = own_buffers.get(kind, [])
        sources, targets = (_spans(op, key, gpu, buffers, parts, where) for key in ("src_buff", "dst_buff"))
        ids = op.get("channel_ids") or []
        used = [_at(own_channels.get(kind, []), index, "channel_ids", where) for index in _items(ids, where)]
        barrier = (-1, 0)
        if name == "barrier":
            barrier = _number(op, "barrier_id", where), _number(op, "num_threadblocks", where, least=1)
        semaphores = [_checked(index, "semaphore_ids", where) for index in _items(op.get("semaphore_ids") or [], where)]
        found.append(PlanOperation(where, name, sources, targets, used, barrier, semaphores))
    return found


def _spans(
    op: Mapping[str, Any], key: str, gpu: int, buffers: list[tuple[int, str]], parts: int, label: str
) -> list[Span]:
    """Return the parts of buffers that an operation reads or writes."""
    info = op.get("tbg_info")
    index, size = (0, 1) if not info else (_number(info, "tb_id", label), _number(info, "tbg_size", label, least=1))
    if index >= size:
        raise WorkloadError(f"{label}: tb_id {index}, expected one below {size}")
    found = []
    for buffer in _list(op, key, label):
        begin, length = _number(buffer, "index", label) * parts, _number(buffer, "size", label, least=1) * parts
        if "buffer_id" in buffer:
            owner, letter = _at(buffers, buffer["buffer_id"], "buffer_id", label)
        elif buffer.get("type") in _LETTERS:
            owner, letter = gpu, buffer["type"]
        else:
            raise WorkloadError(f"{label}: {key} without buffer_id and of type i, o or s, expected one of both")
        found.append(Span(owner, letter, begin + length * index // size, length // size))
    return found


def _mapping(value: object, label: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WorkloadError(f"{label}: {str(value)[:40]!r}, expected a mapping as in {_EXPECTED}")
    return value


def _items(value: object, label: str) -> list[Any]:
    if not isinstance(value, list):
        raise WorkloadError(f"{label}: {str(value)[:40]!r}, expected a list")
    return value


def _list(content: Mapping[str, Any], key: str, label: str) -> list[dict[str, Any]]:
    """Return a list of mappings, [] without the key."""
    return [_mapping(item, f"{label}: {key}") for item in _items(content.get(key) or [], f"{label}: {key}")]


def _number(content: Mapping[str, Any], key: str, label: str, *, least: int = 0, most: int = _LARGEST_NUMBER) -> int:
    return _checked(content.get(key), key, label, least=least, most=most)


def _checked(value: object, key: str, label: str, *, least: int = 0, most: int = _LARGEST_NUMBER) -> int:
    """Return a value that is a whole number within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise WorkloadError(f"{label}: {key} {str(value)[:40]}, expected a whole number from {least} to {most}")
    return value


def _at(items: list[Any], index: object, key: str, label: str) -> Any:  # noqa: ANN401 - an item of the list
    """Return the item of a list at an index of the file."""
    if not items:
        raise WorkloadError(f"{label}: {key} {str(index)[:40]}, expected a list of the thread block or GPU to have it")
    return items[_checked(index, key, label, most=len(items) - 1)]


# The operations of a GPU in an order in which its thread blocks may do them, and what each waits for on the GPU.


Place = tuple[int, int]
"""Thread block, and number of an operation in it."""


class Turn(NamedTuple):
    """An operation in the order."""

    place: Place  # place of the operation
    operation: PlanOperation  # the operation itself
    after: list[Place]  # operations of other thread blocks that must be done before


def turns_of(gpu: PlanGpu) -> list[Turn]:
    """Return all operations of a GPU in an order that lets all of them run.

    Raises WorkloadError: barriers or semaphores that hold some up for ever.

    Args:
        gpu: The GPU with its thread blocks.
    """
    return _Order(gpu).found


class _Order:
    """A possible order of operations: each thread block runs until it must wait for another one."""

    def __init__(self, gpu: PlanGpu) -> None:
        self.gpu = gpu
        self.found: list[Turn] = []
        self.next = [0] * len(gpu.blocks)
        self.values = list(gpu.semaphores)
        self.released: dict[int, list[Place]] = {}
        self.arrived: dict[int, list[int]] = {}
        self.at_barrier: set[int] = set()
        self.unwritten: dict[Place, list[Span]] = {  # packets that operations will copy into scratch space of the GPU
            (block, number): spans
            for block, operations in enumerate(gpu.blocks)
            for number, operation in enumerate(operations)
            if (spans := _packets(operation))
        }
        self.written: dict[Place, list[Span]] = {}
        while any(self._go_on(block) for block in range(len(gpu.blocks))):
            pass
        for block, operations in enumerate(gpu.blocks):
            if self.next[block] < len(operations):
                where = operations[self.next[block]].label
                raise WorkloadError(f"{where}: waits for thread blocks that do not come, expected them")

    def _go_on(self, block: int) -> bool:
        """Do what a thread block can; return whether there was any."""
        began = len(self.found) + len(self.at_barrier)
        operations = self.gpu.blocks[block]
        while block not in self.at_barrier and self.next[block] < len(operations):
            operation = operations[self.next[block]]
            if operation.name == "barrier":
                self._arrive(block, operation)
                continue
            after = self._ready(block, operation)
            if after is None:
                break
            self._do(block, after)
        return len(self.found) + len(self.at_barrier) != began

    def _do(self, block: int, after: list[Place]) -> None:
        place = block, self.next[block]
        self.found.append(Turn(place, self.gpu.blocks[block][place[1]], [p for p in after if p[0] != block]))
        self.next[block] += 1
        if place in self.unwritten:
            self.written[place] = self.unwritten.pop(place)

    def _arrive(self, block: int, operation: PlanOperation) -> None:
        """Let a thread block come to a barrier, which opens for all when the last one is there."""
        number, blocks = operation.barrier
        own = self.arrived.setdefault(number, [])
        own.append(block)
        self.at_barrier.add(block)
        if len(own) == blocks:
            before = [(other, self.next[other] - 1) for other in own if self.next[other]]
            for other in own:
                self._do(other, before)
            self.at_barrier -= set(own)
            self.arrived[number] = []

    def _ready(self, block: int, operation: PlanOperation) -> list[Place] | None:
        """Return what an operation follows; None if it must wait."""
        after: list[Place] = []
        for index in operation.semaphores:
            if index >= len(self.values):
                raise WorkloadError(f"{operation.label}: semaphore {index}, expected one of the GPU")
            if operation.name == "sem_release":
                self.values[index] += 1
                self.released.setdefault(index, []).append((block, self.next[block]))
        if operation.name == "sem_acquire":
            if any(self.values[index] < 1 for index in operation.semaphores):
                return None
            for index in operation.semaphores:
                self.values[index] -= 1
                after += self.released.get(index, [])
        if operation.name in READS_PACKETS:
            for packets in (self.unwritten, self.written):
                places = [
                    place
                    for place, spans in packets.items()
                    if place[0] != block and any(overlap(a, b) for a in spans for b in operation.sources)
                ]
                if places and packets is self.unwritten:
                    return None
                after += places
        return after


def _packets(operation: PlanOperation) -> list[Span]:
    """Return the spans of scratch space of the own GPU into which an operation copies packets."""
    if not operation.name.endswith("pkt") or operation.name == "upkt":
        return []
    own = {span.gpu for span in operation.sources}
    return [span for span in operation.targets if span.letter == "s" and span.gpu in own]
