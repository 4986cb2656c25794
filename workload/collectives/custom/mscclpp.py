"""An execution plan of MSCCL++ as lanes of messages.

A thread block is a lane. What it puts into another GPU's buffer is a message, which a lane of that GPU receives by
itself, in the order in which the thread block sends. A signal is a message of a byte, of which the wait at the other
end takes the next one; it also waits for all that the sender had put there before, as far as its thread block knew. A
read from another GPU is a byte to it, upon which a lane of it sends the data. Packets (LL) have flags: what reads them
waits for all that is put into the same parts. Copies and sums take no time, as in MSCCL's XML.

Source: microsoft/mscclpp, src/core/executor/execution_plan.cc and include/mscclpp/execution_kernel.hpp.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nadi.workload.collectives.custom import msccl, mscclpp_document
from nadi.workload.collectives.plans.plan import AT_ONCE, MAX_CONNECTIONS, Lane, Plans, each_its_own
from nadi.workload.errors import WorkloadError

_BYTE = (1, 1 << 30)  # wire of a signal: of any buffer a byte, rounded up
_LARGEST_CHUNKS = 1 << 24

Key = tuple[str, int, int, int]  # what a lane is for, and numbers of GPUs, thread blocks or channels
Clock = dict[int, int]  # messages that a thread block of the sender has put to a GPU, by thread block


class Put(NamedTuple):
    """The parts of a GPU's buffer that a message from another GPU fills."""

    gpu: int  # that sends
    block: int  # thread block of the sender
    number: int  # among the messages of that thread block to this GPU
    span: mscclpp_document.Span  # parts that the message fills


def read_mscclpp(path: Path, kind: str) -> tuple[Plans, list[list[list[str]]], tuple[int, int]]:
    """Return a file's plans, each step's name by member, lane and number, and the range of buffers in bytes.

    Raises WorkloadError: the file is invalid.

    Args:
        path: The path of an execution plan of MSCCL++ in JSON.
        kind: The kind of collective, one of workload.KINDS.
    """
    document = mscclpp_document.read_document(path, kind)
    writer = _Writer(path, document)
    for gpu in range(len(document.gpus)):
        writer.emit(gpu)
    return *writer.finished(), document.sizes_bytes


def _pieces(operation: mscclpp_document.PlanOperation) -> list[tuple[mscclpp_document.Span, mscclpp_document.Span]]:
    """Return the pairs of a source and a destination of an operation that copies."""
    sources, targets = operation.sources, operation.targets
    if len(sources) == 1:
        sources = sources * len(targets)
    if len(sources) != len(targets) or any(a.length != b.length for a, b in zip(sources, targets, strict=True)):
        raise WorkloadError(f"{operation.label}: src_buff and dst_buff of other lengths, expected the same")
    return list(zip(sources, targets, strict=True))


