"""The fabric of a run: what the topology says, and memories that [memory] puts into its hosts."""

import numpy as np

import topologies
from nadi.configuration.sections import RunConfig
from nadi.errors import ConfigError
from topologies import Graph, TopologyError
from topologies.host_memories import with_host_memories


def built_fabric(config: RunConfig) -> Graph:
    """The fabric that a run file names; with `remote = "node"` the last endpoints are the memories of its hosts.

    Raises:
        TopologyError: as `topologies.build`.
        ConfigError: memories of hosts, where there are no hosts; or a fabric that only another process has.
    """
    given = config.topology.graph
    graph = given if isinstance(given, Graph) else topologies.build(config.topology.source())
    if config.memory.remote != "node":
        return graph
    try:
        return with_host_memories(graph)
    except TopologyError as error:
        raise ConfigError(f'[memory] remote: found "node", but {error}; expected "npu" or "pool"') from None


def memory_nodes(config: RunConfig, graph: Graph) -> tuple[int, ...]:
    """Endpoints of the fabric that are memory of others: those of a pool, or the memories of hosts."""
    return config.memory.remote_npus or host_memories(config, graph)


def host_memories(config: RunConfig, graph: Graph) -> tuple[int, ...]:
    """Endpoints of `built_fabric` that are memories of hosts."""
    if config.memory.remote != "node":
        return ()
    return tuple(range(graph.npus - len(np.unique(graph.host)), graph.npus))
