"""What collectives cost the computation beside them, where a run file leaves it to the framework."""

from nadi.config import RunConfig
from nadi.wiring.from_model import model_and_plan
from topologies import Graph
from workload.compute import find_gpu


def with_interference(config: RunConfig, graph: Graph) -> RunConfig:
    """Return the configuration with [system] compute_slowdown settled: "auto" is 1 without a framework and a GPU.

    Args:
        config: Configuration of a run, with the model and its plan settled.
        graph: Fabric of the run.
    """
    if config.system.compute_slowdown is not None:
        return config
    slowdown = 1.0
    if model_and_plan(config) is not None and config.compute.gpu is not None:
        from workload.training.interference import channels_on, compute_slowdown

        gpu = find_gpu(config.compute.gpu)
        slowdown = compute_slowdown(config.workload.framework, gpu, channels_on(graph))
    return config.model_copy(update={"system": config.system.model_copy(update={"compute_slowdown": slowdown})})


def copied_groups(config: RunConfig) -> frozenset[str]:
    """Return the groups whose collectives take no multiprocessors from computation."""
    found = model_and_plan(config)
    if found is None:
        return frozenset()
    from workload.training import interference

    return interference.copied_groups(config.workload.framework, found[1])
