"""Volta: six NVLinks of 25 GB/s, of which NCCL's graph search counts 20."""

from workload.nccl.generations import Generation

GENERATION = Generation(
    name="v100",
    ll=(39.0, 39.0, 20.4),
    ring_ll128=(20.0, 20.0, 20.0),
    tree_ll128=(20.0, 20.0, 20.0),
    tree=(26.5, 18.5, 10.0),
    nvlink_payload=0.8,
    bus_cap=0.0,
    channels=12,
    plateau=1.9,
)
