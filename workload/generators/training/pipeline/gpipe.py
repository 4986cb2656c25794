"""GPipe: all forward passes, then all backward passes (Huang et al., arXiv 1811.06965).

Of a step of m (F + B) of work, (p - 1) (F + B) is bubble. All m micro-batches' activations are held.
"""

from workload.generators.training.pipeline.one_chunk import always_waits, no_chunks
from workload.generators.training.pipeline.work import Work

NAME = "gpipe"


def order(_stage: int, _stages: int, micro_batches: int, _chunks: int) -> list[Work]:
    """What a stage does: the backward passes in the same order."""
    return [
        *(Work("forward", micro_batch) for micro_batch in range(micro_batches)),
        *(Work("backward", micro_batch) for micro_batch in range(micro_batches)),
    ]


def in_flight(_stage: int, _stages: int, micro_batches: int, _chunks: int) -> int:
    """All of them."""
    return micro_batches


complaint = no_chunks
waits_for_sends = always_waits
