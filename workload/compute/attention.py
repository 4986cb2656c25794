"""Roofline of fused attention: the kernels of each generation of GPUs, and the time of an operator.

Rows and keys of blocks are those of FlashAttention-3 (hopper/tile_size.h), and on Blackwell two blocks of 128 queries
at a time, of which only one fits into tensor memory if heads have more than 128 values. All other numbers but
`backward` are fitted to half of the prompts in NVIDIA's tables of A100, H100 and B200 (`decoding`, `decoding_rows`,
`single`, `row_start_ps` and `combine_ps`: of single tokens; kernel-tables).

The reach of FlashAttention-2 and the reach and start of -3 are a compromise between these calls of serving frameworks,
which read keys by pages, and the algorithms' own figures (arXiv 2307.08691, 2407.08608), which are met within 10 % from
1,024 tokens on (tests/workload/test_compute_published.py). Where blocks differ in length (causal masks), SMs wait at
the end. FlashAttention-2 starts blocks in the order of the grid, and two of them share an SM of A100 (heads of 128
values), which then takes twice as long for each: simulated so, SMs wait for 0.95 of a longest block. Fitted is 0.75;
published rates with and without a mask agree. The later algorithms start the longest blocks first: 0.25.

`narrow` of 4 is that of prompts of 4,096 tokens and more in FP8 in the same tables, 0.58 on B200 and 0.60 on GB300.

cudnn is what Transformer Engine runs in training on Blackwell. Its numbers are fitted to every second row without a
window of NVIDIA's benchmark of GB200 and GB300 (NVIDIA/cudnn-frontend of 2026-05, benchmark/sdpa_benchmark_training/
results, cuDNN 9.22; scripts/published_figures.toml, group attention-training); the other rows are met as well. Values
in 8 bits are those of MXFP8; with a scale per tensor forward passes are 5 % faster, backward passes 20 %.

Backward: 2 reaches 63 % of A100's peak (arXiv 2307.08691, section 4.1, heads of 128), where five products and the
exponentials would reach 77 %; 3 reaches 561 TFLOP/s (heads of 128, 16,384 tokens); 4 is assumed, near 3. flash-1 and
triton are the algorithms of old software: 1 reaches 25 to 40 % of A100's peak (arXiv 2307.08691, section 1), triton is
the version of FlashAttention-1 with which MPT was trained, and FlashAttention-2 is 1.3 to 2.5 times as fast (section
4.1). Its backward share of 0.51 makes it 2.2 times as slow, forward and backward together, and is fitted to three
steps: MPT-1B, 7B and 13B on 128 A100 (fsdp-2023). flash-2 is FlashAttention-2 on GPUs that came
after it, without their instructions: up to 335 TFLOP/s on H100, forward and backward together (arXiv 2307.08691,
section 4.1), from which its reach is set. splash is that of TPUs, assumed.
"""

import math
from typing import NamedTuple

import numpy as np

from nadi.inputs.units import PS_PER_S
from nadi.workload.compute.gemm import OVERLAP
from nadi.workload.compute.gpu import Efficiencies, Gpu
from nadi.workload.compute.operators import DTYPE_BYTES, OLD_ATTENTION, WINDOW_ATTENTION, Operator


class AttentionTile(NamedTuple):
    """Blocks of heads of one size."""

    max_values: float  # Largest head in values
    rows: int  # Query rows of the largest forward block
    keys: int  # Keys that a block reads at a time
    start: float = 1.0  # Share of start_ps
    decoding: float = 1.0  # The same in decoding


