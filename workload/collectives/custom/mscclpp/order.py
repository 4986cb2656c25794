"""The operations of a GPU in an order in which its thread blocks may do them, and what each waits for on the GPU."""

from typing import NamedTuple

from nadi.workload.collectives.custom.mscclpp.document import READS_PACKETS, PlanGpu, PlanOperation, Span, overlap
from nadi.workload.errors import WorkloadError

Place = tuple[int, int]
"""Thread block, and number of an operation in it."""


class Turn(NamedTuple):
    """An operation in the order."""

    place: Place
    operation: PlanOperation
    after: list[Place]  # operations of other thread blocks that must be done before


def turns_of(gpu: PlanGpu) -> list[Turn]:
    """Return all operations of a GPU; WorkloadError if its barriers or semaphores hold some up for ever."""
    return _Order(gpu).found


class _Order:
    """Thread blocks that take turns, each going on until it must wait for another."""

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
