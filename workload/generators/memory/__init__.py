"""Estimates of a model's memory on each GPU of a parallel plan, and the transfers of offloading."""

from nadi.workload.generators.memory.estimate import (
    PARTS,
    StageMemory,
    does_not_fit,
    estimate,
    kv_cache_bytes_per_token,
    peak_bytes,
    serving_estimate,
)
