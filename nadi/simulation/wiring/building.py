"""Fabric of a run: the topology, and memories that [memory] adds to its hosts."""

import numpy as np

import topologies
from nadi.configuration.sections import RunConfig
from nadi.errors import ConfigError
from topologies import Graph, TopologyError
from topologies.endpoints import with_host_memories


def built_fabric(config: RunConfig) -> Graph:
    """Return the fabric of a run file; with `remote = "node"` the last endpoints are the memories of its hosts.

    Raises:
        TopologyError: As for `topologies.build`.
        ConfigError: The fabric has no hosts to add memories to, or only another process has the fabric.
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
    """Return the endpoints of the fabric that are remote memories: those of a pool, or the memories of hosts."""
    return config.memory.remote_npus or host_memories(config, graph)


def host_memories(config: RunConfig, graph: Graph) -> tuple[int, ...]:
    """Return the endpoints of `built_fabric` that are memories of hosts."""
    if config.memory.remote != "node":
        return ()
    return tuple(range(graph.npus - len(np.unique(graph.host)), graph.npus))
