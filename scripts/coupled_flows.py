"""Collectives as flows against packets, by algorithm: a Markdown table for docs/explanation/fidelity.md.

    python scripts/coupled_flows.py [KIND ...]

Each cell is the range of how far finish times by flows are from those by packets, in %, with each message as a flow
("steps") or with coupled flows, on fabrics whose uplinks are 1:1, 2:1 and 4:1. The collective runs among all NPUs, or
twice at once, among even and among odd hosts.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from nadi import topologies
from nadi.configuration.sections import NetworkSection
from nadi.et import CollectiveCommType, coll_node, metadata, table_of
from nadi.launching.progress import NoProgress
from nadi.simulation.closed_forms import CollectiveCosts
from nadi.simulation.mixed_fidelity import coupled_collectives
from nadi.simulation.network_settings import network_settings
from nadi.simulation.run import run_program
from nadi.topologies import Graph
from nadi.workload import KINDS, CollectiveSettings, WorkloadError, algorithms_of, build_program

SIZE_BYTES = 4 << 20
RATIOS = (1, 2, 4)
FABRICS = {
    "leaves": "leaf-spine:npus=16,hosts_per_leaf=4,rate=100Gbps,delay=500ns,spines={}",
    "hosts": "rail-fat-tree:npus=32,accelerator=a100,rails=1,hosts_per_unit=2,spines={}",
}
UPLINKS = {"leaves": 4, "hosts": 16}  # of a leaf at 1:1
NCCL = {"all-reduce": ("nccl:algo=ring", "nccl:algo=tree"), "all-gather": ("nccl:algo=pat",)}


def times_ps(graph: Graph, kind: str, algorithm: str, groups: list[tuple[int, ...]]) -> Iterator[int]:
    """Yield the finish time in ps of a collective of each group at once: by packets, as messages, as coupled flows.

    Args:
        graph: The fabric.
        kind: The kind of the collective.
        algorithm: The text of the algorithm.
        groups: The members of each group.
    """
    node = coll_node(0, kind, CollectiveCommType(KINDS.index(kind)), SIZE_BYTES, pg_name="group")
    how = CollectiveSettings({kind: algorithm}, all_gather_size="total")
    trace, families = np.zeros(graph.npus, np.int32), {"group": tuple(groups)}
    table = table_of(metadata(), [node])
    program = build_program([table], trace, graph.npus, settings=how, fabric=graph, families=families)
    for fidelity, is_coupled in (("packet", False), ("flow", False), ("flow", True)):
        settings = network_settings(NetworkSection(fidelity=fidelity), record_nodes=False, record_flows=False)
        if is_coupled:
            settings = replace(settings, coupled=coupled_collectives(program, CollectiveCosts(graph, settings), how))
        yield run_program(graph, program, settings, NoProgress()).finish_time_ps


def errors(fabric: str, kind: str, algorithm: str) -> tuple[list[float], list[float]]:
    """Return how far steps, and coupled flows, are from packets in %, in all runs that the algorithm supports.

    Args:
        fabric: The text of the topology.
        kind: The kind of the collective.
        algorithm: The text of the algorithm.
    """
    steps, coupled = [], []
    for ratio in RATIOS:
        graph = topologies.build(FABRICS[fabric].format(UPLINKS[fabric] // ratio))
        hosts = graph.host if fabric == "hosts" else np.arange(graph.npus)
        halves = [tuple(np.flatnonzero(hosts % 2 == half).tolist()) for half in range(2)]
        for groups in ([tuple(range(graph.npus))], halves):
            with suppress(WorkloadError):
                packets, *flows = times_ps(graph, kind, algorithm, groups)
                for found, time_ps in zip((steps, coupled), flows, strict=True):
                    found.append(100 * (time_ps / packets - 1))
    return steps, coupled


def main(kinds: list[str]) -> None:
    """Print the table.

    Args:
        kinds: The kinds of collectives, one part of the table each.
    """
    columns = [f"{name}, {how}" for name in FABRICS for how in ("steps", "coupled")]
    sys.stdout.write(f"| collective | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}\n")
    for kind in kinds or ["all-reduce", "all-gather", "all-to-all"]:
        for algorithm in (*algorithms_of(kind), *NCCL.get(kind, ())):
            found = [part for fabric in FABRICS for part in errors(fabric, kind, algorithm)]
            cells = [f"{min(each):+.1f} to {max(each):+.1f}" if each else "" for each in found]
            sys.stdout.write(f"| {kind}, `{algorithm}` | {' | '.join(cells)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
