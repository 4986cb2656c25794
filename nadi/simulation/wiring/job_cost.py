"""Resources of a batch job: hours and memory per node from the estimate of the run, with a margin."""

import math
from typing import NamedTuple

from inputs.units import GIB
from nadi.errors import ConfigError
from nadi.simulation.wiring.affordable import HOPS_PER_S, MESSAGES_PER_S, ROW_BYTES, check_run
from nadi.simulation.wiring.estimate import Estimate, fabric_bytes, work
from pdes import Settings
from topologies import Graph

MARGIN = 2.0
"""Ratio of the requested to the expected time and memory: packets are retransmitted, and parts of a fabric are not
equal."""
MIN_TIME_LIMIT_S = 900.0
"""Minimum time limit in seconds: every node compiles kernels for up to half a minute and reads traces."""
PROCESS_BYTES = 500_000_000
"""Memory of a process before it simulates: Python, its packages and the compiler of kernels."""
_TIME_LIMIT_STEP_S = 300
"""Step in seconds to which time limits are rounded up."""


class NodeLimits(NamedTuple):
    """Resources of a node of the cluster.

    Attributes:
        memory_bytes: Memory in bytes that the job requests per node; None = the check uses the free memory of this
            machine.
        force: True = refuse nothing for its time or memory.
    """

    memory_bytes: int | None = None
    force: bool = False


class JobCost(NamedTuple):
    """Expected cost of a run.

    Attributes:
        wall_s: Wall-clock time in seconds from start to end.
        memory_bytes: Memory in bytes per node.
    """

    wall_s: float
    memory_bytes: float

    def __str__(self) -> str:
        """Return the cost in words, rounded up to minutes, or to tenths of hours."""
        minutes = math.ceil(self.wall_s / 60)
        time = f"{minutes} minutes" if minutes < 120 else f"{self.wall_s / 3600:.1f} hours"
        return f"about {time} and {self.memory_bytes / 1e9:.1f} GB on each node"

    @property
    def time_limit(self) -> str:
        """Return the time limit in SLURM's format HH:MM:SS, with a margin, in steps of five minutes."""
        whole_s = math.ceil(max(MARGIN * self.wall_s, MIN_TIME_LIMIT_S) / _TIME_LIMIT_STEP_S) * _TIME_LIMIT_STEP_S
        return f"{whole_s // 3600:02}:{whole_s // 60 % 60:02}:{whole_s % 60:02}"

    @property
    def memory_limit(self) -> str:
        """Return the memory per node in SLURM's format, in GiB, with a margin."""
        return f"{math.ceil(MARGIN * self.memory_bytes / GIB)}G"


def cost_of_packets(
    expected: Estimate,
    graph: Graph,
    settings: Settings,
    nodes: int,
    ranks_per_node: int,
    workers: int,
    limits: NodeLimits,
) -> JobCost:
    """Return the cost of a run of packets or messages, which several nodes may share.

    Args:
        expected: Work of all ranks, and the memory that one process would need for all of it.
        graph: Fabric of the run.
        settings: Settings of the run.
        nodes: Number of nodes of the job.
        ranks_per_node: Number of MPI ranks per node; each holds the fabric and its part of the rest.
        workers: Number of workers of all ranks.
        limits: Resources of a node.

    Raises:
        ConfigError: The run needs more memory than a node has, or more than a day.
    """
    of_fabric = fabric_bytes(graph)
    own = max(expected.memory_bytes - of_fabric, 0.0) / nodes
    memory = ranks_per_node * (PROCESS_BYTES + of_fabric) + own
    _check_memory(memory, limits)
    is_judged_here = expected._replace(memory_bytes=memory if limits.memory_bytes is None else 0.0)
    check_run(is_judged_here, expected, settings, workers, force=limits.force)
    rate = MESSAGES_PER_S if settings.fidelity.is_message_level else HOPS_PER_S * workers
    return JobCost(work(expected, settings) / rate, memory)


def cost_at_closed_forms(rows: int, graph: Graph, limits: NodeLimits) -> JobCost:
    """Return the cost of a run at closed forms, which one process does.

    Args:
        rows: Number of trace nodes of one NPU per class.
        graph: Fabric of the run.
        limits: Resources of a node.

    Raises:
        ConfigError: The run needs more memory than a node has.
    """
    memory = PROCESS_BYTES + fabric_bytes(graph) + rows * ROW_BYTES
    _check_memory(memory, limits)
    return JobCost(rows / MESSAGES_PER_S, memory)


def _check_memory(memory_bytes: float, limits: NodeLimits) -> None:
    """Refuse a run that needs more memory than the job requests."""
    if limits.memory_bytes and memory_bytes > limits.memory_bytes and not limits.force:
        raise ConfigError(
            f"--mem: {limits.memory_bytes / 1e9:,.1f} GB on each node; the run would take about "
            f"{memory_bytes / 1e9:,.1f} GB there; expected more memory, more nodes, or --force"
        )
