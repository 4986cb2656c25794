"""Gradients of parameters that are reduced together, and parameters that are gathered together."""

from collections.abc import Sequence
from typing import NamedTuple

from workload.generators.training.units import ModelUnit

MEGATRON_LEAST, MEGATRON_PER_REPLICA = 40_000_000, 1_000_000
"""Elements of a bucket: max(40 M, 1 M replicas) (Megatron-LM, core/distributed/distributed_data_parallel.py)."""
DEEPSPEED = 500_000_000
"""Elements of DeepSpeed's reduce_bucket_size and allgather_bucket_size (runtime/zero/config.py)."""


class ParameterBucket(NamedTuple):
    """Some parameters of one chunk.

    Attributes:
        number: within the chunk, in the order of the backward pass.
        size: of parameters.
        units: first and last unit that it has parameters of; the backward pass is done with it at the first.
        is_expert: of experts, whose replicas are others.
    """

    number: int
    size: int
    units: tuple[int, int]
    is_expert: bool


def buckets(units: Sequence[ModelUnit], most: int | None, *, before: bool) -> list[ParameterBucket]:
    """Cut a chunk's parameters into buckets, in the order in which the backward pass finishes them.

    Args:
        units: of the chunk, in the order of the forward pass.
        most: parameters of a bucket; None = all in one, but experts apart.
        before: a bucket is closed before the tensor that would make it larger (DeepSpeed), else after the tensor that
            made it large enough (Megatron-LM).
    """
    made: list[ParameterBucket] = []
    for is_expert in (False, True):
        tensors = [
            (number, tensor.size)
            for number in reversed(range(len(units)))
            for tensor in reversed(units[number].tensors)
            if tensor.is_expert == is_expert
        ]
        held: list[tuple[int, int]] = []
        for number, count in tensors:
            if before and most is not None and held and sum(c for _, c in held) + count > most:
                made.append(_bucket(held, is_expert=is_expert))
                held = []
            held.append((number, count))
            if not before and most is not None and sum(c for _, c in held) >= most:
                made.append(_bucket(held, is_expert=is_expert))
                held = []
        if held:
            made.append(_bucket(held, is_expert=is_expert))
    made.sort(key=lambda bucket: -bucket.units[0])
    return [bucket._replace(number=number) for number, bucket in enumerate(made)]


def _bucket(held: Sequence[tuple[int, int]], *, is_expert: bool) -> ParameterBucket:
    return ParameterBucket(0, sum(count for _, count in held), (held[-1][0], held[0][0]), is_expert)
