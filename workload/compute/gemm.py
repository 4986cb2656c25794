"""Times of matrix multiplications on a GPU, dense and in groups of experts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.units import PS_PER_S
from nadi.workload.compute.gpu import Efficiencies, Gpu
from nadi.workload.compute.operators import (
    DTYPE_BYTES,
    EARLY_PRODUCT,
    EXPERT_CAST,
    FUSED_PRODUCT,
    UNQUANTISED_BYTES,
    Operator,
)

# Roofline of grouped products by the kernel that libraries run on a GPU's generation (`Gpu.experts`).
#
# All groups have equally many rows. As for dense products below, the time is a launch and a norm of work and memory
# traffic, and each kernel has its own tiles and traffic:
#
# - `tiles`: the best of `GROUP_TILES`, as tuned kernels of CUTLASS and Triton (Hopper).
# - `triton`: SGLang's Triton kernel without a tuned configuration (`get_default_config` of
#   `fused_moe_triton_config.py`): tiles of 16 x 32, whose loops wait for memory at each step of k, up to as many tokens
#   as experts; tiles of 64 x 64 beyond, which read so many operands from L2 that its bandwidth bounds them, and hide
#   little of the memory's time. The rows of a group are scattered over the activations, so reading them slows down
#   where those exceed L2. With a tuned configuration it is as fast as `tiles`.
# - `trtllm`: TensorRT-LLM's kernels for Blackwell as FlashInfer calls them without tuning (`selectDefaultTileN` of
#   `trtllm_fused_moe_kernel_launcher.cu`): a tile has half as many rows as the power of two above the rows of a group,
#   8 to 64. Each tile of rows passes over the whole matrix of the group, which comes from L2 only in part if it is
#   large.
#
# The numbers of `triton` are fitted to half of the experts in NVIDIA's table of A100, those of `trtllm` to half of
# those in the table of B200 (kernel-tables, which compares the other halves).

Float64 = NDArray[np.float64]
_RESULT_BYTES = 2  # Bytes per value of the result
_K_STEP = 64  # Number of elements of k that a thread block reads at a time

_TRITON_SMALL, _TRITON_LARGE = (16, 32), (64, 64)  # Rows and columns of Triton's tiles
_TRITON_BLOCKS = 8  # Blocks of 16 x 32 on an SM: three stages of 6 KiB each in 164 KiB of shared memory
_TRITON_STEP_LATENCIES = 1.18  # Memory latencies per step of k of a small tile
_TRITON_L2_BPS = 5.2e12
"""Bytes per second that the large tiles read from L2; A100's L2 has 5,120 bytes per clock, 7.2 TB/s (NVIDIA A100
architecture white paper)."""
_TRITON_MISS_COST = 1.19  # Further time of reading operands from L2, if all activations miss it
_TRITON_NORMS = (1.77, 1.07)  # Exponents of the norms of small and of large tiles
_TRITON_TUNED = {
    shape
    for hidden, widths in ((4096, (1792, 3584, 7168)), (6144, (2048, 4096)))
    for width in widths
    for shape in ((2 * width, hidden), (hidden, width))
}
"""Columns and lengths of the products of Mixtral 8x7B and 8x22B for which vLLM and SGLang have a configuration of A100
(configs/E=8,N=WIDTH,device_name=NVIDIA_A100-SXM4-80GB.json)."""
_MIXTRAL = 8  # Number of experts of Mixtral
_MAX_TOP_K = 8
"""Experts per token where there are 32 experts or more (DeepSeek-V3, Qwen3); a quarter of fewer experts (Mixtral, 2 of
8). An operator does not have this number; it determines Triton's tiles and the size of the activations."""

_TRTLLM_ROWS = (8, 64)  # Minimum and maximum of a tile's rows
_TRTLLM_COLUMNS = 128  # Columns of a tile
_TRTLLM_L2_SHARE = 0.37  # Share of L2 that keeps a group's matrix for the next tile of rows
_TRTLLM_L2_COST = 0.07  # Time of reading a byte from L2 again over that of reading it from memory
_TRTLLM_EFFICIENCY = 0.68  # Efficiency of these products over that of other products
_TRTLLM_NORM = 4.0  # Exponent of the norm


