"""Collectives as flows against packets, by algorithm: a Markdown table for docs/explanation/fidelity.md.

    python scripts/coupled_flows.py [KIND ...]

Each cell is how far the finish time by flows is from that by packets, in %, with each message as a flow ("steps") and
with coupled flows. The collective runs among all NPUs, or twice at once, among even and among odd hosts.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import topologies
from et import CollectiveCommType, coll_node, metadata, table_of
from nadi.configuration.sections import NetworkSection
from nadi.launching.progress import NoProgress
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.closed_forms.coupled import coupled_collectives
from nadi.simulation.run import network_settings, run_program
from topologies import Graph
from workload import KINDS, CollectiveSettings, WorkloadError, algorithms_of, build_program

SIZE_BYTES = 4 << 20
FABRICS = {
    f"{ratio}:1": f"leaf-spine:npus=16,hosts_per_leaf=4,rate=100Gbps,delay=500ns,spines={4 // ratio}"
    for ratio in (1, 2, 4)
} | {
    f"hosts {ratio}:1": f"rail-fat-tree:npus=32,accelerator=a100,rails=1,hosts_per_unit=2,spines={16 // ratio}"
    for ratio in (1, 2, 4)
}
NCCL = ("nccl", "nccl:algo=ring", "nccl:algo=tree")


def times_ps(graph: Graph, kind: str, algorithm: str, groups: list[tuple[int, ...]]) -> Iterator[int]:
    """Yield the finish time in ps of a collective of each group at once: by packets, as messages, as coupled flows."""
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


def cell(graph: Graph, kind: str, algorithm: str, groups: list[tuple[int, ...]]) -> str:
    """Return how far steps and coupled flows are from packets, in %; "" if the algorithm does not do this."""
    try:
        packets, *flows = times_ps(graph, kind, algorithm, groups)
    except WorkloadError:
        return ""
    return ", ".join(f"{100 * (time / packets - 1):+.1f}" for time in flows)


def main(kinds: list[str]) -> None:
    """Print the table."""
    columns = [f"{name}{what}" for name in FABRICS for what in ("", ", twice")]
    sys.stdout.write(f"| collective | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}\n")
    for kind in kinds or ["all-reduce", "all-gather", "all-to-all"]:
        for algorithm in (*algorithms_of(kind), *NCCL[1:]):
            cells = []
            for spec in FABRICS.values():
                graph = topologies.build(spec)
                hosts = graph.host if graph.host.max() > 0 else np.arange(graph.npus)
                halves = [tuple(np.flatnonzero(hosts % 2 == half).tolist()) for half in range(2)]
                cells += [cell(graph, kind, algorithm, groups) for groups in ([tuple(range(graph.npus))], halves)]
            sys.stdout.write(f"| {kind}, `{algorithm}` | {' | '.join(cells)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
