"""Blackwell: eighteen NVLinks of 50 GB/s; NCCL takes twice Hopper's figures."""

from workload.nccl.generations import Generation

GENERATION = Generation(
    name="b200",
    ll=(282.0, 90.0, 70.0),
    ring_ll128=(73.4, 73.4, 73.4),
    tree_ll128=(73.4, 73.4, 58.0),
    tree=(77.4, 82.8, 72.0),
    nvlink_payload=0.824,
    bus_cap=0.0,
    channels=32,
    plateau=1.4,
)