def triton(sizes: Float64, gpu: Gpu, _flops: float, memory_Bps: float, value_bytes: float) -> Float64:  # noqa: N803
    """Return float64[products]: the ps of Triton's kernel without the launch, NaN where its configuration is tuned.

    Args:
        sizes: The number of groups, and the rows of a group, columns and length of the sum of each product:
            float64[products, 4].
        gpu: The GPU that runs the work.
        _flops: Not used: reads of L2 or memory latencies bound this kernel.
        memory_Bps: The bytes per second that memory reaches.
        value_bytes: The bytes per value of the operands.
    """
    groups, m, n, k = sizes.T
    top_k = np.clip(groups / 4, 1, _MAX_TOP_K)
    # Rows per group up to the experts per token: no more tokens than experts, which selects the small tiles
    small = m <= top_k
    rows, columns = (np.where(small, one, other) for one, other in zip(_TRITON_SMALL, _TRITON_LARGE, strict=True))
    tiles = groups * np.ceil(m / rows) * np.ceil(n / columns)
    waves = np.ceil(tiles / (gpu.sms * _TRITON_BLOCKS))
    waits_ps = waves * np.ceil(k / _K_STEP) * _TRITON_STEP_LATENCIES * gpu.memory_latency_ps
    activation_bytes = groups * m * k * value_bytes / top_k
    misses = np.maximum(0, 1 - gpu.l2_bytes / np.maximum(activation_bytes, 1))
    read_bytes = tiles * k * (np.minimum(m, rows) + columns) * value_bytes
    reads_ps = read_bytes / _TRITON_L2_BPS * (1 + _TRITON_MISS_COST * misses) * PS_PER_S
    traffic_bytes = groups * (n * k + m * (n + k)) * value_bytes
    work_ps = np.where(small, waits_ps, reads_ps) + gpu.memory_latency_ps
    memory_ps = traffic_bytes / memory_Bps * PS_PER_S + gpu.memory_latency_ps
    norm = np.where(small, *_TRITON_NORMS)
    tuned = [shape in _TRITON_TUNED for shape in zip(n.tolist(), k.tolist(), strict=True)]
    return np.where(tuned & (groups <= _MIXTRAL), np.nan, (work_ps**norm + memory_ps**norm) ** (1 / norm))


def trtllm(sizes: Float64, gpu: Gpu, flops: float, memory_Bps: float, value_bytes: float) -> Float64:  # noqa: N803
    """Return float64[products]: the ps of TensorRT-LLM's kernel without the launch.

    Args:
        sizes: The number of groups, and the rows of a group, columns and length of the sum of each product:
            float64[products, 4].
        gpu: The GPU that runs the work.
        flops: The floating-point operations per second that the tensor cores of all SMs reach together.
        memory_Bps: The bytes per second that memory reaches.
        value_bytes: The bytes per value of the operands.
    """
    groups, m, n, k = sizes.T
    rows = trtllm_rows(m)
    passes = np.ceil(m / rows)
    tiles = groups * passes * np.ceil(n / _TRTLLM_COLUMNS)
    depth = np.ceil(k / _K_STEP) * _K_STEP
    tile_ps = 2 * rows * _TRTLLM_COLUMNS * depth / (flops * _TRTLLM_EFFICIENCY / gpu.sms) * PS_PER_S
    matrix_bytes = n * k * value_bytes
    misses = np.maximum(0, 1 - _TRTLLM_L2_SHARE * gpu.l2_bytes / np.maximum(matrix_bytes, 1))
    again = (passes - 1) * (misses + _TRTLLM_L2_COST * (1 - misses))
    traffic_bytes = groups * (matrix_bytes * (1 + again) + m * (n * _RESULT_BYTES + k * value_bytes))
    work_ps = np.ceil(tiles / gpu.sms) * (tile_ps + gpu.memory_latency_ps)
    memory_ps = traffic_bytes / memory_Bps * PS_PER_S + gpu.memory_latency_ps
    return (work_ps**_TRTLLM_NORM + memory_ps**_TRTLLM_NORM) ** (1 / _TRTLLM_NORM)