class AttentionAlgorithm(NamedTuple):
    """Parameters of a fused attention algorithm."""

    reach: float  # Share of the tensor-core peak that its instructions can reach, 0 to 1
    exposed: float  # Share of the exponentials that its products do not hide, 0 to 1
    start_ps: int  # Time in ps to start and end a forward block
    min_rows: int  # Query rows of the smallest forward block
    tiles: tuple[AttentionTile, ...]  # Blocks by size of the heads, the smallest heads first
    # Rate of the backward pass relative to the forward pass's model: all operands of its five products pass through
    # shared memory.
    backward: float
    setup_ps: int = 0  # Time in ps to set a forward kernel up, beyond the launch
    packs: bool = True  # Whether a block of a prompt may have queries of several heads
    tail: float = 0.0  # Share of the longest block of a causal mask for which the SMs wait at the end
    combine_ps: int = 2_800_000  # Time in ps to start the combination of partial results
    memory: float = 1.0  # Share of the bandwidth of streaming operators that its reads reach
    decoding_rows: int = 64  # Query rows of the smallest block in decoding
    # Share of a block's start in decoding that remains with one query of one head: such kernels use no tensor cores,
    # and several blocks fit on an SM.
    single: float = 0.4
    row_start_ps: int = 0  # Time in ps to read a query row of a decoding block and to write its result
    max_splits: int = 64  # Maximum number of parts into which decoding splits the keys
    # Heads per key in decoding up to which blocks have `few_rows` rows, 0 = no such kernel. Several blocks then read
    # the same keys, each further one `again` of them from memory and the rest from L2.
    few_heads: int = 0
    few_rows: int = 16
    again: float = 0.0
    few_keys: int = 0  # Keys per part up to which such blocks have any number of heads, if they fit on the SMs together
    paired: float = 1.0  # Time of a wave with blocks on both SMs of a TPC over that of a wave with at most one of them
    norm: float = OVERLAP  # Exponent of the norm that adds work and memory
    narrow: float = 1.0  # Share of the peak in 8 bits over that in 16 bits that its products reach
    first_start: float = 0.0  # Share of the first block's start on an SM that memory traffic does not hide
    backward_start_ps: int = 0  # Time in ps to start and end a backward block, 0 = two memory latencies
    wide_backward: float | None = None  # `backward` if queries have more than 128 values, None = the same
    # `narrow` of the backward pass: if queries have up to 128 values, and if they have more; None = as `narrow`
    narrow_backward: tuple[float, float] | None = None


_ALL_HEADS = (AttentionTile(math.inf, 128, 64),)
_FLASH_1 = AttentionAlgorithm(0.56, 1.0, 2_000_000, 128, _ALL_HEADS, 0.76)
ALGORITHMS = {
    "flash-1": _FLASH_1,
    "flash-2": AttentionAlgorithm(0.50, 0.6, 2_500_000, 64, _ALL_HEADS, 0.83, tail=0.75),
    "triton": _FLASH_1._replace(backward=0.51),
    "splash": AttentionAlgorithm(0.90, 0.6, 0, 128, _ALL_HEADS, 0.83),
    "flash-attention-1": _FLASH_1,
    "flash-attention-2": AttentionAlgorithm(
        *(0.90, 0.6, 2_500_000, 64),
        (AttentionTile(math.inf, 128, 64, 1.0, 1.24),),
        0.83,
        tail=0.75,
        combine_ps=8_900_000,
        memory=0.85,
        single=0.67,
    ),
    "flash-attention-3": AttentionAlgorithm(
        *(0.95, 0.6, 3_000_000, 64),
        (AttentionTile(128, 128, 128, 1.0, 0.8), AttentionTile(math.inf, 128, 80, 1.4, 1.2)),
        *(0.77, 0, True, 0.25),
        combine_ps=1_900_000,
        single=0.25,
    ),
    "flash-attention-4": AttentionAlgorithm(
        *(1.0, 0.8, 3_000_000, 64),
        (AttentionTile(128, 256, 128, 1.0, 0.44), AttentionTile(math.inf, 128, 128, 1.0, 0.76)),
        *(0.82, 1_200_000, False, 0.25),
        combine_ps=1_300_000,
        decoding_rows=16,
        single=1.0,
        row_start_ps=28_000,
        few_heads=32,
        again=0.5,
        narrow=0.6,
    ),
}
ALGORITHMS["cudnn"] = ALGORITHMS["flash-attention-4"]._replace(
    reach=1.147,
    exposed=0.49,
    start_ps=4_200_000,
    tail=0.27,
    setup_ps=0,
    narrow=0.85,
    backward=0.666,
    wide_backward=0.55,
    backward_start_ps=2_200_000,
    narrow_backward=(0.48, 0.72),
)
ALGORITHMS["composable-kernel"] = ALGORITHMS["flash-attention-2"]._replace(reach=0.56)
"""Fused attention algorithms: 2 on Ampere, 3 on Hopper, 4 on Blackwell. composable-kernel is 2 on CDNA 3, at the clock
that power leaves to its matrix instructions: 0.62 of the peak's, as of products (gpus/mi300x.toml). That is 600 TFLOP/s
with heads of 128; when MI300X came out, AMD showed 1.1 to 1.2 times H100's 370 (arXiv 2407.08608, section 4.1)."""


