"""DualPipe: micro-batches enter at both ends of the pipeline (DeepSeek-V3, arXiv 2412.19437, section 3.2.1).

Stage s holds two slices of the model: slice s as chunk 0, for the first half of the micro-batches, which pass from
stage 0 to p - 1; and slice p - 1 - s as chunk 1, for the second half, which pass in the other direction. So two stages
hold every slice. Forward and backward passes of opposite directions run in pairs. The order is that of the public
repository (deepseek-ai/DualPipe, dualpipe.py, `step`, whose eight steps the comments name). The bubble is
(p/2 - 1) (FB + B - 3 W) with FB the time of a pair, B that of a full backward pass and W that of its gradients of
weights, where B - W is F; a stage holds at most p + 1 micro-batches (table 2).
"""

from collections import deque
from typing import Literal

from nadi.workload.generators.training.pipeline import PipelineSchedule, Work


class Pipeline(PipelineSchedule):
    """Two chunks per stage, one per direction."""

    IS_MIRRORED = True

    @property
    def chunks(self) -> int:
        return 2

    def order(self, stage: int) -> list[Work]:
        """Return the passes of a stage in order, as DualPipe's published steps.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        from_end = min(stage, self.stages - 1 - stage)
        from_middle = self.stages // 2 - from_end - 1
        passes = _StagePasses(self.micro_batches, is_in_second_half=stage >= self.stages // 2)
        for _ in range(2 * from_middle):  # Step 1: nF0
            passes.forward(0)
        for _ in range(from_end + 1):  # Step 2: nF0F1
            passes.forward(0)
            passes.forward(1)
        for _ in range(from_middle):  # Step 3: nB1W1F1
            passes.backward(1, is_split=True)
            passes.weights()
            passes.forward(1)
        for i in range(self.micro_batches // 2 - self.stages + from_end + 1):  # Step 4: nF0B1F1B0
            if i == 0 and from_middle == 0:
                passes.forward(0)
                passes.backward(1)
            else:
                passes.pair(0, 1)
            passes.pair(1, 0)
        for _ in range(from_middle):  # Step 5: nB1F1B0
            passes.backward(1)
            passes.pair(1, 0)
        for i in range(2 * (from_end + 1)):  # Step 6: nB1B0, whose second half is split
            passes.backward(1 - i % 2, is_split=i > from_end)
        for _ in range(from_middle):  # Step 7: nWB0
            passes.weights()
            passes.backward(0, is_split=True)
        for _ in range(from_end + 1):  # Step 8: nW
            passes.weights()
        return passes.done

    def in_flight(self, stage: int) -> tuple[int, ...]:
        """Return the number of micro-batches per direction: as many as 1F1B holds at the stage's position in it.

        Args:
            stage: The number of the pipeline stage, from 0.
        """
        half = self.micro_batches // 2
        return min(half, self.stages - stage), min(half, stage + 1)

    def position(self, stage: int, chunk: int) -> int:
        """Return the slice of a chunk; chunk 1 belongs to the reverse direction.

        Args:
            stage: The number of the pipeline stage, from 0.
            chunk: The number of the chunk in its stage, from 0.
        """
        return self.stages - 1 - stage if chunk else stage


class _StagePasses:
    """The growing list of a stage's passes.

    Direction 0 begins at the end of the pipeline that is nearer to the stage, direction 1 at the other end.
    """

    def __init__(self, micro_batches: int, *, is_in_second_half: bool) -> None:
        """Begin with no passes; is_in_second_half: whether the stage is nearer to the pipeline's end."""
        self.done: list[Work] = []
        self._is_in_second_half = is_in_second_half
        self._next = {
            (kind, chunk): chunk * (micro_batches // 2) for kind in ("forward", "backward") for chunk in (0, 1)
        }
        self._weights: deque[Work] = deque()

    def forward(self, way: int, *, is_paired: bool = False) -> None:
        """Add the next forward pass in a direction.

        Args:
            way: The direction, 0 or 1.
            is_paired: Whether the pass runs together with the backward pass after it.
        """
        self.done.append(self._pass("forward", way)._replace(is_paired=is_paired))

    def backward(self, direction: int, *, is_split: bool = False) -> None:
        """Add the next backward pass in a direction.

        Args:
            direction: The direction, 0 or 1.
            is_split: Whether it computes only gradients of inputs; those of weights follow later.
        """
        work = self._pass("backward", direction)._replace(is_split=is_split)
        self.done.append(work)
        if is_split:
            self._weights.append(Work("weights", work.micro_batch, work.chunk))

    def pair(self, forward_way: int, backward_way: int) -> None:
        """Add a forward pass and a backward pass that run together.

        Args:
            forward_way: The direction of the forward pass, 0 or 1.
            backward_way: The direction of the backward pass, 0 or 1.
        """
        self.forward(forward_way, is_paired=True)
        self.backward(backward_way)

    def weights(self) -> None:
        """Add the oldest pass for gradients of weights that a split backward pass has left."""
        self.done.append(self._weights.popleft())

    def _pass(self, kind: Literal["forward", "backward"], direction: int) -> Work:
        """Return the next pass of a kind in a direction."""
        chunk = direction ^ self._is_in_second_half
        micro_batch = self._next[kind, chunk]
        self._next[kind, chunk] += 1
        return Work(kind, micro_batch, chunk)
