"""Traces of training steps: what a framework would do for a model and a parallel plan, without a GPU."""

from workload.training.generator import generate
from workload.training.parallel_plan import ParallelPlan, parallel_plan

__all__ = ["ParallelPlan", "generate", "parallel_plan"]