class _Writer:
    """The lanes of all GPUs as they grow."""

    def __init__(self, path: Path, document: mscclpp_document.PlanDocument) -> None:
        self.path, self.document = path, document
        self.turns = [mscclpp_document.turns_of(gpu) for gpu in document.gpus]
        n = len(document.gpus)
        chunks = max(max(gpu.chunks["i"], gpu.chunks["o"]) for gpu in document.gpus)
        if document.kind in {"all-gather", "reduce-scatter", "all-to-all"} and chunks % n:
            raise WorkloadError(f"{path}: {chunks} chunks, expected a multiple of {n} GPUs for {document.kind}")
        if not 1 <= chunks <= _LARGEST_CHUNKS:
            raise WorkloadError(f"{path}: {chunks} chunks, expected 1 to {_LARGEST_CHUNKS}")
        self.puts: list[list[Put]] = [[] for _ in document.gpus]  # to each GPU
        self.signals: dict[tuple[int, int, str, int], list[tuple[int, Clock]]] = {}
        for gpu in range(n):
            self._note(gpu)
        own = [msccl.MscclGpu(g.label, g.chunks, {0: self._uses(i)}) for i, g in enumerate(document.gpus)]
        self.algorithm = msccl.MscclAlgorithm(
            str(path), document.kind, document.in_place, chunks, document.protocol, own
        )
        self.memories = [msccl.ChunkMemory(self.algorithm, gpu) for gpu in range(n)]
        self.first_free = max(memory.regions for memory in self.memories) * chunks
        self.lanes: list[list[Lane]] = [[] for _ in document.gpus]
        self.names: list[list[list[str]]] = [[] for _ in document.gpus]
        self.number: list[dict[Key, int]] = [{} for _ in document.gpus]
        self.free = [self.first_free] * n
        self.done: list[dict[mscclpp_document.Place, tuple[int, int]]] = [
            {} for _ in document.gpus
        ]  # last step of each operation
        self.taken: dict[tuple[int, int, str, int], int] = {}  # signals that waits have taken
        self.byte = [self.scratch(gpu) for gpu in range(n)]  # chunk that signals send, a copy of some of the input
        for gpu, content in enumerate(document.gpus):
            first = len(content.blocks)
            for block in range(first):
                self.lanes[gpu][self.lane(gpu, ("block", block, 0, 0), block)].step(after=(first, 0))
            byte = self.lane(gpu, ("byte", 0, 0, 0))
            self.lanes[gpu][byte].copy(self.memories[gpu].spans["i"][0], to=self.byte[gpu])
            self.names[gpu] = [[f"{content.label} begin"] for _ in self.lanes[gpu]]

    def _spans(self) -> Iterator[tuple[mscclpp_document.PlanOperation, mscclpp_document.Span]]:
        for turns in self.turns:
            for turn in turns:
                for span in (*turn.operation.sources, *turn.operation.targets):
                    yield turn.operation, span

    def _uses(self, gpu: int) -> msccl.ThreadBlock:
        """Return the uses of a GPU's buffers as steps, from which `ChunkMemory` lays out scratch space."""
        steps = [
            msccl.MscclStep(operation.label, "cpy", span[1:3], span[1:3], span.length, None)
            for operation, span in self._spans()
            if span.gpu == gpu
        ]
        return msccl.ThreadBlock(self.document.gpus[gpu].label, -1, -1, 0, steps)

    def _note(self, gpu: int) -> None:
        """Note the puts and signals of a GPU, with the puts that the thread block of a signal knows of."""
        known: list[dict[int, Clock]] = [{} for _ in self.document.gpus[gpu].blocks]
        kept: dict[mscclpp_document.Place, dict[int, Clock] | None] = {
            place: None for turn in self.turns[gpu] for place in turn.after
        }
        for (block, number), operation, after in self.turns[gpu]:
            for place in after:
                for to, clock in (kept[place] or {}).items():
                    mine = known[block].setdefault(to, {})
                    # Vector clocks: after waiting for another thread block, this one knows of the puts that the other
                    # knew of
                    mine.update({b: max(count, mine.get(b, 0)) for b, count in clock.items()})
            for span in self._sent(gpu, operation):
                clock = known[block].setdefault(span.gpu, {})
                self.puts[span.gpu].append(Put(gpu, block, clock.get(block, 0), span))
                clock[block] = clock.get(block, 0) + 1
            if operation.name in mscclpp_document.SIGNALS | {"pws", "pwsf"}:
                for kind, peer, channel in operation.channels:
                    own = self.signals.setdefault((gpu, peer, kind, channel), [])
                    if own and own[0][0] != block:
                        raise WorkloadError(f"{operation.label}: a channel of another thread block, expected its own")
                    own.append((block, dict(known[block].get(peer, {}))))
            if (block, number) in kept:
                kept[block, number] = {to: dict(clock) for to, clock in known[block].items()}

    def _sent(self, gpu: int, operation: mscclpp_document.PlanOperation) -> list[mscclpp_document.Span]:
        """Return what an operation writes into buffers of other GPUs."""
        targets = [b for _, b in _pieces(operation)] if operation.name in mscclpp_document.PAIRS else operation.targets
        return [span for span in targets if span.gpu != gpu]

    def lane(self, gpu: int, key: Key, block: int = 0, *, byte: bool = False) -> int:
        """Return the number of a GPU's lane for a purpose, after adding an empty lane if it is new.

        Args:
            gpu: The number of the GPU.
            key: The purpose of the lane, and the GPUs, thread blocks or channels that it belongs to.
            block: The number of the thread block that sends, from which the lane gets its connection.
            byte: Whether the lane sends signals of one byte.
        """
        if key not in self.number[gpu]:
            self.number[gpu][key] = len(self.lanes[gpu])
            wire = _BYTE if byte else msccl.WIRE_OF[self.document.protocol]
            self.lanes[gpu].append(Lane(wire=wire, connection=block % MAX_CONNECTIONS))
            self.names[gpu].append([])
        return self.number[gpu][key]

    def scratch(self, gpu: int, length: int = 1) -> int:
        """Return the first of some consecutive chunks of a GPU that nothing else uses.

        Args:
            gpu: The number of the GPU.
            length: The number of chunks.
        """
        chunks = self.algorithm.chunks
        if self.free[gpu] % chunks + length > chunks:
            self.free[gpu] += -self.free[gpu] % chunks
        self.free[gpu] += length
        return self.free[gpu] - length

    def chunk(self, span: mscclpp_document.Span, operation: mscclpp_document.PlanOperation) -> int:
        """Return the number of the first chunk of a span.

        Args:
            span: The parts of a GPU's buffer.
            operation: The operation that uses the span, for errors.
        """
        step = msccl.MscclStep(operation.label, "cpy", span[1:3], span[1:3], span.length, None)
        return self.memories[span.gpu].chunk((span.letter, span.begin), step)

    def last(self, gpu: int, lane: int) -> tuple[int, int]:
        """Return the last step of a lane as a dependency.

        Args:
            gpu: The number of the GPU.
            lane: The number of the lane.
        """
        steps = len(self.lanes[gpu][lane].steps)
        return (lane, steps - 1) if steps else AT_ONCE

    def named(self, gpu: int, operation: mscclpp_document.PlanOperation) -> None:
        """Name the new steps of all lanes of a GPU after an operation.

        Args:
            gpu: The number of the GPU.
            operation: The operation to which the new steps belong.
        """
        for lane, names in zip(self.lanes[gpu], self.names[gpu], strict=True):
            names.extend([operation.label] * (len(lane.steps) - len(names)))

    def emit(self, gpu: int) -> None:
        """Write the steps of a GPU's thread blocks, and the steps of other GPUs at the other ends of their messages.

        Args:
            gpu: The number of the GPU.
        """
        for turn in self.turns[gpu]:
            self._turn(gpu, turn)
            for other in range(len(self.lanes)):
                self.named(other, turn.operation)

    def _turn(self, gpu: int, turn: mscclpp_document.Turn) -> None:
        (block, number), operation, after = turn
        for place in after:
            if self.done[gpu][place] != AT_ONCE:
                self.lanes[gpu][block].step(after=self.done[gpu][place])
        if operation.name in mscclpp_document.READS_PACKETS:
            self._await_packets(gpu, block, operation)
        self._write(gpu, block, operation)
        self.done[gpu][block, number] = self.last(gpu, block)

    def _write(self, gpu: int, block: int, operation: mscclpp_document.PlanOperation) -> None:
        """Write the steps of an operation."""
        if operation.name in mscclpp_document.WAITS:
            for channel in operation.channels:
                self._wait(gpu, block, channel, operation)
        elif operation.name in mscclpp_document.PAIRS:
            for k, (source, target) in enumerate(_pieces(operation)):
                self._move(gpu, block, source, target, operation, k)
        elif operation.sources:
            self._sum(gpu, block, operation)
        if operation.name in mscclpp_document.SIGNALS | {"pws", "pwsf"}:
            for channel in operation.channels:
                self._signal(gpu, block, channel)

    def _signal(self, gpu: int, block: int, channel: mscclpp_document.Channel) -> None:
        kind, peer, number = channel
        key = ("signal" + kind, gpu, peer, number)
        sends = self.lane(gpu, key, block, byte=True)
        receives = self.lane(peer, key, block, byte=True)
        self._byte(gpu, sends, self.last(gpu, block), peer, receives)

    def _byte(self, gpu: int, lane: int, after: tuple[int, int], peer: int, to_lane: int) -> None:
        """Send a byte, a signal, from a lane of a GPU to a lane of another GPU."""
        self.lanes[gpu][lane].step(send_to=peer, to_lane=to_lane, send=self.byte[gpu], after=after)
        self.lanes[peer][to_lane].step(receive_from=gpu, receive=self.scratch(peer))

    def _wait(
        self, gpu: int, block: int, channel: mscclpp_document.Channel, operation: mscclpp_document.PlanOperation
    ) -> None:
        kind, peer, number = channel
        key = (peer, gpu, kind, number)
        taken = self.taken.get(key, 0)
        signals = self.signals.get(key, [])
        if taken >= len(signals):
            raise WorkloadError(f"{operation.label}: waits for a signal of gpu {peer} that does not come, expected one")
        self.taken[key] = taken + 1
        sender, clock = signals[taken]
        lane = self.lanes[gpu][block]
        lane.step(after=(self.lane(gpu, ("signal" + kind, peer, gpu, number), sender, byte=True), taken))
        for other, count in clock.items():
            # A signal promises all puts that its sender knew of, also those of other thread blocks
            lane.step(after=(self.lane(gpu, ("put", peer, other, 0), other), count - 1))

    def _await_packets(self, gpu: int, block: int, operation: mscclpp_document.PlanOperation) -> None:
        """Wait for what is put into the parts that an operation reads as packets, here and by other GPUs."""
        for source in operation.sources:
            last: dict[Key, int] = {}
            for put in self.puts[gpu]:
                if mscclpp_document.overlap(source, put.span):
                    key = ("put", put.gpu, put.block, 0)
                    last[key] = max(put.number, last.get(key, 0))
            for key, number in last.items():
                self.lanes[gpu][block].step(after=(self.lane(gpu, key, key[2]), number))

    def _move(
        self,
        gpu: int,
        block: int,
        source: mscclpp_document.Span,
        target: mscclpp_document.Span,
        operation: mscclpp_document.PlanOperation,
        number: int,
    ) -> None:
        """Copy a span to another, on this GPU, from another or to another."""
        if source.gpu != gpu:
            asked = self.last(gpu, block)
            taken = self._read(gpu, block, source, self.chunk(target, operation), operation, number, asked)
            self.lanes[gpu][block].step(after=taken)
        elif target.gpu != gpu:
            self._put(gpu, block, self.chunk(source, operation), target, operation)
        elif source != target:
            first, to = self.chunk(source, operation), self.chunk(target, operation)
            self.lanes[gpu][block].copy(first, to=to, count=source.length)

    def _put(
        self, gpu: int, block: int, chunk: int, target: mscclpp_document.Span, operation: mscclpp_document.PlanOperation
    ) -> None:
        to_lane = self.lane(target.gpu, ("put", gpu, block, 0), block)
        self.lanes[gpu][block].step(send_to=target.gpu, to_lane=to_lane, send=chunk, send_count=target.length)
        into = self.chunk(target, operation)
        self.lanes[target.gpu][to_lane].step(receive_from=gpu, receive=into, receive_count=target.length)

    def _read(
        self,
        gpu: int,
        block: int,
        source: mscclpp_document.Span,
        into: int,
        operation: mscclpp_document.PlanOperation,
        number: int,
        after: mscclpp_document.Place,
    ) -> mscclpp_document.Place:
        """Fetch a span of another GPU into a chunk of this one: a byte there after a step, upon which the data come.

        number: that of the source, as reads of several go on at the same time. Returns the step that takes the data.
        """
        peer = source.gpu
        asks = self.lane(gpu, ("ask", peer, block, number), block, byte=True)
        serves = self.lane(peer, ("serve", gpu, block, number), block)
        if not len(
            self.lanes[peer][serves].steps
        ):  # after the copy of the byte, as the reader may write where it is from
            self.lanes[peer][serves].step(after=(len(self.document.gpus[peer].blocks), 0))
        takes = self.lane(gpu, ("take", peer, block, number), block)
        self._byte(gpu, asks, after, peer, serves)
        first = self.chunk(source, operation)
        self.lanes[peer][serves].step(send_to=gpu, to_lane=takes, send=first, send_count=source.length)
        self.lanes[gpu][takes].step(receive_from=peer, receive=into, receive_count=source.length)
        return self.last(gpu, takes)

    def _sum(self, gpu: int, block: int, operation: mscclpp_document.PlanOperation) -> None:
        """Add sources into the first destination on this GPU, and send or copy it to the others."""
        if len({span.length for span in (*operation.sources, *operation.targets)}) > 1:
            raise WorkloadError(f"{operation.label}: buffers of other lengths, expected the same")
        lane, length = self.lanes[gpu][block], operation.sources[0].length
        own = [span for span in operation.targets if span.gpu == gpu]
        total = self.chunk(own[0], operation) if own else self.scratch(gpu, length)
        here = [self.chunk(span, operation) for span in operation.sources if span.gpu == gpu]
        here.sort(key=lambda chunk: chunk != total)
        for k, chunk in enumerate(here):
            if k or chunk != total:
                lane.copy(chunk, to=total, count=length, reduce=k > 0)
        asked = self.last(gpu, block)
        away = [(span, self.scratch(gpu, length)) for span in operation.sources if span.gpu != gpu]
        taken = [self._read(gpu, block, span, into, operation, k, asked) for k, (span, into) in enumerate(away)]
        for k, (_, into) in enumerate(away):
            lane.copy(into, to=total, count=length, reduce=k > 0 or bool(here), after=taken[k])
        for span in own[1:]:
            lane.copy(total, to=self.chunk(span, operation), count=length)
        for span in operation.targets:
            if span.gpu != gpu:
                self._put(gpu, block, total, span, operation)

    def finished(self) -> tuple[Plans, list[list[list[str]]]]:
        """Return the plans, after copies of outputs to where the kind has them, and the names of their steps."""
        for gpu, memory in enumerate(self.memories):
            output = msccl.final_output(self.algorithm, gpu, memory)
            if output is not None:
                last = Lane()
                for number, lane in enumerate(self.lanes[gpu]):
                    if len(lane.steps):
                        last.step(after=(number, len(lane.steps) - 1))
                last.copy(memory.output[0], to=output, count=memory.output[1])
                self.lanes[gpu].append(last)
                self.names[gpu].append([f"{self.document.gpus[gpu].label} output"] * len(last.steps))
        regions = -(-max(self.free) // self.algorithm.chunks)
        plans = each_its_own(self.algorithm.chunks, self.lanes, regions=regions)
        return plans._replace(protocol=self.document.protocol.lower()), self.names
