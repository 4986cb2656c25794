"""Traces of training steps: what a framework would do for a model and a parallel plan, without a GPU.

`workload.generators.training.generator` makes them. It stands above `workload.generators.memory`, which says what
offloading moves and asks
for the rules and stages here.
"""

from workload.generators.training.parallel_plan import ParallelPlan, parallel_plan

__all__ = ["ParallelPlan", "parallel_plan"]
