"""Hopper: eighteen NVLinks of 25 GB/s, of which NCCL's graph search counts 20.6."""

from workload.nccl.generations import Generation

GENERATION = Generation(
    name="h100",
    ll=(141.0, 45.0, 35.0),
    ring_ll128=(36.7, 36.7, 36.7),
    tree_ll128=(36.7, 36.7, 29.0),
    tree=(38.7, 41.4, 36.0),
    nvlink_payload=0.824,
    bus_cap=0.0,
    channels=24,
    plateau=1.4,
)
