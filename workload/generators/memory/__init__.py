"""Estimates of a model's memory on each GPU of a parallel plan, and the transfers of offloading."""

from nadi.workload.generators.memory.estimate import StageMemory, does_not_fit, estimate, peak_bytes
from nadi.workload.generators.memory.serving import kv_cache_bytes_per_token, serving_estimate