def trtllm_rows(m: Float64) -> Float64:
    """Return float64[products]: the number of rows of a tile of TensorRT-LLM's kernel.

    Args:
        m: The number of rows of a group of each product, float64[products].
    """
    return np.clip(2 ** np.ceil(np.log2(np.maximum(m, 1))) / 2, *_TRTLLM_ROWS)


KERNELS = {"triton": triton, "trtllm": trtllm}
"""Kernels by their name in a GPU's file; "tiles" is the kernel of dense products."""


# Roofline of matrix products (tiles, waves over the SMs, the loop over k, memory) and of memory-bound operators.
#
# A library divides the result into tiles, one per thread block. All SMs work on one wave of tiles at a time; the last
# wave takes as long as a full one (NVIDIA, Matrix Multiplication Background User's Guide, sections 4 and 5). With few
# tiles, the loop over k is split among several SMs, whose partial sums are then added. As in a library, the time is
# that of the best of a list of tiles and splits:
#
# > wave = 2 tile_m tile_n k / (peak of an SM x efficiency) + latency + exposed share of the writing of a tile
# > work = waves x wave + sums
# > time = launch + (work^3 + memory^3)^(1/3)
#
# where memory is a latency and the bytes of the matrices at the share of the bandwidth that products reach on this GPU
# (`Gpu.product_memory`). The exponent describes that work and memory overlap, though not completely. A tile is written
# at an SM's share of the bandwidth; `Gpu.exposed_write` is what the next tile does not hide: most of it on Ampere,
# where the same threads multiply and write, and little where kernels are persistent and write one tile while they
# multiply the next. The time of every tile and split is monotonic in m, n, k and batch, and so is the best.
#
# Results of 8-bit and 4-bit products are written in 16 bits.


TILES = ((128, 128), (64, 64))
"""Rows and columns of the result per thread block. Eight tiles of CUTLASS and cuBLAS (64 to 256 rows and columns) and
reads of L2 as a further bound fit NVIDIA's tables no better than these two (by 0.1 points)."""
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)  # Numbers of parts into which the loop over k may be split
GROUP_TILES = ((128, 128), (64, 128), (32, 128))  # Tiles of grouped products, whose loops are not split
FUSED_TILES = ((256, 256),)
"""Tiles of fused products, each on two SMs (cudnn-frontend, python/cudnn/discrete_grouped_gemm/*/api.py: mma_tiler_mn
and use_2cta_instrs)."""
_FUSED_STEP_BYTES = 128  # Bytes of an operand's row that fused products read at a time (the same kernels: 4 x 32)
_TWO_SMS = 2  # Number of SMs of a fused tile
OVERLAP = 3.0
"""Exponent of the norm that adds work and memory traffic; fitted with the numbers of the GPUs' files to NVIDIA's tables
of A100, H100 and B200 (kernel-tables), every second row of which was left out."""
_GROUP_EFFICIENCY = 0.72
"""Efficiency of grouped products over that of other products; fitted to layers of experts in NVIDIA's tables of H100,
as `OVERLAP`."""
_NARROW_EFFICIENCY = 0.91
"""Efficiency of products in 8 and 4 bits over that of 16 bits: 0.90 on H100 and 0.92 on B200, fitted as `OVERLAP`."""
_SUM_BYTES = 8  # Bytes of memory traffic per partial sum: one fp32 write and one fp32 read


