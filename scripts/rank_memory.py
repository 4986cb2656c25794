"""Memory of the ranks of a large run, measured by building some of them one at a time, each in a process of its own.

    python scripts/rank_memory.py                            16,384 NPUs on 1, 8 and 64 nodes of 32 ranks
    python scripts/rank_memory.py --npus 1024 --nodes 1 2 --ranks-per-node 4

Each rank holds Python, the fabric, a program and the world of its logical process (LP). The ranks of a node share the
outboxes of their LPs, and the pages of files. Pools of a world grow with the packets in flight; this script measures
the state before the first window, in MB. It prints a Markdown table, which docs/explanation/performance.md has.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from nadi import pdes, topologies
from nadi.partition import DEFAULT_METHOD, uniform
from nadi.pdes import parallel
from nadi.pdes.construction import build_lps
from nadi.pdes.construction.layout import Layout, Outboxes, Part
from nadi.pdes.core.packet import WORD_BYTES
from nadi.pdes.workers import rounded
from nadi.pdes.workers.batches import MOST_RECORDS, batch_words, record_words
from nadi.simulation.assembly.partitioning import Load, divide
from nadi.studies.benchmarks.bench import BENCHES

FABRIC = "fat-tree:npus={npus},rate=100Gbps,delay=1us"
PAGE_BYTES = 4096
MB = 1e6
PARTS = ("Python and kernels", "fabric", "program", "layout", "world")  # what each rank holds
ONCE = ("files", "shared, reserved")  # what a node holds once


def main() -> None:
    """Print a row per number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npus", type=int, default=16_384, help="NPUs of the fabric")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8, 64], help="nodes of the cluster")
    parser.add_argument("--ranks-per-node", type=int, default=32, help="ranks of a node")
    parser.add_argument("--bench", default="permutation", help="benchmark of `nadi bench` whose program runs")
    parser.add_argument("--samples", type=int, default=3, help="ranks to build per number of nodes")
    parser.add_argument("--build", nargs=2, metavar=("RANK", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.build:
        print(json.dumps(build(args, int(args.build[0]), np.load(args.build[1]))))
        return
    titles = ("nodes", "ranks", *PARTS, "a rank", *ONCE, "a node, GB")
    print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}")
    parallel.compile_all()  # so that the ranks only load kernels
    for nodes in args.nodes:
        ranks = nodes * args.ranks_per_node
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "owner.npy"
            np.save(file, divided(args.npus, ranks))
            chosen = np.unique(np.linspace(0, ranks - 1, args.samples).round().astype(int))
            built = [in_a_process(args, rank, file) for rank in chosen]
        largest = {name: max(sizes[name] for sizes in built) for name in (*PARTS, *ONCE)}
        rank_bytes = max(sum(sizes[name] for name in PARTS) for sizes in built)
        node_bytes = args.ranks_per_node * rank_bytes + sum(largest[name] for name in ONCE)
        sizes = [largest[name] for name in PARTS] + [rank_bytes] + [largest[name] for name in ONCE]
        cells = [str(nodes), str(ranks), *(f"{size / MB:.0f}" for size in sizes), f"{node_bytes / 1e9:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def divided(npus: int, ranks: int) -> Any:  # noqa: ANN401 - int32[nodes]
    """Return the LP of each node, one LP per rank, for traffic from everywhere to everywhere.

    Args:
        npus: The number of NPUs.
        ranks: The number of ranks.
    """
    graph = topologies.build(FABRIC.format(npus=npus))
    return divide(graph, ranks, DEFAULT_METHOD, Load(uniform(graph), "", None, 0.0), pdes.Settings())[0].owner


def in_a_process(args: argparse.Namespace, rank: int, file: Path) -> dict[str, int]:
    """Return what `build` returns for a rank, in a process of its own."""
    values = ["--npus", args.npus, "--ranks-per-node", args.ranks_per_node, "--bench", args.bench]
    command = [sys.executable, __file__, *map(str, values), "--build", str(rank), str(file)]
    sizes: dict[str, int] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)  # noqa: S603
    return sizes


def build(args: argparse.Namespace, rank: int, owner: Any) -> dict[str, int]:  # noqa: ANN401 - int32[nodes]
    """Build a rank; return the bytes that it holds by part, without pages of files, and those that its node shares."""
    sizes: dict[str, int] = {}

    def measure(name: str) -> None:
        _, resident, of_files, *_ = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split())
        sizes[name] = (resident - of_files) * PAGE_BYTES - sum(sizes.values())

    parallel.compile_all()
    measure("Python and kernels")
    bench = BENCHES[args.bench]
    graph = topologies.build(FABRIC.format(npus=args.npus))
    measure("fabric")
    program = bench.program(graph, bench.size_bytes, 1)
    own = np.flatnonzero(owner[: args.npus] == rank)
    traces = np.full_like(program.trace_of_npu, -1)
    traces[own] = program.trace_of_npu[own]
    program = program._replace(trace_of_npu=traces)
    measure("program")
    settings = pdes.Settings(record_nodes=False, record_flows=False, nvlink_framing=False, **bench.choices)
    layout = Layout(graph, settings, owner)
    first = rank // args.ranks_per_node * args.ranks_per_node
    parts = [layout.part(number) for number in range(first, first + args.ranks_per_node)]
    node = np.arange(layout.lps) // args.ranks_per_node
    for each in parts:
        each.join_teams(graph, layout.owner, node)
    measure("layout")
    part = parts[rank - first]
    near = [layout.part(number) for number in part.neighbours]
    for each in near:
        each.join_teams(graph, layout.owner, node)
    measure("parts of neighbours")  # which a rank only has where they are on its node
    outboxes = Outboxes([part, *near], lambda words: np.zeros(words, np.int64))  # of its node, so nothing is touched
    sim = build_lps(layout, program, settings, [part], outboxes)
    measure("world")
    sizes["files"] = PAGE_BYTES * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[2])
    sizes["shared, reserved"] = WORD_BYTES * shared_words(parts, owner, args.ranks_per_node)
    del sim
    return sizes


def shared_words(parts: list[Part], owner: Any, ranks_per_node: int) -> int:  # noqa: ANN401 - int32[nodes]
    """Return the words that a node reserves for the outboxes of its LPs, `parts`, and for batches of other nodes."""
    node = np.arange(int(owner.max()) + 1) // ranks_per_node
    here, packets = node[parts[0].number], np.zeros((2, int(node.max()) + 1), np.int64)
    for part in parts:
        for direction, rooms in enumerate((part.rooms, part.rooms_in)):
            np.add.at(packets[direction], node[part.neighbours], rooms)
    records = MOST_RECORDS * np.delete(packets, here, axis=1)
    out, into = rounded(batch_words(records, record_words(parts[0]))).sum(axis=1)
    return int(out + 2 * into) + sum(int(part.outbox_at()[-1]) for part in parts)


if __name__ == "__main__":
    main()
