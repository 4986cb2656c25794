"""Roofline of grouped products by the kernel that libraries run on a GPU's generation (`Gpu.experts`).

All groups have equally many rows. As in `gemm`, the time is a launch and a norm of work and memory traffic, and each
kernel has its own tiles and traffic:

- `tiles`: the best of `gemm.GROUP_TILES`, as tuned kernels of CUTLASS and Triton (Hopper).
- `triton`: SGLang's Triton kernel without a tuned configuration (`get_default_config` of `fused_moe_triton_config.py`):
  tiles of 16 x 32, whose loops wait for memory at each step of k, up to as many tokens as experts; tiles of 64 x 64
  beyond, which read so many operands from L2 that its bandwidth bounds them, and hide little of the memory's time. The
  rows of a group are scattered over the activations, so reading them slows down where those exceed L2. With a tuned
  configuration it is as fast as `tiles`.
- `trtllm`: TensorRT-LLM's kernels for Blackwell as FlashInfer calls them without tuning (`selectDefaultTileN` of
  `trtllm_fused_moe_kernel_launcher.cu`): a tile has half as many rows as the power of two above the rows of a group, 8
  to 64. Each tile of rows passes over the whole matrix of the group, which comes from L2 only in part if it is large.

The numbers of `triton` are fitted to half of the experts in NVIDIA's table of A100, those of `trtllm` to half of those
in the table of B200 (scripts/kernel_tables.py compares the other halves).
"""

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.units import PS_PER_S
from nadi.workload.compute.gpu import Gpu

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
"""Kernels by their name in a GPU's file; "tiles" is in `gemm`."""
