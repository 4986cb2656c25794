"""GPipe: all forward passes, then all backward passes (Huang et al., arXiv 1811.06965).

A step takes m (F + B) of work plus a bubble of (p - 1) (F + B), with F and B the times of a forward and a backward
pass. Each stage holds the activations of all m micro-batches.
"""

from workload.generators.training.pipeline.one_chunk import always_waits, no_chunks
from workload.generators.training.pipeline.work import Work

NAME = "gpipe"


def order(_stage: int, _stages: int, micro_batches: int, _chunks: int) -> list[Work]:
    """Return all forward passes, then all backward passes in the same order of micro-batches."""
    return [
        *(Work("forward", micro_batch) for micro_batch in range(micro_batches)),
        *(Work("backward", micro_batch) for micro_batch in range(micro_batches)),
    ]


def in_flight(_stage: int, _stages: int, micro_batches: int, _chunks: int) -> int:
    """Return the number of all micro-batches."""
    return micro_batches


complaint = no_chunks
waits_for_sends = always_waits
