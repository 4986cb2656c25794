"""1F1B: each backward pass as soon as its input is available (Narayanan et al., arXiv 2104.04473, section 2.2.1).

It is also known as PipeDream-Flush. The bubble is GPipe's, (p - 1) (F + B); stage s holds at most p - s micro-batches.
"""

from workload.generators.training.pipeline.one_chunk import always_waits, no_chunks
from workload.generators.training.pipeline.work import Work

NAME = "1f1b"


def order(stage: int, stages: int, micro_batches: int, _chunks: int) -> list[Work]:
    """Return p - 1 - s forward passes, then alternating forward and backward passes, then the other backward passes."""
    ahead = min(stages - 1 - stage, micro_batches)
    passes = [Work("forward", micro_batch) for micro_batch in range(ahead)]
    for micro_batch in range(micro_batches):
        if micro_batch + ahead < micro_batches:
            passes.append(Work("forward", micro_batch + ahead))
        passes.append(Work("backward", micro_batch))
    return passes


def in_flight(stage: int, stages: int, micro_batches: int, _chunks: int) -> int:
    """Return the number of the first forward passes plus one."""
    return min(stages - stage, micro_batches)


complaint = no_chunks
waits_for_sends = always_waits
