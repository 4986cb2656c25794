"""Roofline of matrix products: tiles, waves of tiles over the SMs, the loop over k, and memory traffic.

A library divides the result into tiles, one per thread block. All SMs work on one wave of tiles at a time; the last
wave takes as long as a full one (NVIDIA, Matrix Multiplication Background User's Guide, sections 4 and 5). With few
tiles, the loop over k is split among several SMs, whose partial sums are then added. As in a library, the time is that
of the best of a list of tiles and splits:

    wave = max(2 tile_m tile_n k / (peak of an SM x efficiency), bytes of operands / an SM's share of L2) + 2 latencies
    time = launch + max(waves x wave + sums, bytes of the matrices / (bandwidth x efficiency x share))

A wave begins with a read and ends with a write that nothing hides: two memory latencies. The products of each GPU reach
their own share of the memory bandwidth (`Gpu.product_memory`): Ampere copies operands with the threads that multiply
(cp.async), later GPUs with a separate unit (TMA). The time of every tile and split is monotonic in m, n, k and batch,
and so is the best.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inputs.units import PS_PER_S
from workload.compute.efficiency import Efficiencies
from workload.compute.gpu import Gpu
from workload.compute.operators import DTYPE_BYTES, Operator

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
"""Rows and columns of the result per thread block: the tiles of CUTLASS (`cutlass_profiler`) and cuBLAS."""
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)  # Numbers of parts into which the loop over k may be split
_K_STEP = 64  # Number of elements of k that a thread block reads at a time
_SUM_BYTES = 8  # Bytes of memory traffic per partial sum: one fp32 write and one fp32 read

Float64 = NDArray[np.float64]

_ROWS, _COLUMNS, _PARTS = np.array([(*tile, parts) for tile in TILES for parts in SPLITS], np.float64).T
"""float64[tilings]: rows and columns of the tile, and parts of the loop over k, of every tile and split."""


def product_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the ps of a gemm, batched-gemm or grouped-gemm; WorkloadError if the GPU has no rate for its data type."""
    return float(products_ps([operator], gpu, efficiencies)[0])


def products_ps(operators: Sequence[Operator], gpu: Gpu, efficiencies: Efficiencies) -> Float64:
    """Return float64[operators]: the times in ps of products of one data type.

    The rows of a grouped product are divided evenly over the groups; uneven groups would take longer. Raises
    WorkloadError: the GPU has no rate for the data type.
    """
    dtype = operators[0].dtype
    flops = gpu.peak_of(dtype) * gpu.sustained * efficiencies.gemm
    memory_Bps = gpu.memory_bandwidth_Bps * efficiencies.memory  # noqa: N806 - bytes, not bits
    sizes = np.array([_dimensions(operator) for operator in operators], np.float64)
    work_ps = _tiled_ps(sizes, DTYPE_BYTES[dtype], gpu, flops, memory_Bps).min(axis=1)
    memory_ps = (
        np.array([operator.bytes for operator in operators], np.float64) / (memory_Bps * gpu.product_memory) * PS_PER_S
    )
    times_ps = gpu.launch_overhead_ps + np.maximum(work_ps, memory_ps + gpu.memory_latency_ps)
    return np.where(sizes.all(axis=1), times_ps, 0.0)


def _dimensions(operator: Operator) -> tuple[int, int, int, int]:
    """Return the number of products and the m, n, k of each; of a grouped product, those of its largest group."""
    if operator.kind == "gemm":
        return (1, *operator.shape)  # type: ignore[return-value]
    batch, m, n, k = operator.shape
    if operator.kind == "grouped-gemm":
        batch = min(batch, m)
        m = -(-m // max(batch, 1))
    return batch, m, n, k


def _tiled_ps(sizes: Float64, value_bytes: float, gpu: Gpu, flops: float, memory_Bps: float) -> Float64:  # noqa: N803
    """Return float64[products, tilings]: times in ps with each tile and split."""
    # sizes: float64[products, 4], number of products, their rows, columns, and length of the sum; value_bytes: bytes
    # per operand value; flops, memory_Bps: operations and bytes per second that all SMs reach together.
    batch, m, n, k = sizes.T[:, :, None]
    tiles = batch * np.ceil(m / _ROWS) * np.ceil(n / _COLUMNS) * _PARTS
    waves = np.ceil(tiles / gpu.sms)
    depth = np.ceil(k / (_PARTS * _K_STEP)) * _K_STEP
    compute_ps = 2.0 * _ROWS * _COLUMNS * depth / (flops / gpu.sms) * PS_PER_S
    rows, columns = np.minimum(_ROWS, m), np.minimum(_COLUMNS, n)
    read_bytes = (np.minimum(rows, columns) + np.maximum(rows, columns) / gpu.cluster) * depth * value_bytes
    read_ps = read_bytes / (gpu.l2_bandwidth_Bps / gpu.sms) * PS_PER_S
    sums_ps = _SUM_BYTES * _PARTS * batch * m * n / memory_Bps * PS_PER_S + gpu.launch_overhead_ps
    return waves * (np.maximum(compute_ps, read_ps) + 2 * gpu.memory_latency_ps) + np.where(_PARTS > 1, sums_ps, 0.0)
