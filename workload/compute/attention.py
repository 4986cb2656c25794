"""How long fused attention takes: products on tensor cores, exponentials beside them, blocks over the SMs.

FlashAttention gives each thread block some rows of queries and goes over the keys. A pair of query and key costs
2 (d + dv) operations of tensor cores and one exponential, of which an SM does 16 in a clock (CUDA C++ Programming
Guide, throughput of arithmetic instructions). On A100 with heads of 128 the exponentials take a quarter as long as the
products, on H100 half as long (FlashAttention-3, arXiv 2407.08608, section 3.1), and what an algorithm does not hide
of them adds up:

    pair = 2 (d + dv) / (peak of an SM x reach x efficiency) + exposed / exponentials of an SM

With a causal mask blocks of keys beyond the diagonal are left out, those on it are worked out whole, and the longest
blocks go first. Where there are few queries (decoding) those of the heads that share keys are rows of one block, the
keys are split among SMs and the parts combined (Flash-Decoding).
"""

from typing import NamedTuple

import numpy as np

from inputs.units import PS_PER_S
from workload.compute.efficiency import Efficiencies
from workload.compute.gpu import Gpu
from workload.compute.operators import DTYPE_BYTES, Operator


class AttentionAlgorithm(NamedTuple):
    """A fused attention.

    Attributes:
        reach: share of the peak that its instructions have.
        exposed: share of the exponentials that its products do not hide.
    """

    reach: float
    exposed: float


ALGORITHMS = {
    "flash-attention-1": AttentionAlgorithm(0.55, 1.0),
    "flash-attention-2": AttentionAlgorithm(1.0, 1.0),
    "flash-attention-3": AttentionAlgorithm(1.0, 1.0),
    "flash-attention-4": AttentionAlgorithm(1.0, 0.3),
}
"""1: 25 to 40 % of A100's peak (arXiv 2307.08691, section 1). 2 on Ampere, and 3 on Hopper: with exponentials in full
both fit their papers' figures at one efficiency, see tests/workload/test_compute_published.py. 4 on Blackwell: some
1,600 of 2,250 TFLOP/s, as it does a part of the exponentials by polynomials."""
_BACKWARD_PRODUCTS = 2.5
"""Five products in place of two (arXiv 2307.08691, section 3.1)."""
_BACKWARD_REACH = 0.76
"""Of what the forward pass reaches with these: 63 % of A100's peak (the same, section 4.1, heads of 128) where five
products and one exponential would have 83 %. All operands of the five go through shared memory."""
_ROWS, _ROWS_OF_FEW, _KEYS = 128, 64, 128
"""Rows of a block, those where there are no more queries than these, and keys of a block."""
_SPLITS = (1, 2, 4, 8, 16, 32)
_COMBINE_BYTES = 8
"""Of each value of a part: written and read in fp32."""
_EXTRA_LAUNCHES = 2
"""Launches beside the backward pass' own that do not overlap with it; setting to zero does."""
_FP32_BYTES = 4


def attention_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Picoseconds of attention, attention-backward or latent-attention.

    The last is attention whose heads all share one key, of which a part is the value: what is read once is used twice.

    Raises:
        WorkloadError: the GPU does not know the data type.
    """
    if not operator.flops:
        return 0.0
    moved_bytes = operator.bytes
    if operator.kind == "latent-attention":
        batch, heads, queries, keys, rank, rope_dim = operator.shape
        shape = (batch, heads, 1, queries, keys, rank + rope_dim, rank, 0)
        operator = Operator("attention", shape, operator.dtype)
    backward = operator.kind == "attention-backward"
    pair_ps = _pair_ps(operator, gpu, efficiencies, backward=backward)
    is_decoding = not backward and operator.shape[3] <= _ROWS_OF_FEW
    splits, rows = (_SPLITS, _ROWS_OF_FEW) if is_decoding else ((1,), _ROWS)
    work_ps = min(_blocked_ps(operator, rows, parts, gpu, pair_ps, efficiencies) for parts in splits)
    memory_ps = moved_bytes / (gpu.memory_bandwidth_Bps * efficiencies.memory) * PS_PER_S + gpu.memory_latency_ps
    around_ps = _around_backward_ps(operator, gpu, efficiencies) if backward else 0.0
    return gpu.launch_overhead_ps + max(work_ps, memory_ps) + around_ps


def _around_backward_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Picoseconds of what is launched beside the backward pass itself.

    Before it the gradient of queries is set to zero in fp32 and each row's sum of output times its gradient is taken;
    after it the gradient of queries is converted.
    """
    batch, heads, _, queries, _, head_dim, value_dim, _ = operator.shape
    value_bytes = DTYPE_BYTES[operator.dtype]
    of_a_row = head_dim * (2 * _FP32_BYTES + value_bytes) + 2 * value_dim * value_bytes
    moved_bytes = batch * heads * queries * of_a_row
    return (
        moved_bytes / (gpu.memory_bandwidth_Bps * efficiencies.memory) * PS_PER_S
        + _EXTRA_LAUNCHES * gpu.launch_overhead_ps
    )


def _pair_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies, *, backward: bool) -> float:
    """Picoseconds of a pair of query and key on one SM."""
    algorithm = ALGORITHMS[gpu.attention]
    peak = gpu.peak_of(operator.dtype) / gpu.sms * algorithm.reach * efficiencies.attention
    head_dim, value_dim = operator.shape[5:7]
    product_ps = 2.0 * (head_dim + value_dim) / peak * PS_PER_S
    exponential_ps = algorithm.exposed / (gpu.special_functions * gpu.clock_hz) * PS_PER_S
    if backward:
        return (_BACKWARD_PRODUCTS * product_ps + exponential_ps) / _BACKWARD_REACH
    return product_ps + exponential_ps


def _blocked_ps(
    operator: Operator, rows: int, parts: int, gpu: Gpu, pair_ps: float, efficiencies: Efficiencies
) -> float:
    """Picoseconds with so many rows a block, and the keys in so many parts."""
    batch, heads, kv_heads, queries, keys, _, value_dim, causal = operator.shape
    group = max(heads // max(kv_heads, 1), 1) if rows == _ROWS_OF_FEW else 1
    own_rows = queries * group
    pairs = _pairs_of_blocks(own_rows, group, queries, keys, rows, causal=bool(causal)) / parts
    blocks = batch * -(-heads // group)
    units = blocks * len(pairs) * parts
    waves = -(-units // gpu.sms)
    longest = float(pairs.max())
    evenly = blocks * float(pairs.sum()) * parts / gpu.sms
    busiest = max(evenly, longest) if causal else waves * longest
    combine_ps = 0.0
    if parts > 1:
        moved_bytes = _COMBINE_BYTES * parts * batch * heads * queries * value_dim
        combine_ps = moved_bytes / (gpu.memory_bandwidth_Bps * efficiencies.memory) * PS_PER_S + gpu.launch_overhead_ps
    return busiest * pair_ps + waves * 2 * gpu.memory_latency_ps + combine_ps


def _pairs_of_blocks(
    own_rows: int, group: int, queries: int, keys: int, rows: int, *, causal: bool
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """float64[blocks]: pairs that each block of rows works out, padding too."""
    blocks = -(-own_rows // rows)
    padded = -(-keys // _KEYS) * _KEYS
    if not causal:
        return np.full(blocks, float(rows * padded))
    last_query = np.minimum(np.arange(1, blocks + 1) * rows, own_rows) // group
    visible = np.clip(last_query + keys - queries, 0, keys)
    return rows * np.minimum(-(-visible // _KEYS) * _KEYS, padded).astype(np.float64)
