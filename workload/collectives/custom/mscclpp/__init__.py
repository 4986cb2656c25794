"""Execution plans of MSCCL++ (JSON): GPUs that write into each other's buffers, and signals."""

from nadi.workload.collectives.custom.mscclpp.plans import read_mscclpp

__all__ = ["read_mscclpp"]
