"""Hopper (H100, H200): eighteen NVLinks of 25 GB/s, counted as 20.6 by NCCL's graph search."""

from inputs.units import KIB
from workload.collectives.nccl.generations import Generation, KernelTimes

GENERATION = Generation(
    name="h100",
    compute_capability=90,
    nvlink_bps=3_600_000_000_000,
    nvlink_payload=0.824,
    nvlink_line=25.0,
    pcie=48.0,
    inside_speeds=(60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    between_speeds=(
        *(48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0),
        *(12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12),
    ),
    cpu="intel",
    ll=141.0,
    ring_ll128=(36.7, 36.7, 36.7),
    message_block_gb_per_s=36.7,
    tree_ll128=(36.7, 36.7, 29.0),
    tree=(38.7, 41.4, 36.0),
    nvls_tree=(0.0, 57.7, 45.5),
    nvls_efficiency=0.85,
    nvls_channels=(16, 16),
    in_grains=False,
    plateau=1.4,
    kernel=KernelTimes(
        launch_us=(5.1, 18.0, 5.1),
        hop_us=(0.73, 0.6, 2.2),
        flight_us=0.0,
        ll_block_gb_per_s=36.0,
        block_gb_per_s=13.3,
        ll_wire=1.1,
        local_step=0.17,
        nvls_launch_us=3.0,
        nvls_loop_us=6.0,
        message_us=(5.8, 9.7),
        peer_us=0.22,
        message_wire=0.9,
        drain=0.28,
        message_part_bytes=64 * KIB,
    ),
)