def product_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the ps of a product, a kind that ends with gemm. Raises WorkloadError: no peak rate for its data type.

    Args:
        operator: The operator: its kind, shape and data type.
        gpu: The GPU that runs the work.
        efficiencies: The shares of the GPU's peak rates that its libraries reach, by class of operators.
    """
    return float(products_ps([operator], gpu, efficiencies)[0])


def products_ps(operators: Sequence[Operator], gpu: Gpu, efficiencies: Efficiencies) -> Float64:
    """Return float64[operators]: the times in ps of products of one kind and data type.

    The rows of a grouped product are divided evenly over the groups; uneven groups would take longer. Raises
    WorkloadError: the GPU has no rate for the data type.

    Args:
        operators: Operators of one kind and data type.
        gpu: The GPU that runs the work.
        efficiencies: The shares of the GPU's peak rates that its libraries reach, by class of operators.
    """
    kind, _, dtype = operators[0]
    if kind == "expert-gemm":
        alone = [Operator("gemm", operator.shape[1:], dtype) for operator in operators]
        counts = np.array([operator.shape[0] for operator in operators], np.float64)
        return counts * products_ps(alone, gpu, efficiencies)
    grouped = kind == "grouped-gemm"
    value_bytes = DTYPE_BYTES[dtype]
    flops = gpu.peak_of(dtype) * gpu.sustained * efficiencies.gemm
    flops *= _NARROW_EFFICIENCY if value_bytes < _RESULT_BYTES else 1.0
    memory_Bps = gpu.streaming_Bps(efficiencies.memory)  # noqa: N806 - bytes, not bits
    if not grouped:
        memory_Bps *= gpu.product_memory  # noqa: N806 - the same
    sizes = np.array([_dimensions(operator) for operator in operators], np.float64)
    # NaN where no grouped kernel of its own is known: the tiles below then give the time
    kernel_ps = np.full(len(sizes), np.nan)
    if grouped and gpu.experts in KERNELS:
        kernel_ps = gpu.launch_overhead_ps + KERNELS[gpu.experts](sizes, gpu, flops, memory_Bps, value_bytes)
    flops *= _GROUP_EFFICIENCY if grouped or kind == FUSED_PRODUCT else 1.0
    result_bytes = max(value_bytes, _RESULT_BYTES)
    fused = kind == FUSED_PRODUCT
    tiles = FUSED_TILES if fused else GROUP_TILES if grouped else TILES
    tilings = [(*tile, parts) for tile in tiles for parts in ((1,) if grouped or fused else SPLITS)]
    step = _FUSED_STEP_BYTES / value_bytes if fused else _K_STEP
    work_ps = _tiled_ps(sizes, np.array(tilings, np.float64), step, gpu, flops, memory_Bps, result_bytes).min(axis=1)
    moved_bytes = np.array([operator.bytes for operator in operators], np.float64)
    # `Operator.bytes` counts results in the operands' type; 8-bit products write batch x m x n values of 2 bytes
    moved_bytes += (result_bytes - value_bytes) * sizes[:, :3].prod(axis=1)
    memory_ps = moved_bytes / memory_Bps * PS_PER_S + gpu.memory_latency_ps
    times_ps = gpu.launch_overhead_ps + (work_ps**OVERLAP + memory_ps**OVERLAP) ** (1 / OVERLAP)
    # A product without rows, columns or sum is not launched
    return np.where(sizes.all(axis=1), np.where(np.isnan(kernel_ps), times_ps, kernel_ps), 0.0)


def _dimensions(operator: Operator) -> tuple[int, int, int, int]:
    """Return the number of products and the m, n, k of each; of a grouped product, those of its largest group."""
    if operator.kind in {"gemm", EARLY_PRODUCT}:
        return (1, *operator.shape)  # type: ignore[return-value]
    batch, m, n, k = operator.shape
    if operator.kind == "grouped-gemm":
        batch = min(batch, m)
        m = -(-m // max(batch, 1))
    return batch, m, n, k


def _tiled_ps(
    sizes: Float64,
    tilings: Float64,
    step: float,
    gpu: Gpu,
    flops: float,
    memory_Bps: float,  # noqa: N803 - bytes, not bits
    result_bytes: float,
) -> Float64:
    """Return float64[products, tilings]: times in ps with each tile and split."""
    # sizes: float64[products, 4], number of products, their rows, columns, and length of the sum; tilings:
    # float64[tilings, 3], rows and columns of a tile and parts of the loop; step: values of k that are read at a time;
    # flops, memory_Bps: operations and bytes per second that all SMs reach together; result_bytes: bytes per value of
    # the result.
    # Columns of products, float64[products, 1], meet rows of tilings, float64[tilings].
    batch, m, n, k = sizes.T[:, :, None]
    rows, columns, parts = tilings.T
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns) * parts
    # Every part of a split loop runs whole steps of k
    depth = np.ceil(k / (parts * step)) * step
    blocks = gpu.sms // np.where(rows == FUSED_TILES[0][0], _TWO_SMS, 1)
    tile_flops = flops / blocks * np.where(rows < TILES[0][0], gpu.small_tiles, 1.0)
    compute_ps = 2.0 * rows * columns * depth / tile_flops * PS_PER_S
    tile_bytes = np.minimum(rows, m) * np.minimum(columns, n) * result_bytes * np.minimum(tiles, blocks)
    write_ps = gpu.exposed_write * tile_bytes / memory_Bps * PS_PER_S
    sums_ps = _SUM_BYTES * parts * batch * m * n / memory_Bps * PS_PER_S
    sums_ps += gpu.launch_overhead_ps + gpu.split_latencies * gpu.memory_latency_ps
    # 4096 x 4096 in tiles of 128 x 128 are 1,024 tiles: on 132 SMs 8 waves, though the last has only 100
    waves = np.ceil(tiles / blocks)
    return waves * (compute_ps + gpu.memory_latency_ps + write_ps) + np.where(parts > 1, sums_ps, 0.0)


# Roofline of memory-bound operators: norm, softmax, element-wise, embedding, loss, routing, optimizer.
#
# > time = launches x launch overhead + latency + max(bytes / rate, operations / vector rate) rate = min(bandwidth x
#     efficiency, busy SMs x bytes in flight per SM / latency)
#
# By Little's law, an SM with 64 KiB of reads in flight moves 64 KiB per memory latency; so a few rows, which occupy as
# few SMs, do not saturate the bandwidth, and the largest block determines how long the SMs take. Small operators
# consist of launch and latency. Copies are sequential, each with its own launch and latency.


_IN_FLIGHT_BYTES = 64 << 10
"""Bytes in flight per SM: 2,048 threads with two reads of 16 bytes each, limited by registers."""
_VALUES_PER_BLOCK = 1024  # Number of values per thread block for operators without rows
_LAUNCHES = {"norm-backward": 2, "embedding-backward": 2, "cross-entropy": 3, "routing": 4}
"""Number of kernel launches of operators with several: a norm's weight gradients are summed by a second kernel, an
embedding's gradients are sorted first, a loss over parallel columns has a maximum, a sum and a gradient, and routing a
softmax, a top-k, counts and positions."""
_SINGLE_VALUES = 1.41
"""Values per clock and SM of a kernel of PyTorch that loads them one by one, as it converts data types while it loads
(ATen/native/cuda/MemoryAccess.cuh, LoadWithCast) or an operand is not contiguous: the issue of instructions limits it.
From 2^32 conversions of BF16 to FP32 in 11.10 ms, and of 2^30 in 2.77 ms, of a Blackwell GPU that converts 2^32 values
of FP32 to BF16 in 3.67 ms by a kernel that loads vectors (PaddlePaddle/Paddle#76988, column of torch), over 148 SMs of
1.856 GHz."""
_MAXIMUM_LAUNCHES = 4
"""Kernels of a cast that reads values twice: a zero, their maximum, the scale, the cast (Transformer Engine,
common/recipe/current_scaling.cu)."""


# Casts that write a transposed copy, too (Transformer Engine, common/transpose/cast_transpose.cu).
#
# A warp reads values of 2 bytes along rows, writes the cast along them and the transposed copy along columns. It moves
# fewer bytes than memory could. L2 moves sectors of 32 bytes: 1 / 16 per value read, 1 / 32 per value written. Another
# kernel is for numbers of rows that are no multiple of 32. It writes single bytes: 32 threads of a warp write every
# second byte of a row (1 / 16) and every fourth of a column (1 / 8), so that twice as many sectors move. That it takes
# twice as long is assumed, not measured. (By the cost that Transformer Engine chooses its kernels by, lines of 128
# bytes per access, it would be three times, and odd multiples of 32 and of 64 rows would cost more, too.)


_SECTORS_PER_CLOCK = 0.2
"""Sectors per clock of an SM: squares of 3,072 and of 4,096 values in FP16 that an H100 casts in 24.5 and 51.5 us, of
which a launch and a latency take 2.5 (Transformer Engine, pull request 101): 6.4 bytes per clock and SM."""
_SECTORS = 1 / 16 + 2 / 32  # Sectors per value
_EXPERT_SECTORS = (_SECTORS + 2 * _SECTORS) / 2
"""The same for an expert's tokens, whose number is filled up to a multiple of 16 only (Megatron-Core, fp8_utils.py,
get_fp8_align_size), so that it is a multiple of 32 as often as not."""


def _transposing_s(operator: Operator, gpu: Gpu) -> float:
    """Return the seconds of the pass of a cast that writes a transposed copy; 0 for other operators."""
    if operator.kind not in {"quantise", EXPERT_CAST} or not operator.shape[3]:
        return 0.0
    sectors = operator.shape[0] * (_EXPERT_SECTORS if operator.kind == EXPERT_CAST else _SECTORS)
    return sectors / (_SECTORS_PER_CLOCK * gpu.sms * gpu.clock_hz)


def streaming_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the ps of an operator that is not a product. Raises WorkloadError: the GPU has no rate for fp32.

    Args:
        operator: The operator: its kind, shape and data type.
        gpu: The GPU that runs the work.
        efficiencies: The shares of the GPU's peak rates that its libraries reach, by class of operators.
    """
    is_cast = operator.kind in {"quantise", EXPERT_CAST}
    if is_cast and gpu.any_layout:
        operator = operator._replace(shape=(*operator.shape[:3], 0))
    if not operator.bytes or (operator.kind == "transpose" and gpu.any_layout):
        return 0.0
    if operator.kind == "copies":
        count, values = operator.shape
        return count * streaming_ps(Operator("elementwise", (values, 1, 1), operator.dtype), gpu, efficiencies)
    efficiency = efficiencies.optimizer if operator.kind == "optimizer" else efficiencies.memory
    sm_rate = (
        _IN_FLIGHT_BYTES / (gpu.memory_latency_ps / PS_PER_S) if gpu.memory_latency_ps else gpu.memory_bandwidth_Bps
    )
    # By Little's law, each busy SM moves its bytes in flight once per memory latency
    busy = min(_full_blocks(operator), gpu.sms)
    rate = min(gpu.streaming_Bps(efficiency), busy * sm_rate)
    work_s = max(operator.bytes / rate, operator.flops / gpu.peak_of("fp32"))
    if transposing_s := _transposing_s(operator, gpu):
        maximum_s = operator.shape[0] * (operator.shape[1] - 1) * UNQUANTISED_BYTES / rate
        work_s = max(work_s, maximum_s + transposing_s)
    launches = _MAXIMUM_LAUNCHES if is_cast and operator.shape[1] > 1 else 1
    if operator.kind == "unvectorised":
        values, launches = operator.shape
        work_s = max(work_s, values * launches / (_SINGLE_VALUES * gpu.sms * gpu.clock_hz))
    return _LAUNCHES.get(operator.kind, launches) * gpu.launch_overhead_ps + gpu.memory_latency_ps + work_s * PS_PER_S


def _full_blocks(operator: Operator) -> float:
    """Return the bytes over those of the largest thread block, of a row or token, or of _VALUES_PER_BLOCK values."""
    if operator.kind in {"elementwise", "unvectorised", "dropout", "optimizer", "quantise", EXPERT_CAST, "transpose"}:
        return max(1.0, operator.shape[0] / _VALUES_PER_BLOCK)
    if operator.kind in {"permute", "embedding", "embedding-backward"}:
        return max(1.0, operator.shape[0] * operator.shape[1] / _VALUES_PER_BLOCK)
    return operator.shape[0]
