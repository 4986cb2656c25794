"""From a time on one GPU to a time on another, by what bounds the operator (SimAI, NSDI 2025, section 4.2).

What compute bounds goes with the peak rate of its data type, what memory bounds with the bandwidth; what is all launch
and latency stays as it is.
"""

from inputs.units import PS_PER_S
from workload.compute.gpu import Gpu
from workload.compute.operators import PRODUCTS, Operator


def bound_of(operator: Operator, gpu: Gpu) -> str:
    """What takes the longest on a GPU at its full rates: "compute", "memory" or "latency".

    Raises:
        WorkloadError: the GPU does not know the data type.
    """
    count = operator.shape[0] if operator.kind == "copies" else 1
    times = {
        "compute": operator.flops / gpu.peak_of(_rate_of(operator)) * PS_PER_S,
        "memory": operator.bytes / gpu.memory_bandwidth_Bps * PS_PER_S,
        "latency": float(count * (gpu.launch_overhead_ps + gpu.memory_latency_ps)),
    }
    return max(times, key=lambda bound: times[bound])


def scaled_ps(time_ps: float, operator: Operator, known: Gpu, new: Gpu) -> float:
    """Picoseconds on GPU `new` of an operator that took time_ps on GPU `known`.

    Raises:
        WorkloadError: one of them does not know the data type.
    """
    bound = bound_of(operator, known)
    if bound == "compute":
        rate = _rate_of(operator)
        return time_ps * known.peak_of(rate) / new.peak_of(rate)
    if bound == "memory":
        return time_ps * known.memory_bandwidth_Bps / new.memory_bandwidth_Bps
    return time_ps


def _rate_of(operator: Operator) -> str:
    """The data type whose rate counts: all but products are done in fp32."""
    return operator.dtype if operator.kind in PRODUCTS else "fp32"
