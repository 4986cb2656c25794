"""ZB-H1: backward passes split into gradients of inputs (B) and of weights (W).

Source: Qi et al., arXiv 2401.10241, section 2.1. The order is that of 1F1B, but stage s delays each pass W by s
backward passes, so that every stage holds p micro-batches, as 1F1B's first stage does. The bubble is
(p - 1) (F + B - W): a third of 1F1B's if the three passes take the same time.
"""

from workload.generators.training.pipeline.one_chunk import no_chunks
from workload.generators.training.pipeline.work import Work

NAME = "zero-bubble"


def order(stage: int, stages: int, micro_batches: int, _chunks: int) -> list[Work]:
    """Return p - 1 - s forward passes, then forward, backward and delayed W passes in turns, then the other passes."""
    ahead = min(stages - 1 - stage, micro_batches)
    passes = [Work("forward", micro_batch) for micro_batch in range(ahead)]
    for micro_batch in range(micro_batches):
        if micro_batch + ahead < micro_batches:
            passes.append(Work("forward", micro_batch + ahead))
        passes.append(Work("backward", micro_batch, is_split=True))
        if micro_batch >= stage:
            passes.append(Work("weights", micro_batch - stage))
    passes += [Work("weights", micro_batch) for micro_batch in range(max(micro_batches - stage, 0), micro_batches)]
    return passes


def in_flight(_stage: int, stages: int, micro_batches: int, _chunks: int) -> int:
    """Return the number of micro-batches of every stage."""
    return min(stages, micro_batches)


complaint = no_chunks
