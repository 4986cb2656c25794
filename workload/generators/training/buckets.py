"""Buckets: parameters whose gradients one collective reduces, and which one collective gathers."""

from collections.abc import Sequence
from typing import NamedTuple

from workload.generators.training.units import ModelUnit

MEGATRON_MINIMUM, MEGATRON_PER_REPLICA = 40_000_000, 1_000_000
"""Elements per bucket: max(40 M, 1 M per replica) (Megatron-LM, core/distributed/distributed_data_parallel.py)."""
DEEPSPEED = 500_000_000
"""Elements per bucket: DeepSpeed's reduce_bucket_size and allgather_bucket_size (runtime/zero/config.py)."""


class ParameterBucket(NamedTuple):
    """A bucket of parameters of one chunk."""

    number: int  # Number within the chunk, in the order of the backward pass
    size: int  # Number of parameters
    # First and last unit with parameters in the bucket; the backward pass completes it at the first
    units: tuple[int, int]
    is_expert: bool  # Whether the parameters are those of experts, which have other replicas


def buckets(units: Sequence[ModelUnit], limit: int | None, *, before: bool) -> list[ParameterBucket]:
    """Cut a chunk's parameters into buckets, in the order in which the backward pass completes them.

    Args:
        units: Units of the chunk in the order of the forward pass.
        limit: Number of parameters per bucket; None = one bucket for dense parameters and one for experts.
        before: Whether a bucket ends before the tensor that would exceed the limit (DeepSpeed); otherwise it ends
            after the tensor that reaches the limit (Megatron-LM).
    """
    closed: list[ParameterBucket] = []
    for is_expert in (False, True):
        tensors = [
            (number, tensor.size)
            for number in reversed(range(len(units)))
            for tensor in reversed(units[number].tensors)
            if tensor.is_expert == is_expert
        ]
        bucket: list[tuple[int, int]] = []
        for number, count in tensors:
            if before and limit is not None and bucket and sum(c for _, c in bucket) + count > limit:
                closed.append(_closed(bucket, is_expert=is_expert))
                bucket = []
            bucket.append((number, count))
            if not before and limit is not None and sum(c for _, c in bucket) >= limit:
                closed.append(_closed(bucket, is_expert=is_expert))
                bucket = []
        if bucket:
            closed.append(_closed(bucket, is_expert=is_expert))
    closed.sort(key=lambda bucket: -bucket.units[0])
    return [bucket._replace(number=number) for number, bucket in enumerate(closed)]


def _closed(tensors: Sequence[tuple[int, int]], *, is_expert: bool) -> ParameterBucket:
    """Return the bucket of tensors, each given as the number of its unit and its number of parameters."""
    return ParameterBucket(0, sum(count for _, count in tensors), (tensors[-1][0], tensors[0][0]), is_expert)
