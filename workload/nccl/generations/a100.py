"""Ampere: twelve NVLinks of 25 GB/s, of which NCCL's graph search counts 20; measured, 235 GB/s in all."""

from workload.nccl.generations import Generation

GENERATION = Generation(
    name="a100",
    ll=(87.7, 22.5, 19.0),
    ring_ll128=(20.0, 20.0, 20.0),
    tree_ll128=(20.0, 20.0, 20.0),
    tree=(24.0, 23.6, 17.8),
    nvlink_payload=0.8,
    bus_cap=235.0,
    channels=24,
    plateau=1.4,
)
