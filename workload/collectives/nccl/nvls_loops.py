"""The loops of NVLS over a buffer, of one chunk per block and head, and the time before the first loop.

Blocks are the thread blocks that run in parallel (NCCL calls them channels); heads are the members that own a share.
"""

from typing import NamedTuple

from nadi.inputs.units import KIB, PS_PER_US
from nadi.workload.collectives.nccl import tuning
from nadi.workload.collectives.nccl.channel_orders import MAX_HEADS, heads_of
from nadi.workload.collectives.nccl.generations import KernelTimes
from nadi.workload.collectives.nccl.tuning import SIMPLE, TuningInput
from nadi.workload.shape import GroupShape

_MANY_HOSTS = 4  # number of hosts from which NVLS trees begin with chunks of 64 KiB (calcCollChunking)
# All chunk sizes into which NCCL cuts a buffer (src/enqueue.cc, calcCollChunking)
CHUNKS_BYTES = (16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB)
# Chunk of NVLS's largest buffers (NCCL_NVLS_CHUNKSIZE), to which NCCL's efficiency of NVLS is taken to refer
_FULL_CHUNK_BYTES = CHUNKS_BYTES[-1]


class BufferLoops(NamedTuple):
    """A buffer in loops."""

    blocks: int  # number of blocks
    chunk_bytes: int  # bytes per block and head in a loop
    loop_bytes: int  # bytes of all blocks and heads in a loop
    loops: int  # number of loops over the buffer; the last may be smaller


