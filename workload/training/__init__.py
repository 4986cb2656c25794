"""Traces of training steps: what a framework would do for a model and a parallel plan, without a GPU."""

from typing import TYPE_CHECKING

from workload.training.parallel_plan import ParallelPlan, parallel_plan

if TYPE_CHECKING:
    from workload.models.model import Model
    from workload.trace_set import TraceSet
    from workload.training.rules import Framework

__all__ = ["ParallelPlan", "generate", "parallel_plan"]


def generate(model: "Model", plan: ParallelPlan, framework: "Framework" = "megatron") -> "TraceSet":
    """The traces of all NPUs of a plan, as `workload.training.generator.generate`."""
    # imported when called: models and memory need plans, and the generator needs both
    from workload.training import generator  # noqa: PLC0415

    return generator.generate(model, plan, framework)
