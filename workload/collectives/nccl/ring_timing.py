"""The time of a step of a ring among the GPUs of one NVLink domain, with its data.

A block (a channel's thread block) moves data at its own rate or at its part of NVLink, whichever is less:

- LL: the block's rate, half of it if each step also keeps a copy (all-gather), or NVLink shared by the used channels,
- LL128: the block's rate, or NVLink shared likewise,
- Simple: the part of NVLink that NCCL plans for a channel. A step in the own memory comes on top (LOCAL_STEPS).
"""

from inputs.units import PS_PER_US
from workload.collectives.nccl.generations import KernelTimes
from workload.collectives.nccl.protocols import LL, LL128, PROTOCOLS
from workload.collectives.nccl.tuning import column_of

# Steps of a loop that only move data in a member's own memory: the last, which completes the output, and in an
# all-gather the copy of the own part into the output (src/device/all_gather.h, reduce_scatter.h, all_reduce.h). The
# weights are fitted to the slopes of A100's rows from 128 MiB on.
LOCAL_STEPS = {"all-reduce": 0.5, "reduce-scatter": 1.0, "all-gather": 2.0}


def step_ps(
    kernel: KernelTimes,
    kind: str,
    protocol: str,
    steps: int,
    slices: int,
    message_bytes: float,
    planned_gb_per_s: float,
    used_gb_per_s: float,
) -> float:
    """Return the time in ps of a step of a ring's loop over NVLink, by the kernel times of the GPU generation."""
    # steps: of a loop; slices: of a chunk; message_bytes: data of a slice; planned_gb_per_s: part of NVLink's payload
    # in GB/s that NCCL plans for a channel; used_gb_per_s: the same if only the used channels share NVLink.
    wire_bytes = PROTOCOLS[protocol].wire_bytes(message_bytes)
    hop_us = kernel.hop_us[column_of(protocol)]
    if protocol == LL.name:
        block_gb_per_s = kernel.ll_block_gb_per_s / (2 if kind == "all-gather" else 1)
        data_us = wire_bytes / min(block_gb_per_s, used_gb_per_s * kernel.ll_wire) / 1e3
        return (hop_us + data_us) * PS_PER_US
    if protocol == LL128.name:
        return (hop_us + wire_bytes / min(kernel.block_gb_per_s, used_gb_per_s) / 1e3) * PS_PER_US
    stretch = 1 + kernel.local_step * LOCAL_STEPS[kind] / steps
    data_us = stretch * wire_bytes / planned_gb_per_s / 1e3
    return max(data_us + stretch * hop_us, (kernel.flight_us + data_us) / slices) * PS_PER_US
