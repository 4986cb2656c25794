"""Ampere: twelve NVLinks of 25 GB/s, counted as 20 by NCCL's graph search."""

from workload.collectives.nccl.generations import BETWEEN, INSIDE, Generation

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
    tree_ll128=(20.0, 20.0, 20.0),
    tree=(24.0, 23.6, 17.8),
    nvls_tree=(24.0, 23.6, 17.8),
    nvls_efficiency=0.0,
    nvls_channels=(0, 0),
    in_grains=True,
    plateau=1.4,
)
