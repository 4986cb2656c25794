"""1F1B: a backward pass as soon as there is one to do (Narayanan et al., arXiv 2104.04473, section 2.2.1).

Also known as PipeDream-Flush. The bubble is GPipe's, (p - 1) (F + B); stage s holds p - s micro-batches at most.
"""

from workload.generators.training.pipeline.one_chunk import always_waits, no_chunks
from workload.generators.training.pipeline.work import Work

NAME = "1f1b"


def order(stage: int, stages: int, micro_batches: int, _chunks: int) -> list[Work]:
    """What a stage does: p - 1 - s forward passes, then one of each, then the backward passes that are left."""
    ahead = min(stages - 1 - stage, micro_batches)
    done = [Work("forward", micro_batch) for micro_batch in range(ahead)]
    for micro_batch in range(micro_batches):
        if micro_batch + ahead < micro_batches:
            done.append(Work("forward", micro_batch + ahead))
        done.append(Work("backward", micro_batch))
    return done


def in_flight(stage: int, stages: int, micro_batches: int, _chunks: int) -> int:
    """Those of the first forward passes, and one."""
    return min(stages - stage, micro_batches)


complaint = no_chunks
waits_for_sends = always_waits
