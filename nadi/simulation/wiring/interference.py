"""Slowdown of computation beside collectives, if the run file leaves it to the framework."""

from typing import TYPE_CHECKING, cast

from nadi.configuration.sections import RunConfig
from topologies import Graph
from workload.compute import find_gpu

if TYPE_CHECKING:
    from workload.generators.training.rules import Framework


def with_interference(config: RunConfig, graph: Graph, framework: str) -> RunConfig:
    """Return the configuration with [system] compute_slowdown settled: "auto" is 1 without a framework and a GPU.

    `framework`: Framework whose training steps the traces are; "" = not known.
    """
    if config.system.compute_slowdown is not None:
        return config
    slowdown = 1.0
    if framework and config.compute.gpu is not None:
        from workload.generators.training.interference import channels_on, compute_slowdown

        gpu = find_gpu(config.compute.gpu)
        in_a_row = config.compute.pace in {None, "step"}  # the default pace of training steps
        slowdown = compute_slowdown(cast("Framework", framework), gpu, channels_on(graph), in_a_row=in_a_row)
    return config.model_copy(update={"system": config.system.model_copy(update={"compute_slowdown": slowdown})})
