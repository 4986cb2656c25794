"""DualPipe: micro-batches enter at both ends of the pipeline (DeepSeek-V3, arXiv 2412.19437, section 3.2.1).

Stage s holds two slices of the model: slice s as chunk 0, for the first half of the micro-batches, which pass from
stage 0 to p - 1; and slice p - 1 - s as chunk 1, for the second half, which pass in the other direction. So two stages
hold every slice. Forward and backward passes of opposite directions run in pairs. The order is that of the public
repository (deepseek-ai/DualPipe, dualpipe.py, `step`, whose eight steps the comments name). The bubble is
(p/2 - 1) (FB + B - 3 W) with FB the time of a pair, B that of a full backward pass and W that of its gradients of
weights, where B - W is F; a stage holds at most p + 1 micro-batches.
"""

from collections import deque

from workload.generators.training.pipeline.work import Work

NAME = "dualpipe"
IS_MIRRORED = True
_CHUNKS = 2


class _StagePasses:
    """The growing list of a stage's passes. Way 0 is the direction that begins nearer to the stage, way 1 the other."""

    def __init__(self, stage: int, stages: int, micro_batches: int) -> None:
        self.done: list[Work] = []
        self._is_in_second_half = stage >= stages // 2
        self._next = {
            (kind, chunk): chunk * (micro_batches // 2) for kind in ("forward", "backward") for chunk in (0, 1)
        }
        self._weights: deque[Work] = deque()

    def forward(self, way: int, *, is_paired: bool = False) -> None:
        chunk = way ^ self._is_in_second_half
        self.done.append(Work("forward", self._take("forward", chunk), chunk, is_paired=is_paired))

    def backward(self, way: int, *, is_split: bool = False) -> None:
        chunk = way ^ self._is_in_second_half
        work = Work("backward", self._take("backward", chunk), chunk, is_split=is_split)
        self.done.append(work)
        if is_split:
            self._weights.append(Work("weights", work.micro_batch, chunk))

    def pair(self, forward_way: int, backward_way: int) -> None:
        self.forward(forward_way, is_paired=True)
        self.backward(backward_way)

    def weights(self) -> None:
        self.done.append(self._weights.popleft())

    def _take(self, kind: str, chunk: int) -> int:
        micro_batch = self._next[kind, chunk]
        self._next[kind, chunk] += 1
        return micro_batch


def order(stage: int, stages: int, micro_batches: int, _chunks: int) -> list[Work]:
    """Return the passes of a stage in the order of execution."""
    half = stages // 2
    from_end = min(stage, stages - 1 - stage)
    from_middle = half - from_end - 1
    passes = _StagePasses(stage, stages, micro_batches)
    for _ in range(2 * from_middle):  # Step 1: nF0
        passes.forward(0)
    for _ in range(from_end + 1):  # Step 2: nF0F1
        passes.forward(0)
        passes.forward(1)
    for _ in range(from_middle):  # Step 3: nB1W1F1
        passes.backward(1, is_split=True)
        passes.weights()
        passes.forward(1)
    for i in range(micro_batches // 2 - stages + from_end + 1):  # Step 4: nF0B1F1B0
        if i == 0 and from_middle == 0:
            passes.forward(0)
            passes.backward(1)
        else:
            passes.pair(0, 1)
        passes.pair(1, 0)
    for _ in range(from_middle):  # Step 5: nB1F1B0
        passes.backward(1)
        passes.pair(1, 0)
    _last_backwards(passes, from_end)
    for _ in range(from_middle):  # Step 7: nWB0
        passes.weights()
        passes.backward(0, is_split=True)
    for _ in range(from_end + 1):  # Step 8: nW
        passes.weights()
    return passes.done


def _last_backwards(passes: _StagePasses, from_end: int) -> None:
    """Add step 6: nB1B0, whose second half is split."""
    count = 2 * (from_end + 1)
    for i in range(count):
        passes.backward(1 - i % 2, is_split=i >= count // 2)


def in_flight(_stage: int, stages: int, _micro_batches: int, _chunks: int) -> int:
    """Return the number of stages plus one, the same for every stage."""
    return stages + 1


def in_flight_of_chunks(stage: int, stages: int, micro_batches: int, _chunks: int) -> tuple[int, ...]:
    """Return the number of micro-batches per direction: as many as 1F1B holds at the stage's position in it."""
    half = micro_batches // 2
    return min(half, stages - stage), min(half, stage + 1)


def chunks(_vpp: int) -> int:
    """Return two: one chunk per direction."""
    return _CHUNKS


def position(stage: int, chunk: int, stages: int, _chunks: int) -> int:
    """Return the slice of a chunk; chunk 1 belongs to the reverse direction."""
    return stages - 1 - stage if chunk else stage


def at(position: int, chunk: int, stages: int, _chunks: int) -> tuple[int, int]:
    """Return the place of a slice in the direction of the micro-batch's current chunk."""
    return (stages - 1 - position if chunk else position), chunk


def micro_batches_of(chunk: int, micro_batches: int, _chunks: int) -> range:
    """Return the half of the micro-batches that passes in the chunk's direction."""
    half = micro_batches // 2
    return range(half, 2 * half) if chunk else range(half)


def complaint(stages: int, micro_batches: int, chunks: int) -> str:
    """Return a message unless stages and micro-batches are even and micro-batches are at least 2 p."""
    if chunks != _CHUNKS:
        return f"{chunks} chunks of a stage, expected {_CHUNKS}"
    if stages % 2:
        return f"pp is {stages}, expected an even number: {f'{stages - 1} or ' if stages > 1 else ''}{stages + 1}"
    if micro_batches < 2 * stages or micro_batches % 2:
        nearest = max(2 * stages, micro_batches + 1)
        return f"{micro_batches} micro-batches, expected an even number from 2 pp ({2 * stages}): {nearest}"
    return ""
