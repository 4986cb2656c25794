"""Scaling of a measured time from one GPU to another, by the resource that bounds the operator (SimAI, NSDI 2025, 4.2).

Compute-bound operators scale with the peak rate of their data type, memory-bound ones with the bandwidth; operators
that consist of launch and latency keep their time.
"""

from nadi.inputs.units import PS_PER_S
from nadi.workload.compute.gpu import Gpu
from nadi.workload.compute.operators import PRODUCTS, Operator


def bound_of(operator: Operator, gpu: Gpu) -> str:
    """Return an operator's bound at full rates: "compute", "memory" or "latency"; WorkloadError without a peak rate."""
    count = operator.shape[0] if operator.kind == "copies" else 1
    times = {
        "compute": operator.flops / gpu.peak_of(_rate_of(operator)) * PS_PER_S,
        "memory": operator.bytes / gpu.memory_bandwidth_Bps * PS_PER_S,
        "latency": float(count * (gpu.launch_overhead_ps + gpu.memory_latency_ps)),
    }
    return max(times, key=lambda bound: times[bound])


def scaled_ps(time_ps: float, operator: Operator, known: Gpu, new: Gpu) -> float:
    """Return the ps on `new` of an operator that took time_ps on `known`; WorkloadError: one lacks the data type."""
    bound = bound_of(operator, known)
    if bound == "compute":
        rate = _rate_of(operator)
        return time_ps * known.peak_of(rate) / new.peak_of(rate)
    if bound == "memory":
        return time_ps * known.memory_bandwidth_Bps / new.memory_bandwidth_Bps
    return time_ps


def _rate_of(operator: Operator) -> str:
    """Return the data type whose peak rate applies: all operators except products compute in fp32."""
    return operator.dtype if operator.kind in PRODUCTS else "fp32"