def _latent(name: str, reach: float, start_ps: int, keys: int, memory: float) -> AttentionAlgorithm:
    """Return a kernel of latent attention, whose heads are 4 times as large, beside a fused algorithm (name)."""
    return ALGORITHMS[name]._replace(
        reach=reach,
        start_ps=start_ps,
        tiles=(AttentionTile(math.inf, 64, keys),),
        setup_ps=0,
        memory=memory,
        decoding_rows=64,
        single=1.0,
        row_start_ps=0,
        norm=5.0,
        first_start=1.0,
    )


LATENT = {
    "flash-mla": _latent("flash-attention-3", 0.90, 6_000_000, 64, 1.06),
    "fmha-v2": _latent("flash-attention-2", 0.468, 1_700_000, 64, 0.85)._replace(max_splits=1, paired=1.41),
    "trtllm": _latent("flash-attention-4", 1.2, 6_100_000, 128, 0.82)._replace(few_keys=1024),
}
"""Kernels of latent attention, fitted to half of the rows of single tokens in NVIDIA's tables of H100, A100 and B200
(kernel-tables). flash-mla: FlashMLA, blocks of 64 heads. fmha-v2: TensorRT-LLM 1.0 on Ampere, which gives all keys of a
sequence and 64 heads to one block; a block takes 1.41 times as long if the other SM of its TPC has one, too, for an
unknown reason.
trtllm: TensorRT-LLM on Blackwell, blocks of 16 heads up to 32 heads, and with more while each part of the keys has at
most 1,024 (`selectMlaGenerationKernel` in trtllmGenKernels/fmha/fmhaKernels.h)."""


# Roofline of fused attention: matrix products on tensor cores, concurrent exponentials, and blocks over the SMs.
#
# FlashAttention gives each thread block some rows of queries and iterates over the keys. A query-key pair costs 2 (d +
# dv) tensor-core operations and one exponential; an SM computes 16 exponentials per clock (CUDA C++ Programming Guide,
# throughput of arithmetic instructions). On A100 with heads of 128, exponentials take a quarter as long as the
# products, on H100 half as long (FlashAttention-3, arXiv 2407.08608, section 3.1). The exponentials that an algorithm
# does not hide add to the time:
#
# - time of a pair: 2 (d + dv) / (peak of an SM x reach x efficiency) + exposed / exponentials of an SM,
# - work: waves x start of a block + pairs of the busiest SM x time of a pair,
# - time: launch + (work^3 + memory^3)^(1/3).
#
# A block starts with the reading of its queries and first keys and ends with the writing of its results, which no other
# block of its SM hides. So short sequences are slow. The exponent is that of matrix products (`gemm.OVERLAP`).
#
# Rows and keys of a block depend on the size of the heads, as registers and tensor memory limit it. With a causal mask,
# blocks of keys beyond the diagonal are skipped, and blocks on the diagonal are computed completely. From
# FlashAttention-3 on the longest blocks start first; before, in the order of the grid, so that SMs wait for the last of
# them. Short sequences have blocks of fewer rows. The queries of the heads that share keys may be rows of one block.
# With few queries (decoding), the keys are split among SMs whose partial results are combined (Flash-Decoding), unless
# the kernel cannot (`max_splits`). Some kernels spread heads that share keys over several blocks (`few_rows`), which
# read the same keys. `ALGORITHMS` has the numbers of each kernel.


