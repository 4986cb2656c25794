"""Roofline of fused attention: matrix products on tensor cores, concurrent exponentials, and blocks over the SMs.

FlashAttention gives each thread block some rows of queries and iterates over the keys. A query-key pair costs
2 (d + dv) tensor-core operations and one exponential; an SM computes 16 exponentials per clock (CUDA C++ Programming
Guide, throughput of arithmetic instructions). On A100 with heads of 128, exponentials take a quarter as long as the
products, on H100 half as long (FlashAttention-3, arXiv 2407.08608, section 3.1). The exponentials that an algorithm
does not hide add to the time:

    pair = 2 (d + dv) / (peak of an SM x reach x efficiency) + exposed / exponentials of an SM

A forward block reads its queries before its first product and writes its results after its last one. An SM's share of
the memory bandwidth bounds both, and other blocks hide only part of them, so that short sequences are slow.

With a causal mask, blocks of keys beyond the diagonal are skipped, blocks on the diagonal are computed completely, and
the longest blocks start first. With few queries (decoding), the queries of the heads that share keys are rows of one
block, and the keys are split among SMs whose partial results are combined (Flash-Decoding).
"""

from typing import NamedTuple

import numpy as np

from inputs.units import PS_PER_S
from workload.compute.efficiency import Efficiencies
from workload.compute.gpu import Gpu
from workload.compute.operators import DTYPE_BYTES, OLD_ATTENTION, Operator


class AttentionAlgorithm(NamedTuple):
    """Parameters of a fused attention algorithm."""

    reach: float  # Share of the tensor-core peak that its instructions can reach, 0 to 1
    exposed: float  # Share of the exponentials that its products do not hide, 0 to 1
    start_ps: int  # Further time in ps to start a forward block
    # Rate of the backward pass relative to the forward pass's model. All operands of its five products pass through
    # shared memory: FlashAttention-2 reaches 63 % of A100's peak (arXiv 2307.08691, section 4.1, heads of 128), where
    # five products and one exponential would reach 83 %.
    backward: float = 0.76


_FLASH_1 = AttentionAlgorithm(0.55, 1.0, 0)
ALGORITHMS = {
    "flash-1": _FLASH_1,
    "triton": _FLASH_1._replace(backward=0.51),
    "flash-attention-1": _FLASH_1,
    "flash-attention-2": AttentionAlgorithm(1.0, 1.0, 0),
    "flash-attention-3": AttentionAlgorithm(1.0, 1.0, 0),
    "flash-attention-4": AttentionAlgorithm(1.0, 0.6, 1_500_000),
}
"""Fused attention algorithms. 1: 25 to 40 % of A100's peak (arXiv 2307.08691, section 1). 2 on Ampere, and 3 on Hopper:
with fully exposed exponentials both match their papers' figures at one efficiency (tests/workload/
test_compute_published.py). 4 on Blackwell: polynomials replace part of the exponentials; both numbers are fitted to
prompts in NVIDIA's tables of B200 (aiconfigurator-core 0.12.0), 700 rows, which reach 1,200 to 1,300 of 2,250 TFLOP/s
at 16,384 tokens; its authors measured about 1,600. flash-1 and triton are the algorithms of old software: triton is
the version of FlashAttention-1 with which MPT was trained, and FlashAttention-2 is 1.3 to 2.5 times as fast (arXiv
2307.08691, section 4.1). Its backward share of 0.51 makes it 2.2 times as slow, forward and backward together, and is
fitted to three steps: MPT-1B, 7B and 13B on 128 A100 (scripts/validation.py fsdp-2023)."""
_EXPOSED_ENDS = 0.33
"""Share of a forward block's reading of queries and writing of results that other blocks do not hide. 0.5 to 0.7 fit
prompts of A100, and 1 prompts of H100 in NVIDIA's tables; 0.33 is about the largest share that keeps FlashAttention-3's
published rates (arXiv 2407.08608, figure 5) from 2,048 tokens on within 10 %."""
_BACKWARD_PRODUCTS = 2.5
"""Products of the backward pass over those of the forward pass: five to two (arXiv 2307.08691, section 3.1)."""
_ROWS, _DECODING_ROWS, _KEYS = 128, 64, 128
"""Query rows of a block, query rows of a block in decoding, and keys of a block."""
_SPLITS = (1, 2, 4, 8, 16, 32)  # Numbers of parts into which decoding may split the keys
_COMBINE_BYTES = 8  # Bytes of memory traffic per value of a partial result: one fp32 write and one fp32 read
_EXTRA_LAUNCHES = 2
"""Kernel launches of the backward pass that do not overlap with its main kernel; zeroing the gradient overlaps."""
_FP32_BYTES = 4


