"""Volta: six NVLinks of 25 GB/s, counted as 20 by NCCL's graph search."""

from workload.collectives.nccl.generations import BETWEEN, INSIDE, Generation

GENERATION = Generation(
    name="v100",
    compute_capability=70,
    nvlink_bps=1_200_000_000_000,
    nvlink_payload=0.8,
    nvlink_line=25.0,
    pcie=12.0,
    inside_speeds=INSIDE,
    between_speeds=BETWEEN,
    cpu="intel",
    ll=39.0,
    ring_ll128=(20.0, 20.0, 20.0),
    message_block_gb_per_s=20.0,
    tree_ll128=(20.0, 20.0, 20.0),
    tree=(26.5, 18.5, 10.0),
    nvls_tree=(26.5, 18.5, 10.0),
    nvls_efficiency=0.0,
    nvls_channels=(0, 0),
    in_grains=True,
    plateau=1.9,
)