_WIDE_VALUES = 128  # Values of a query above which the backward pass of cuDNN is slower
_BACKWARD_TILE = AttentionTile(np.inf, 128, 64)  # Blocks of the backward pass, for heads of any size
_BACKWARD_PRODUCTS = 2.5
"""Products of the backward pass over those of the forward pass: five to two (arXiv 2307.08691, section 3.1)."""
_SPLITS = (1, 2, 4, 8, 16, 32, 64)  # Numbers of parts into which decoding may split the keys
_MAX_DECODING_QUERIES = 64  # Number of queries up to which keys are split
_COMBINE_BYTES = 8  # Bytes of memory traffic per value of a partial result: one fp32 write and one fp32 read
_EXTRA_LAUNCHES = 2
"""Kernel launches of the backward pass that do not overlap with its main kernel; zeroing the gradient overlaps."""
_FP32_BYTES = 4


def attention_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the time in ps of attention, attention-backward or latent-attention.

    In latent attention all heads share one key, part of which is the value, so memory reads serve both. Raises
    WorkloadError: the GPU has no rate for the data type.

    Args:
        operator: The operator: its kind, shape and data type.
        gpu: The GPU that runs the work.
        efficiencies: The shares of the GPU's peak rates that its libraries reach, by class of operators.
    """
    if not operator.flops:
        return 0.0
    window = 0
    if operator.kind.startswith(WINDOW_ATTENTION):
        # cuDNN's backward pass in 8 bits computes all pairs of a causal mask
        is_whole = operator.kind.endswith("backward") and DTYPE_BYTES[operator.dtype] == 1
        window = 0 if is_whole else operator.shape[7]
        kind = operator.kind.removeprefix("window-")
        operator = Operator(kind, (*operator.shape[:7], 1), operator.dtype)
    for prefix in OLD_ATTENTION:
        if operator.kind.startswith(prefix):
            kind = operator.kind.removeprefix(f"{prefix}-")
            if (prefix, gpu.attention) != ("flash-2", "flash-attention-2"):
                gpu = gpu.model_copy(update={"attention": prefix})
            return attention_ps(operator._replace(kind=kind), gpu, efficiencies)
    is_backward = operator.kind == "attention-backward"
    algorithm = ALGORITHMS[gpu.training_attention or gpu.attention if is_backward else gpu.attention]
    moved_bytes: float = operator.bytes
    if operator.kind == "latent-attention":
        algorithm = LATENT[gpu.latent_attention]
        batch, heads, queries, keys, rank, rope_dim = operator.shape
        # All heads share one key of rank + rope_dim values, the first `rank` of which are the value; there is no mask
        operator = Operator("attention", (batch, heads, 1, queries, keys, rank + rope_dim, rank, 0), operator.dtype)
    extras_ps = 0.0
    if is_backward:
        is_wide = operator.shape[5] > _WIDE_VALUES
        backward = algorithm.wide_backward if is_wide and algorithm.wide_backward else algorithm.backward
        narrow = algorithm.narrow_backward[is_wide] if algorithm.narrow_backward else algorithm.narrow
        algorithm = algorithm._replace(
            backward=backward,
            narrow=narrow,
            start_ps=algorithm.backward_start_ps or 2 * gpu.memory_latency_ps,
            setup_ps=0,
            min_rows=_BACKWARD_TILE.rows,
            tiles=(_BACKWARD_TILE,),
            tail=0.0,
        )
        extras_ps = _backward_extras_ps(operator, gpu, efficiencies)
    batch, heads, kv_heads, queries, keys, head_dim = operator.shape[:6]
    group = max(heads // max(kv_heads, 1), 1)
    if queries == 1 and _has_few_rows(operator, group, gpu, algorithm):
        further_blocks = -(-group // algorithm.few_rows) - 1
        group = min(group, algorithm.few_rows)
        algorithm = algorithm._replace(decoding_rows=algorithm.few_rows)
        key_bytes = batch * kv_heads * keys * head_dim * DTYPE_BYTES[operator.dtype]
        moved_bytes += algorithm.again * further_blocks * key_bytes
    memory_Bps = gpu.streaming_Bps(efficiencies.memory) * algorithm.memory  # noqa: N806 - bytes, not bits
    memory_ps = moved_bytes / memory_Bps * PS_PER_S + gpu.memory_latency_ps
    pair_ps = _pair_ps(operator, gpu, algorithm, efficiencies)
    splits = [parts for parts in _SPLITS if parts <= algorithm.max_splits] if queries <= _MAX_DECODING_QUERIES else [1]
    blocked_ps = min(
        _blocked_ps(operator, window, block_heads, parts, gpu, algorithm, pair_ps, memory_Bps, memory_ps)
        for block_heads in {1, group if algorithm.packs or queries == 1 else 1}
        for parts in splits
    )
    return gpu.launch_overhead_ps + algorithm.setup_ps + blocked_ps + extras_ps


def _has_few_rows(operator: Operator, group: int, gpu: Gpu, algorithm: AttentionAlgorithm) -> bool:
    """Return whether decoding with `group` heads per key uses blocks of the algorithm's `few_rows` rows."""
    if group <= algorithm.few_heads:
        return True
    batch, kv_heads, keys = operator.shape[0], operator.shape[2], operator.shape[4]
    blocks = batch * kv_heads * -(-group // algorithm.few_rows)
    # 8 blocks on 148 SMs divide the keys among 18 SMs each: of 16,384 keys a part has 911
    return blocks <= gpu.sms and -(-keys // (gpu.sms // blocks)) <= algorithm.few_keys


def _waves(blocks: int, sms: int, paired: float) -> float:
    """Return the number of waves of blocks over the SMs, where `paired` is the time of one with busy pairs of SMs."""
    full, rest = divmod(blocks, sms)
    # With more blocks than half of the SMs, both SMs of some TPC have one
    return full * paired + (0 if not rest else paired if 2 * rest > sms else 1)


def _backward_extras_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the time in ps of the kernels that run before and after the main kernel of the backward pass."""
    # Before: the queries' gradient is zeroed in fp32, and the sum of output times output gradient is computed per row.
    # After: the queries' gradient is converted to the data type.
    batch, heads, _, queries, _, head_dim, value_dim, _ = operator.shape
    value_bytes = DTYPE_BYTES[operator.dtype]
    # fp32 zeros are written; fp32 sums are read and written in the data type; output and its gradient are read
    bytes_per_row = head_dim * (2 * _FP32_BYTES + value_bytes) + 2 * value_dim * value_bytes
    moved_bytes = batch * heads * queries * bytes_per_row
    return moved_bytes / gpu.streaming_Bps(efficiencies.memory) * PS_PER_S + _EXTRA_LAUNCHES * gpu.launch_overhead_ps


def _pair_ps(operator: Operator, gpu: Gpu, algorithm: AttentionAlgorithm, efficiencies: Efficiencies) -> float:
    """Return the time in ps of one query-key pair on one SM."""
    peak = gpu.peak_of(operator.dtype) / gpu.sms * algorithm.reach * efficiencies.attention
    peak *= algorithm.narrow if DTYPE_BYTES[operator.dtype] == 1 else 1.0
    head_dim, value_dim = operator.shape[5:7]
    product_ps = 2.0 * (head_dim + value_dim) / peak * PS_PER_S
    exponential_ps = algorithm.exposed / (gpu.special_functions * gpu.clock_hz) * PS_PER_S
    if operator.kind == "attention-backward":
        return (_BACKWARD_PRODUCTS * product_ps + exponential_ps) / algorithm.backward
    return product_ps + exponential_ps


def _blocked_ps(
    operator: Operator,
    window: int,
    block_heads: int,
    key_parts: int,
    gpu: Gpu,
    algorithm: AttentionAlgorithm,
    pair_ps: float,
    memory_Bps: float,  # noqa: N803 - bytes, not bits
    memory_ps: float,
) -> float:
    """Return the time in ps with the queries of block_heads heads in a block and the keys in key_parts."""
    # window: last keys that a query sees, 0 = all; pair_ps: time of a query-key pair on an SM; memory_Bps: bytes per
    # second of the memory; memory_ps: time in ps to move all bytes at this rate.
    batch, heads, _, queries, _, _, value_dim, causal = operator.shape
    tile = next(tile for tile in algorithm.tiles if value_dim <= tile.max_values)
    own_rows = queries * block_heads
    min_rows = algorithm.decoding_rows if queries == 1 else algorithm.min_rows
    # 5 queries of 4 heads are 20 rows, in a block of 32 if the kernel has blocks so small
    block_rows = min(max(1 << (own_rows - 1).bit_length(), min_rows), tile.rows)
    pairs = _pairs_of_blocks(operator, window, block_heads, block_rows, tile.keys, key_parts)
    blocks = batch * -(-heads // block_heads) * key_parts
    waves = _waves(blocks * len(pairs), gpu.sms, algorithm.paired)
    longest = float(pairs.max())
    mean_pairs = blocks * float(pairs.sum()) / gpu.sms
    tail = algorithm.tail if queries > 1 else 0.0
    # With a mask, blocks have unequal lengths: an SM does the mean and waits for part of the longest. Without one all
    # are equal, and a last wave of few blocks takes as long as a full one.
    pairs_of_busiest_sm = max(mean_pairs + tail * longest, longest) if causal else waves * longest
    start_ps = algorithm.start_ps * tile.start
    if queries == 1:
        start_ps = algorithm.start_ps * tile.decoding * (algorithm.single if own_rows == 1 else 1.0)
        start_ps += algorithm.row_start_ps * own_rows
    combine_ps = 0.0
    if key_parts > 1:
        moved_bytes = _COMBINE_BYTES * key_parts * batch * heads * queries * value_dim
        combine_ps = moved_bytes / memory_Bps * PS_PER_S + algorithm.combine_ps
    first_ps = algorithm.first_start * start_ps
    work_ps = pairs_of_busiest_sm * pair_ps + waves * start_ps - first_ps
    both_ps = (work_ps**algorithm.norm + memory_ps**algorithm.norm) ** (1 / algorithm.norm)
    return first_ps + both_ps + combine_ps


def _pairs_of_blocks(
    operator: Operator, window: int, block_heads: int, block_rows: int, block_keys: int, key_parts: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return float64[blocks]: the number of pairs that each block of one part of the keys computes, with padding."""
    # window: last keys that a query sees, 0 = all; block_heads: query heads that share keys in a block; block_rows:
    # rows per block; block_keys: keys at a time.
    queries, keys, causal = operator.shape[3], operator.shape[4], operator.shape[7]
    blocks = -(-queries * block_heads // block_rows)
    # The last query of a block sees the most keys: the block computes whole blocks of keys up to it
    last_query = np.minimum(np.arange(1, blocks + 1) * block_rows, queries * block_heads) // block_heads
    # The mask ends at the last key: of 3 queries with 10 keys, the first sees 8, the last all 10
    visible = np.clip(last_query + keys - queries, 0, keys) if causal else np.full(blocks, keys)
    seen = -(-visible // (key_parts * block_keys))
    if window:  # the first query of a block sees the first keys
        first_query = np.arange(blocks) * block_rows // block_heads
        seen = seen - np.maximum(first_query + keys - queries + 1 - window, 0) // block_keys
    return (block_rows * block_keys * seen).astype(np.float64)
