"""ZB-H1: backward passes split into gradients of inputs (B) and of weights (W).

Qi et al., arXiv 2401.10241, section 2.1. As 1F1B, with each weights' pass s backward passes late at stage s, so that
every stage holds what 1F1B's first stage does, p micro-batches. The bubble is (p - 1) (F + B - W), a third of 1F1B's
where all three take as long.
"""

from workload.generators.training.pipeline.one_chunk import no_chunks
from workload.generators.training.pipeline.work import Work

NAME = "zero-bubble"


def order(stage: int, stages: int, micro_batches: int, _chunks: int) -> list[Work]:
    """What a stage does: forward passes ahead, then one of each, W being late, then what is left."""
    ahead = min(stages - 1 - stage, micro_batches)
    done = [Work("forward", micro_batch) for micro_batch in range(ahead)]
    for micro_batch in range(micro_batches):
        if micro_batch + ahead < micro_batches:
            done.append(Work("forward", micro_batch + ahead))
        done.append(Work("backward", micro_batch, is_split=True))
        if micro_batch >= stage:
            done.append(Work("weights", micro_batch - stage))
    done += [Work("weights", micro_batch) for micro_batch in range(max(micro_batches - stage, 0), micro_batches)]
    return done


def in_flight(_stage: int, stages: int, micro_batches: int, _chunks: int) -> int:
    """As many at every stage."""
    return min(stages, micro_batches)


complaint = no_chunks
