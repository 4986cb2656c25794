"""Blackwell: eighteen NVLinks of 50 GB/s, counted as 40.1 by NCCL's graph search."""

from inputs.units import KIB
from workload.collectives.nccl.generations import Generation, KernelTimes

GENERATION = Generation(
    name="b200",
    compute_capability=100,
    nvlink_bps=7_200_000_000_000,
    nvlink_payload=0.802,
    nvlink_line=50.0,
    pcie=48.0,
    inside_speeds=(90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
    between_speeds=(
        *(96.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0),
        *(17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12),
    ),
    cpu="intel",
    ll=282.0,
    ring_ll128=(0.0, 40.0, 40.0),
    message_block_gb_per_s=40.0,
    tree_ll128=(55.6, 31.67, 20.0),
    tree=(70.0, 42.8, 24.0),
    nvls_tree=(0.0, 96.0, 80.0),
    nvls_efficiency=0.74,
    nvls_channels=(24, 32),
    in_grains=False,
    plateau=1.4,
    kernel=KernelTimes(
        launch_us=(7.5, 20.0, 7.5),
        hop_us=(1.25, 0.6, 1.0),
        flight_us=12.4,
        ll_block_gb_per_s=36.0,
        block_gb_per_s=22.5,
        ll_wire=0.92,
        local_step=0.55,
        nvls_launch_us=7.0,
        nvls_loop_us=10.0,
        message_us=(8.8, 13.8),
        peer_us=0.36,
        message_wire=0.82,
        drain=0.44,
        message_part_bytes=64 * KIB,
    ),
)
