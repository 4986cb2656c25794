"""Measure what a checkpoint costs, for benchmarks of `nadi bench`: python scripts/checkpoint_cost.py roce pairs.

Each run, with larger messages, is asked for a checkpoint after a second, ends there, and continues with the same and
with four parts of the fabric. The script prints the packets under way, the sending queue pairs, the size of the
checkpoint, the time of writing and syncing it, and the times from built worlds to the first packets after it.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from nadi import partition, topologies
from nadi.launching.checkpoints import CheckpointFolder, newest
from nadi.pdes import Settings, build_world, run
from nadi.pdes.parallel import NO_SNAPSHOT, SAVE_AND_END, SavedState, StoppedError
from nadi.studies.benchmarks.bench import BENCHES

AFTER_S = 1.0  # wall time after which a checkpoint is requested
MIB = 1 << 20
LARGER = 8  # factor on the size of messages, so that runs last some seconds


class Measured(CheckpointFolder):
    """Checkpoints of a run that ends at the first, AFTER_S after its begin, and notes what is under way then."""

    begun_s = listening_s = first_part_s = float("inf")

    @property
    def request(self) -> int:
        """As Checkpoints.request; the first call follows the first packets."""
        now_s = time.monotonic()
        self.begun_s = min(self.begun_s, now_s)
        return SAVE_AND_END if self.resumed is None and now_s > self.begun_s + AFTER_S else NO_SNAPSHOT

    @request.setter
    def request(self, value: int) -> None:
        """Nothing else requests a checkpoint."""

    def listen(self) -> None:
        """As Checkpoints.listen: the worlds are built, and are restored next."""
        self.listening_s = time.monotonic()

    def write(self, name: str, state: SavedState) -> None:
        """As Checkpoints.write.

        Args:
            name: The name of the part.
            state: The state of a process.
        """
        self.first_part_s = min(self.first_part_s, time.monotonic())
        super().write(name, state)


def measure(name: str) -> None:
    """Print a row of the table for a benchmark.

    Args:
        name: The name of the benchmark.
    """
    bench = BENCHES[name]
    graph = topologies.build(bench.spec)
    program = bench.program(graph, LARGER * bench.size_bytes, 1)
    settings = Settings(record_nodes=False, record_flows=False, nvlink_framing=False, **bench.choices)
    with tempfile.TemporaryDirectory() as folder:
        begun = Measured(Path(folder), 0, None, {}, lambda _: None)
        sim = build_world(graph, program, settings)
        try:
            run(sim, checkpoints=begun)
        except StoppedError:
            wrote_s = time.monotonic() - begun.first_part_s
        else:
            raise SystemExit(f"{name} ends before its checkpoint")
        count, ctl = sim.lps[0].world.net.count, sim.lps[0].world.net.ctl
        made = int(count.data_packets + count.ack_packets + count.congestion_notifications)
        packets = made - int(count.consumed_packets + count.dropped_packets)
        size = sum(path.stat().st_size for path in newest(Path(folder)).iterdir())
        restored = []
        for parts in (1, 4):
            owner = partition.partition(graph, parts).owner if parts > 1 else None
            sim = build_world(graph, program, settings, owner)
            resumed = Measured(Path(folder), 0, newest(Path(folder)), {}, lambda _: None)
            try:
                run(sim, lambda _: (_ for _ in ()).throw(StoppedError("measured")), checkpoints=resumed)
            except StoppedError:
                restored.append(resumed.begun_s - resumed.listening_s)
    per_million = size / packets if packets else 0
    sys.stdout.write(
        f"{name:12} {graph.npus:6} {packets:9} {int(ctl.queue_pairs):9} {size / MIB:9.1f} {per_million:9.0f} "
        f"{wrote_s:8.2f} {restored[0]:8.2f} {restored[1]:8.2f}\n"
    )
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table.

    Args:
        arguments: The words of the command line; None means those of the process.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="*", default=["permutation", "roce", "allreduce"])
    given = parser.parse_args(arguments)
    sys.stdout.write(
        f"{'benchmark':12} {'NPUs':>6} {'packets':>9} {'pairs':>9} {'MiB':>9} {'B/packet':>9} {'write s':>8} "
        f"{'same s':>8} {'parts s':>8}\n"
    )
    for name in given.benchmarks:
        measure(name)


if __name__ == "__main__":
    main()
