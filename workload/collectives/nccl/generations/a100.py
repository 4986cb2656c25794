"""Ampere: twelve NVLinks of 25 GB/s, counted as 20 by NCCL's graph search."""

from inputs.units import KIB
from workload.collectives.nccl.generations import BETWEEN, INSIDE, Generation, KernelTimes

GENERATION = Generation(
    name="a100",
    compute_capability=80,
    nvlink_bps=2_400_000_000_000,
    nvlink_payload=0.8,
    nvlink_line=25.0,
    pcie=24.0,
    inside_speeds=INSIDE,
    between_speeds=BETWEEN,
    cpu="amd",
    ll=87.7,
    ring_ll128=(20.0, 20.0, 20.0),
    message_block_gb_per_s=20.0,
    tree_ll128=(20.0, 20.0, 20.0),
    tree=(24.0, 23.6, 17.8),
    nvls_tree=(24.0, 23.6, 17.8),
    nvls_efficiency=0.0,
    nvls_channels=(0, 0),
    in_grains=True,
    plateau=1.4,
    kernel=KernelTimes(
        launch_us=(8.2, 20.0, 8.2),
        hop_us=(0.94, 0.6, 3.4),
        flight_us=0.0,
        ll_block_gb_per_s=20.0,
        block_gb_per_s=6.6,
        ll_wire=0.85,
        local_step=0.43,
        nvls_launch_us=0.0,
        nvls_loop_us=0.0,
        message_us=(9.1, 9.7),
        peer_us=0.51,
        message_wire=0.88,
        drain=0.4,
        message_part_bytes=512 * KIB,
    ),
)