def attention_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the time in ps of attention, attention-backward or latent-attention.

    In latent attention all heads share one key, part of which is the value, so memory reads serve both. Raises
    WorkloadError: the GPU has no rate for the data type.
    """
    if not operator.flops:
        return 0.0
    for prefix in OLD_ATTENTION:
        if operator.kind.startswith(prefix):
            kind = operator.kind.removeprefix(f"{prefix}-")
            return attention_ps(operator._replace(kind=kind), _with_algorithm(gpu, prefix), efficiencies)
    moved_bytes = operator.bytes
    if operator.kind == "latent-attention":
        batch, heads, queries, keys, rank, rope_dim = operator.shape
        shape = (batch, heads, 1, queries, keys, rank + rope_dim, rank, 0)
        operator = Operator("attention", shape, operator.dtype)
    backward = operator.kind == "attention-backward"
    pair_ps = _pair_ps(operator, gpu, efficiencies, backward=backward)
    is_decoding = not backward and operator.shape[3] <= _DECODING_ROWS
    splits, rows = (_SPLITS, _DECODING_ROWS) if is_decoding else ((1,), _ROWS)
    ends, start_ps = (0.0, 0) if backward else (_EXPOSED_ENDS, ALGORITHMS[gpu.attention].start_ps)
    work_ps = min(
        _blocked_ps(operator, rows, parts, gpu, pair_ps, efficiencies, ends_in_pairs=ends, start_ps=start_ps)
        for parts in splits
    )
    memory_ps = moved_bytes / (gpu.memory_bandwidth_Bps * efficiencies.memory) * PS_PER_S + gpu.memory_latency_ps
    extras_ps = _backward_extras_ps(operator, gpu, efficiencies) if backward else 0.0
    return gpu.launch_overhead_ps + max(work_ps, memory_ps) + extras_ps


def _with_algorithm(gpu: Gpu, name: str) -> Gpu:
    return gpu.model_copy(update={"attention": name})


def _backward_extras_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the time in ps of the kernels that run before and after the main kernel of the backward pass."""
    # Before: the queries' gradient is zeroed in fp32, and the sum of output times output gradient is computed per row.
    # After: the queries' gradient is converted to the data type.
    batch, heads, _, queries, _, head_dim, value_dim, _ = operator.shape
    value_bytes = DTYPE_BYTES[operator.dtype]
    bytes_per_row = head_dim * (2 * _FP32_BYTES + value_bytes) + 2 * value_dim * value_bytes
    moved_bytes = batch * heads * queries * bytes_per_row
    return (
        moved_bytes / (gpu.memory_bandwidth_Bps * efficiencies.memory) * PS_PER_S
        + _EXTRA_LAUNCHES * gpu.launch_overhead_ps
    )


def _pair_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies, *, backward: bool) -> float:
    """Return the time in ps of one query-key pair on one SM."""
    algorithm = ALGORITHMS[gpu.attention]
    peak = gpu.peak_of(operator.dtype) / gpu.sms * algorithm.reach * efficiencies.attention
    head_dim, value_dim = operator.shape[5:7]
    product_ps = 2.0 * (head_dim + value_dim) / peak * PS_PER_S
    exponential_ps = algorithm.exposed / (gpu.special_functions * gpu.clock_hz) * PS_PER_S
    if backward:
        return (_BACKWARD_PRODUCTS * product_ps + exponential_ps) / algorithm.backward
    return product_ps + exponential_ps


def _blocked_ps(
    operator: Operator,
    block_rows: int,
    key_parts: int,
    gpu: Gpu,
    pair_ps: float,
    efficiencies: Efficiencies,
    *,
    ends_in_pairs: float,
    start_ps: int,
) -> float:
    """Return the time in ps with blocks of block_rows query rows and the keys split into key_parts."""
    # pair_ps: time of a query-key pair on an SM; ends_in_pairs: further work of a block, in pairs; start_ps: time to
    # start one.
    batch, heads, kv_heads, queries, keys, head_dim, value_dim, causal = operator.shape
    group = max(heads // max(kv_heads, 1), 1) if block_rows == _DECODING_ROWS else 1
    own_rows = queries * group
    pairs = _pairs_of_blocks(own_rows, group, queries, keys, block_rows, causal=bool(causal)) / key_parts
    blocks = batch * -(-heads // group)
    units = blocks * len(pairs) * key_parts
    waves = -(-units // gpu.sms)
    longest = float(pairs.max())
    mean_pairs = blocks * float(pairs.sum()) * key_parts / gpu.sms
    pairs_of_busiest_sm = max(mean_pairs, longest) if causal else waves * longest
    memory_Bps = gpu.memory_bandwidth_Bps * efficiencies.memory  # noqa: N806 - bytes, not bits
    end_bytes = min(own_rows, block_rows) * (head_dim + value_dim) * DTYPE_BYTES[operator.dtype]
    block_ps = 2.0 * gpu.memory_latency_ps + start_ps
    block_ps += ends_in_pairs * end_bytes * min(units, gpu.sms) / memory_Bps * PS_PER_S
    combine_ps = 0.0
    if key_parts > 1:
        moved_bytes = _COMBINE_BYTES * key_parts * batch * heads * queries * value_dim
        combine_ps = moved_bytes / memory_Bps * PS_PER_S + gpu.launch_overhead_ps
    return pairs_of_busiest_sm * pair_ps + waves * block_ps + combine_ps


def _pairs_of_blocks(
    row_count: int, heads_per_block: int, queries: int, keys: int, block_rows: int, *, causal: bool
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return float64[blocks]: the number of pairs that each block computes, padding included."""
    # row_count: rows of queries and heads; block_rows: rows per block; heads_per_block: query heads that share keys in
    # one.
    blocks = -(-row_count // block_rows)
    padded = -(-keys // _KEYS) * _KEYS
    if not causal:
        return np.full(blocks, float(block_rows * padded))
    last_query = np.minimum(np.arange(1, blocks + 1) * block_rows, row_count) // heads_per_block
    visible = np.clip(last_query + keys - queries, 0, keys)
    return block_rows * np.minimum(-(-visible // _KEYS) * _KEYS, padded).astype(np.float64)
