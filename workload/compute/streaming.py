"""Roofline of memory-bound operators: norm, softmax, element-wise, embedding, loss, routing, optimizer.

    time = launches x launch overhead + latency + max(bytes / rate, operations / vector rate)
    rate = min(bandwidth x efficiency, busy SMs x bytes in flight per SM / latency)

By Little's law, an SM with 64 KiB of reads in flight moves 64 KiB per memory latency; so a few rows, which occupy as
few SMs, do not saturate the bandwidth, and the largest block determines how long the SMs take. Small operators consist
of launch and latency. Copies are sequential, each with its own launch and latency.
"""

from nadi.inputs.units import PS_PER_S
from nadi.workload.compute.efficiency import Efficiencies
from nadi.workload.compute.gpu import Gpu
from nadi.workload.compute.operators import Operator

_IN_FLIGHT_BYTES = 64 << 10
"""Bytes in flight per SM: 2,048 threads with two reads of 16 bytes each, limited by registers."""
_VALUES_PER_BLOCK = 1024  # Number of values per thread block for operators without rows
_LAUNCHES = {"norm-backward": 2, "embedding-backward": 2, "cross-entropy": 3, "routing": 4}
"""Number of kernel launches of operators with several: a norm's weight gradients are summed by a second kernel, an
embedding's gradients are sorted first, a loss over parallel columns has a maximum, a sum and a gradient, and routing a
softmax, a top-k, counts and positions."""


def streaming_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the ps of an operator that is not a product; WorkloadError: the GPU has no rate for fp32."""
    if not operator.bytes:
        return 0.0
    if operator.kind == "copies":
        count, values = operator.shape
        return count * streaming_ps(Operator("elementwise", (values, 1, 1), operator.dtype), gpu, efficiencies)
    efficiency = efficiencies.optimizer if operator.kind == "optimizer" else efficiencies.memory
    sm_rate = (
        _IN_FLIGHT_BYTES / (gpu.memory_latency_ps / PS_PER_S) if gpu.memory_latency_ps else gpu.memory_bandwidth_Bps
    )
    busy = min(_full_blocks(operator), gpu.sms)
    rate = min(gpu.memory_bandwidth_Bps * efficiency, busy * sm_rate)
    work_ps = max(operator.bytes / rate, operator.flops / gpu.peak_of("fp32")) * PS_PER_S
    return _LAUNCHES.get(operator.kind, 1) * gpu.launch_overhead_ps + gpu.memory_latency_ps + work_ps


def _full_blocks(operator: Operator) -> float:
    """Return the bytes over those of the largest thread block, of a row or token, or of _VALUES_PER_BLOCK values."""
    if operator.kind in {"elementwise", "dropout", "optimizer"}:
        return max(1.0, operator.shape[0] / _VALUES_PER_BLOCK)
    if operator.kind in {"permute", "embedding", "embedding-backward"}:
        return max(1.0, operator.shape[0] * operator.shape[1] / _VALUES_PER_BLOCK)
    return operator.shape[0]
