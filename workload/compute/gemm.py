"""How long a product of matrices takes: tiles, waves of tiles over the SMs, the loop over k, and what memory reads.

A library cuts the result into tiles, one for each thread block. All SMs work on a wave of tiles at a time; the last
wave takes as long as a full one (NVIDIA, Matrix Multiplication Background User's Guide, sections 4 and 5). Where there
are few tiles the loop over k is split among several SMs, whose sums are then added. Here as there, the time is that of
the best of a list of tiles and splits:

    wave = max(2 tile_m tile_n k / (peak of an SM x efficiency), bytes of operands / an SM's share of L2) + 2 latencies
    time = launch + max(waves x wave + sums, bytes of the matrices / (bandwidth x efficiency))

A wave begins with a read and ends with a write that nothing hides: two latencies of memory. As every tile and split
takes no less for a larger m, n, k or batch, neither does the best of them.
"""

from inputs.units import PS_PER_S
from workload.compute.efficiency import Efficiencies
from workload.compute.gpu import Gpu
from workload.compute.operators import DTYPE_BYTES, Operator

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
"""Rows and columns of the result that a thread block makes: those of CUTLASS (`cutlass_profiler`) and cuBLAS."""
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
"""Into how many parts the loop over k may be cut."""
_LEAST_K = 64
"""Elements of k that a thread block reads at a time."""
_SUM_BYTES = 8
"""Of each partial sum in fp32: written once and read once."""


def product_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Picoseconds of a gemm, batched-gemm or grouped-gemm.

    The rows of a grouped one are shared out evenly: with uneven groups it takes longer.

    Raises:
        WorkloadError: the GPU does not know the data type.
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
    """Products, and m, n, k of each; of a grouped one those of its largest group."""
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
    memory: float,
) -> float:
    """Picoseconds with one tile and one split; flops: per second that all SMs reach; memory: efficiency."""
    rows, columns = tile
    tiles = batch * -(-m // rows) * -(-n // columns) * splits
    waves = -(-tiles // gpu.sms)
    depth = -(-k // (splits * _LEAST_K)) * _LEAST_K
    compute_ps = 2.0 * rows * columns * depth / (flops / gpu.sms) * PS_PER_S
    narrow, wide = sorted((min(rows, m), min(columns, n)))
    read_bytes = (narrow + wide / gpu.cluster) * depth * DTYPE_BYTES[dtype]
    read_ps = read_bytes / (gpu.l2_bandwidth_Bps / gpu.sms) * PS_PER_S
    sums_ps = 0.0
    if splits > 1:
        moved_bytes = _SUM_BYTES * splits * batch * m * n
        sums_ps = moved_bytes / (gpu.memory_bandwidth_Bps * memory) * PS_PER_S + gpu.launch_overhead_ps
    return waves * (max(compute_ps, read_ps) + 2 * gpu.memory_latency_ps) + sums_ps
