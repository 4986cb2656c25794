"""Models: what they are made of, a library of them, and how many parameters and operations they have."""

from workload.models.model import Experts, LatentAttention, Model

__all__ = ["Experts", "LatentAttention", "Model"]
