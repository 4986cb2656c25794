"""Traces of training steps: what a framework would do for a model and a parallel plan, without a GPU.

`workload.training.generator` makes them. It stands above `workload.memory`, which says what offloading moves and asks
for the rules and stages here.
"""

from workload.training.parallel_plan import ParallelPlan, parallel_plan

__all__ = ["ParallelPlan", "parallel_plan"]
