"""Roofline of matrix products: tiles, waves of tiles over the SMs, the loop over k, and memory traffic.

A library divides the result into tiles, one per thread block. All SMs work on one wave of tiles at a time; the last
wave takes as long as a full one (NVIDIA, Matrix Multiplication Background User's Guide, sections 4 and 5). With few
tiles, the loop over k is split among several SMs, whose partial sums are then added. As in a library, the time is that
of the best of a list of tiles and splits:

    wave = max(2 tile_m tile_n k / (peak of an SM x efficiency), bytes of operands / an SM's share of L2) + 2 latencies
    time = launch + max(waves x wave + sums, bytes of the matrices / (bandwidth x efficiency))

A wave begins with a read and ends with a write that nothing hides: two memory latencies. The time of every tile and
split is monotonic in m, n, k and batch, and so is the best.
"""

from inputs.units import PS_PER_S
from workload.compute.efficiency import Efficiencies
from workload.compute.gpu import Gpu
from workload.compute.operators import DTYPE_BYTES, Operator

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
"""Rows and columns of the result per thread block: the tiles of CUTLASS (`cutlass_profiler`) and cuBLAS."""
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
"""Numbers of parts into which the loop over k may be split."""
_K_STEP = 64
"""Number of elements of k that a thread block reads at a time."""
_SUM_BYTES = 8
"""Bytes of memory traffic per partial sum: one fp32 write and one fp32 read."""


def product_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the time in ps of a gemm, batched-gemm or grouped-gemm.

    The rows of a grouped product are divided evenly over the groups; uneven groups would take longer.

    Raises:
        WorkloadError: The GPU has no rate for the data type.
    """
    batch, m, n, k = _dimensions(operator)
    peak = gpu.peak_of(operator.dtype) * gpu.sustained
    if not batch * m * n * k:
        return 0.0
    work_ps = min(
        _tiled_ps(batch, m, n, k, tile, splits, operator.dtype, gpu, peak * efficiencies.gemm, efficiencies.memory)
        for tile in TILES
        for splits in SPLITS
    )
    memory_ps = operator.bytes / (gpu.memory_bandwidth_Bps * efficiencies.memory) * PS_PER_S + gpu.memory_latency_ps
    return gpu.launch_overhead_ps + max(work_ps, memory_ps)


def _dimensions(operator: Operator) -> tuple[int, int, int, int]:
    """Return the number of products and the m, n, k of each; of a grouped product, those of its largest group."""
    if operator.kind == "gemm":
        return (1, *operator.shape)  # type: ignore[return-value]
    batch, m, n, k = operator.shape
    if operator.kind == "grouped-gemm":
        batch = min(batch, m)
        m = -(-m // max(batch, 1))
    return batch, m, n, k


def _tiled_ps(
    batch: int,
    m: int,
    n: int,
    k: int,
    tile: tuple[int, int],
    splits: int,
    dtype: str,
    gpu: Gpu,
    flops: float,
    memory_efficiency: float,
) -> float:
    """Return the time in ps with one tile and one split.

    Args:
        batch: Number of products.
        m: Rows of each product.
        n: Columns of each product.
        k: Length of the sum.
        tile: Rows and columns of a tile.
        splits: Number of parts of the loop over k.
        dtype: Data type of the operands.
        gpu: GPU that runs the products.
        flops: Operations per second that all SMs reach together.
        memory_efficiency: Share of the memory bandwidth that is reached.
    """
    rows, columns = tile
    tiles = batch * -(-m // rows) * -(-n // columns) * splits
    waves = -(-tiles // gpu.sms)
    depth = -(-k // (splits * _K_STEP)) * _K_STEP
    compute_ps = 2.0 * rows * columns * depth / (flops / gpu.sms) * PS_PER_S
    narrow, wide = sorted((min(rows, m), min(columns, n)))
    read_bytes = (narrow + wide / gpu.cluster) * depth * DTYPE_BYTES[dtype]
    read_ps = read_bytes / (gpu.l2_bandwidth_Bps / gpu.sms) * PS_PER_S
    sums_ps = 0.0
    if splits > 1:
        moved_bytes = _SUM_BYTES * splits * batch * m * n
        sums_ps = moved_bytes / (gpu.memory_bandwidth_Bps * memory_efficiency) * PS_PER_S + gpu.launch_overhead_ps
    return waves * (max(compute_ps, read_ps) + 2 * gpu.memory_latency_ps) + sums_ps
