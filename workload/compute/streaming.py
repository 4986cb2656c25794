"""How long operators take that memory bounds: norm, softmax, element-wise, embedding, loss, routing, optimizer.

    time = launches x launch overhead + latency + max(bytes / rate, operations / vector rate)
    rate = min(bandwidth x efficiency, busy SMs x what one SM can have under way / latency)

By Little's law an SM that has 64 KiB of reads under way moves 64 KiB in each latency of memory; so a few rows, which
are on as few SMs, do not fill the bandwidth. Small operators are all launch and latency. Copies are one after another,
each with a launch and a latency of its own.
"""

from inputs.units import PS_PER_S
from workload.compute.efficiency import Efficiencies
from workload.compute.gpu import Gpu
from workload.compute.operators import Operator

_IN_FLIGHT_BYTES = 64 << 10
"""Of one SM: 2,048 threads with two reads of 16 bytes each, its limit of registers."""
_VALUES_OF_A_BLOCK = 1024
"""That one thread block does where values do not belong to rows."""
_LAUNCHES = {"norm-backward": 2, "embedding-backward": 2, "cross-entropy": 3, "routing": 4}
"""Of an operator, where these are several: gradients of a norm's weights are summed up by a second one, those of
an embedding are sorted first, a loss over parallel columns has a maximum, a sum and a gradient, routing a softmax, a
top-k, counts and places."""


def streaming_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Picoseconds of an operator that is no product.

    Raises:
        WorkloadError: never for a GPU that knows fp32.
    """
    if not operator.bytes:
        return 0.0
    if operator.kind == "copies":
        count, values = operator.shape
        return count * streaming_ps(Operator("elementwise", (values, 1, 1), operator.dtype), gpu, efficiencies)
    efficiency = efficiencies.optimizer if operator.kind == "optimizer" else efficiencies.memory
    of_an_sm = (
        _IN_FLIGHT_BYTES / (gpu.memory_latency_ps / PS_PER_S) if gpu.memory_latency_ps else gpu.memory_bandwidth_Bps
    )
    busy = min(_blocks(operator), gpu.sms)
    rate = min(gpu.memory_bandwidth_Bps * efficiency, busy * of_an_sm)
    work_ps = max(operator.bytes / rate, operator.flops / gpu.peak_of("fp32")) * PS_PER_S
    return _LAUNCHES.get(operator.kind, 1) * gpu.launch_overhead_ps + gpu.memory_latency_ps + work_ps


def _blocks(operator: Operator) -> int:
    """Thread blocks: one for each row or token; else one for so many values."""
    if operator.kind in {"elementwise", "dropout", "optimizer"}:
        return -(-operator.shape[0] // _VALUES_OF_A_BLOCK)
    if operator.kind in {"permute", "embedding", "embedding-backward"}:
        return -(-operator.shape[0] * operator.shape[1] // _VALUES_OF_A_BLOCK)
    return operator.shape[0]