def cut_of(size_bytes: int, blocks: int, shape: GroupShape, algorithm: str) -> BufferLoops:
    """Return the loops over a buffer.

    Args:
        size_bytes: The size of the whole buffer in bytes.
        blocks: The number of thread blocks per head.
        shape: The positions of the group's members on the fabric.
        algorithm: NVLS or NVLS_TREE.
    """
    hosts = len(shape.host_members)
    heads = heads_of(hosts, min(shape.host_members), shape.nics)
    chunk_bytes = _chunk_bytes(size_bytes, blocks * heads, hosts, algorithm)
    loop_bytes = blocks * heads * chunk_bytes
    return BufferLoops(blocks, chunk_bytes, loop_bytes, max(1, -(-size_bytes // loop_bytes)))


def launch_ps(
    kind: str,
    shape: GroupShape,
    size_bytes: int,
    host: TuningInput,
    algorithm: str,
    loops: BufferLoops,
    port_gb_per_s: float,
    *,
    registered: bool,
) -> int:
    """Return the time before the first step in picoseconds.

    Buffers that are not registered are copied into the multicast buffer and out of it, by other warps of the blocks. In
    one host these are two stages more of a pipeline whose stages take as long as a loop. Over several hosts NCCL's
    latency of NVLS is that of the whole collective, so the latency of the fabric's path is subtracted. There a block
    copies the first loop before any sum, and the last loop after all sums, at the maximum rate that NCCL gives for a
    block.

    Args:
        kind: The kind of collective.
        shape: The positions of the group's members on the fabric.
        size_bytes: The size of the whole buffer in bytes.
        host: The group and its hosts, as NCCL's tuning model sees them.
        algorithm: NVLS or NVLS_TREE.
        loops: The buffer in loops.
        port_gb_per_s: The payload rate of a member's NVLinks in GB/s.
        registered: Whether NVLS works on the user's buffers, so that no data is copied.
    """
    path_ps = shape.inside_ps * (2 if kind == "all-reduce" else 1)
    if host.kernel:
        # A single loop that is not full still takes the whole handshake of a loop
        partial_us = max(0.0, 1 - size_bytes / loops.loop_bytes) * host.kernel.nvls_loop_us
        first_bytes = min(size_bytes, loops.loop_bytes)
        stages_us = 0.0 if registered else 2 * _loop_us(kind, host, host.kernel, first_bytes, port_gb_per_s)
        return max(0, round((host.kernel.nvls_launch_us + partial_us + stages_us) * PS_PER_US) - path_ps)
    if algorithm == tuning.NVLS_TREE:
        path_ps += 2 * (host.plan.hosts.bit_length() - 1) * shape.outside_ps
    waits_ps = max(0, tuning.empty_all_reduce_ps(host, algorithm) - path_ps)
    if registered:
        return waits_ps
    # The copies of the loops between overlap with sums: the first one in and the last one out do not
    copied_bytes: float = min(loops.loop_bytes, size_bytes) + size_bytes - (loops.loops - 1) * loops.loop_bytes
    if kind != "all-reduce":  # what goes in or comes out is a member's own share
        copied_bytes *= (host.plan.per_host + 1) / host.plan.per_host / 2
    block_gb_per_s = host.generation.tree[0] * host.site.block
    return waits_ps + round(copied_bytes / loops.blocks / block_gb_per_s * 1e3)


def pace_gb_per_s(kind: str, host: TuningInput, algorithm: str, loops: BufferLoops, port_gb_per_s: float) -> float:
    """Return the rate in GB/s at which a head pulls, sums and copies its share.

    Args:
        kind: The kind of collective.
        host: The group and its hosts, as NCCL's tuning model sees them.
        algorithm: NVLS or NVLS_TREE.
        loops: The buffer in loops.
        port_gb_per_s: The payload rate of a member's NVLinks in GB/s.
    """
    if host.kernel:
        loop_us = _loop_us(kind, host, host.kernel, loops.loop_bytes, port_gb_per_s)
        return loops.loop_bytes / host.plan.per_host / loop_us / 1e3
    pace = _planned_gb_per_s(kind, host)
    if algorithm == tuning.NVLS:
        return pace / slower(kind, host, loops)
    # A head that is ahead of its NIC waits for free slots. An inner host of one tree, a leaf of the other, sends two
    # shares: halves to two children and to both parents. Two hosts exchange one share.
    return min(pace, host.plan.net / (1 if host.plan.hosts == 2 else 2))


def _loop_us(kind: str, host: TuningInput, kernel: KernelTimes, loop_bytes: int, port_gb_per_s: float) -> float:
    """Return the microseconds of a loop over loop_bytes in one NVLink domain.

    A loop takes the time of its data on the links of a head, where an all-reduce's sums join what is to be summed, and
    that in which the members notify each other. No head is faster than NCCL plans.
    """
    heads = min(host.plan.per_host, MAX_HEADS)
    # GB/s are bytes per nanosecond, hence / 1e3 for microseconds here and below
    data_us = loop_bytes / port_gb_per_s * (1 + 1 / heads if kind == "all-reduce" else 1) / 1e3
    planned_us = loop_bytes / host.plan.per_host / _planned_gb_per_s(kind, host) / 1e3
    return max(kernel.nvls_loop_us + data_us, planned_us)


def _planned_gb_per_s(kind: str, host: TuningInput) -> float:
    """Return the GB/s that NCCL plans for a member's share; members beyond MAX_HEADS share the rates of heads."""
    return tuning.nvls_pace(kind, host) * min(1.0, MAX_HEADS / host.plan.per_host) * host.site.nvlink


def slower(kind: str, host: TuningInput, loops: BufferLoops) -> float:
    """Return the slowdown of NVLS against full chunks, as each loop ends with a handshake.

    Args:
        kind: The kind of collective.
        host: The group and its hosts, as NCCL's tuning model sees them.
        loops: The buffer in loops.
    """
    # After a loop the members notify each other over NVLink that its chunks are complete. This takes a block NCCL's
    # time of a step of such a handshake (CollNet direct, Simple), whatever the size of the chunk.
    full_ps = loops.blocks * _FULL_CHUNK_BYTES / tuning.nvls_pace(kind, host) * 1e3
    step_ps = min(full_ps, tuning.step_ps(host, tuning.COLLNET_DIRECT, SIMPLE.name, between_hosts=False))
    parts = _FULL_CHUNK_BYTES / loops.chunk_bytes
    return ((full_ps - step_ps) / parts + step_ps) * parts / full_ps


def _chunk_bytes(size_bytes: int, chunks_at_once: int, hosts: int, algorithm: str) -> int:
    """Return the bytes per block and head (NCCL's src/enqueue.cc, calcCollChunking)."""
    # size_bytes: of the whole buffer; chunks_at_once: blocks times heads; algorithm: NVLS or NVLS_TREE
    if algorithm == tuning.NVLS:
        steps = [(64, 128 * KIB, 64 * KIB), (8, 64 * KIB, 32 * KIB), (2, 32 * KIB, 16 * KIB)]
        chunk_bytes = 128 * KIB
    else:
        steps = [(4, 128 * KIB, 64 * KIB), (1, 64 * KIB, 32 * KIB)]
        chunk_bytes = 64 * KIB if hosts >= _MANY_HOSTS else 128 * KIB
    # Each condition halves the chunk while a loop of all blocks and heads would be too large for the buffer; NCCL tests
    # them in this order, each with the chunk that the one before has left
    for times, above, smaller in steps:
        if chunk_bytes >= above and size_bytes < times * chunks_at_once * chunk_bytes:
            chunk_bytes = smaller
    return chunk_bytes
