"""Completion times of ASTRA-sim's analytical networks, to the nanosecond, from run files (docs/fidelity.md).

bytes are a member's buffer, of all-gather its contribution; a clock of 1 ns; endpoints of 10 ns; memory of 1,600 B/ns
for reductions; GB of 2^30 bytes; 4 chunks one after another.
"""

import csv
import re
from typing import NamedTuple

import numpy as np
import pytest

import et
from nadi.launching.progress import Silence
from nadi.run_file import load_config
from nadi.simulation import simulate

MEMORY_BYTES_PER_NS, HGX_MEMORY = 1600, 3350
TOPOLOGIES = {"Ring": "ring", "Switch": "switch", "FullyConnected": "fully-connected"}
HGX = "switch:npus=8,rate=400GiB/s,delay=936.25ns"
# Files of two dimensions are not at hand; these rates and delays fit all their rows.
TWO_DIMENSIONS = "stack:dims={}({})_{}({}),rates={}_{},delays=500ns_1us"
RUN = """
[workload]
traces = "trace.et"
[topology]
spec = "{spec}"
[system]
collectives = {{ {kind} = "{algorithm}" }}
dataset_splits = {chunks}
phases_per_dimension = {at_once}
[network]
fidelity = "analytical"
congestion_aware = {aware}
endpoint_delay = "10ns"
reduction_bandwidth = "{memory}GB/s"
resolution = "1ns"
"""


class Case(NamedTuple):
    """What a row stands for; at_once: chunks under way at a time."""

    spec: str
    kind: str
    algorithms: list
    sizes: list
    size: int
    chunks: int
    at_once: int = 1
    memory: int = MEMORY_BYTES_PER_NS

    def run(self, backend, folder):
        """As a user writes it."""
        comm_type = et.CollectiveCommType[self.kind.replace("-", "_").upper()]
        et.write_trace(folder / "trace.et", et.metadata(), [et.coll_node(1, self.kind, comm_type, self.size)])
        algorithm = self.algorithms[0] if len(self.sizes) == 1 else f"grid:algorithms={'/'.join(self.algorithms)}"
        aware = str(backend == "Aware").lower()
        (folder / "run.toml").write_text(RUN.format(**self._asdict(), algorithm=algorithm, aware=aware))
        return simulate(load_config(folder / "run.toml"), Silence()).results

    def uncharged_ns(self):
        """Their halving-doubling takes no time for the first of its reductions, of half of what the dimension has."""
        if self.kind == "all-gather" or "halving-doubling" not in self.algorithms:
            return 0
        first = self.size // np.prod(self.sizes[:-1], dtype=int) // 2
        return 3 * (int(first) // self.memory)


def case_of(row):
    kind, size, npus = row["collective"].replace("_", "-"), int(row["bytes"]), int(row["npus"])
    if row["network"].startswith("HGX"):
        return Case(HGX, kind, ["ring"], [8], size, 4, at_once=2, memory=HGX_MEMORY)
    algorithms, chunks = re.fullmatch(r"([a-zA-Z_]+)_(\d)chunks?\.json", row["system"]).groups()
    algorithms = [re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower() for name in algorithms.split("_")]
    two = re.fullmatch(r"(\D+)(\d+)_(\D+)(\d+)\.yml", row["network"])
    if two:
        rates = ("400GiB/s", "50GiB/s") if two[1] == two[3] == "Switch" else ("50GiB/s", "25GiB/s")
        spec = TWO_DIMENSIONS.format(*two.groups(), *rates)
        return Case(spec, kind, algorithms, [int(two[2]), int(two[4])], size, int(chunks))
    spec = f"{TOPOLOGIES[row['network'].split('_')[0]]}:npus={npus},rate=50GiB/s,delay=500ns"
    return Case(spec, kind, algorithms, [npus], size, int(chunks))


def least_and_most_ns(results):
    """When the first and the last NPU is done."""
    done = np.maximum.reduceat(results.node_finish_ps, results.npu_node_ptr[:-1])
    assert not np.any(done % 1000)
    return int(done.min()) // 1000, int(done.max()) // 1000


def test_every_row(shared_data, tmp_path):
    path = shared_data / "astra-sim" / "analytical_results_8_16_npus.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    off = {}
    for row in rows:
        case = case_of(row)
        found = least_and_most_ns(case.run(row["backend"], tmp_path))
        expected = tuple(int(row[f"{end}_cycles"]) + case.uncharged_ns() for end in ("min", "max"))
        if found != expected:
            off[tuple(row.values())] = found
    assert off == {}
    assert len(rows) == 178
    assert sum(case_of(row).uncharged_ns() > 0 for row in rows) == 12


@pytest.mark.parametrize("backend", ["Unaware", "Aware"])
@pytest.mark.parametrize(
    ("topology", "algorithm", "npus", "nanoseconds"),
    [
        ("ring", "ring", 8, {"Unaware": 43_025, "Aware": 43_025}),
        ("ring", "ring", 16, {"Unaware": 53_710, "Aware": 53_710}),
        ("fully-connected", "direct", 8, {"Unaware": 6155, "Aware": 6155}),
        ("switch", "halving-doubling", 8, {"Unaware": 40_978, "Aware": 75_154}),
    ],
)
def test_known_all_reduces_of_1_mib(tmp_path, topology, algorithm, npus, nanoseconds, backend):
    case = Case(f"{topology}:npus={npus},rate=50GiB/s,delay=500ns", "all-reduce", [algorithm], [npus], 1 << 20, 1)
    expected = nanoseconds[backend] + (3 * 327 if algorithm == "halving-doubling" else 0)
    assert least_and_most_ns(case.run(backend, tmp_path)) == (expected, expected)


def test_their_regression_of_four_splits(tmp_path):
    """Memory of 50 B/ns: a ring of 8 that is done with all four quarters at 117,780 ns on every rank."""
    case = Case("ring:npus=8,rate=50GiB/s,delay=500ns", "all-reduce", ["ring"], [8], 1 << 20, 4, memory=50)
    assert least_and_most_ns(case.run("Aware", tmp_path)) == (117_780, 117_780)
