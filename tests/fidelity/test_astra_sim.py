"""Completion times of ASTRA-sim's analytical networks, to the nanosecond (docs/fidelity.md has its conventions).

bytes are a member's buffer, of all-gather its contribution; a clock of 1 ns; endpoints of 10 ns; memory of 1,600 B/ns
for reductions; GB of 2^30 bytes; 4 chunks one after another.
"""

import csv
import re
from typing import NamedTuple

import numpy as np
import pytest

from et import CollectiveCommType
from tests.fidelity.running import simulate
from tests.pdes.cases import Traces
from workload import CollectiveSettings, collectives
from workload.plans import Lane, each_its_own, everyone_alike
from workload.schedules import pack

ENDPOINT_NS, MEMORY_BYTES_PER_NS, HGX_MEMORY = 10, 1600, 3350
CONVENTIONS = {"endpoint_delay_ps": 1000 * ENDPOINT_NS, "resolution_ps": 1000}
MODELS = {"Unaware": "congestion_unaware", "Aware": "congestion_aware"}
TOPOLOGIES = {"Ring": "ring", "Switch": "switch", "FullyConnected": "fully-connected"}
HGX = "switch:npus=8,rate=400GiB/s,delay=936.25ns"
# Files of two dimensions are not at hand; these rates and delays fit all their rows.
TWO_DIMENSIONS = "stack:dims={}({})_{}({}),rates={}_{},delays=500ns_1us"


def halving_doubling(kind, n):
    """Rabenseifner's: exchanges with the member n/2, n/4, ... 1 away of halves, then back."""
    lanes = []
    for me in range(n):
        lane = Lane()
        distances = [n >> k for k in range(1, n.bit_length())]
        for d in distances if kind != "all-gather" else ():
            peer = me ^ d
            lane.step(
                send_to=peer, send=peer // d * d, send_count=d, receive_from=peer, receive=me // d * d,
                receive_count=d, reduce=True,
            )  # fmt: skip
        for d in reversed(distances) if kind != "reduce-scatter" else ():
            peer = me ^ d
            lane.step(
                send_to=peer, send=me // d * d, send_count=d, receive_from=peer, receive=peer // d * d, receive_count=d
            )
        lanes.append([lane])
    return each_its_own(n, lanes)


def relayed(n):
    """Their all-to-all on a ring: what is for the k-th next member goes over all k between, one message at a time."""
    lane = Lane()
    for _ in range(n * (n - 1) // 2):
        lane.step(send_to=1, receive_from=n - 1)
    return everyone_alike(n, n, [lane])


def plan(kind, algorithm, n):
    if algorithm == "halvingDoubling":
        return halving_doubling(kind, n)
    if algorithm == "ring" and kind == "all-to-all":
        return relayed(n)
    return collectives.plan(kind, algorithm, n)


def phases(kind, size, sizes):
    """Kind, dimension and comm_size of the collectives that one of several dimensions is made of."""
    if len(sizes) == 1:
        return [(kind, 0, size)]
    inner, outer = sizes
    return {
        "all-reduce": [("reduce-scatter", 0, size), ("all-reduce", 1, size // inner), ("all-gather", 0, size // inner)],
        "reduce-scatter": [("reduce-scatter", 0, size), ("reduce-scatter", 1, size // inner)],
        "all-gather": [("all-gather", 1, size), ("all-gather", 0, size * outer)],
        "all-to-all": [("all-to-all", 0, size), ("all-to-all", 1, size)],
    }[kind]


def program_of(kind, algorithms, sizes, size, chunks=1, at_once=1):
    """A collective in chunks, each a chain of collectives along the dimensions.

    A dimension does one collective after another, the first phase of all chunks first. With at_once above one (and a
    single dimension) so many chunks are under way.
    """
    npus = int(np.prod(sizes))
    lines = [np.arange(npus).reshape(-1, sizes[0])] + [np.arange(npus).reshape(-1, sizes[0]).T] * (len(sizes) - 1)
    groups = {f"{d} {i}": tuple(line.tolist()) for d, of in enumerate(lines) for i, line in enumerate(of)}
    todo = phases(kind, size // chunks, sizes)
    traces = Traces(npus)
    for number, (of_phase, d, phase_bytes) in enumerate(todo):
        comm_type = CollectiveCommType[of_phase.replace("-", "_").upper()]
        for chunk in range(chunks):
            before = [(number - 1) * chunks + chunk] * (number > 0) + [chunk - at_once] * (0 < at_once <= chunk)
            for name, members in groups.items():
                if name.startswith(f"{d} "):
                    deps = {npu: before if len(todo) == 1 or number > 0 else () for npu in members}
                    traces.collective(members, comm_type, phase_bytes, name, deps)
    program = traces.program(groups, CollectiveSettings(dict.fromkeys({phase for phase, _, _ in todo}, "direct")))
    schedule = program.node_schedule[: len(todo) * chunks : chunks].tolist()
    plans = {schedule[i]: plan(of_phase, algorithms[d], sizes[d]) for i, (of_phase, d, _) in enumerate(todo)}
    return program._replace(schedules=pack([plans[i] for i in sorted(plans)]))


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

    def run(self, backend):
        program = program_of(self.kind, self.algorithms, self.sizes, self.size, self.chunks, self.at_once)
        own = CONVENTIONS | {"reduction_psb": 1000 / self.memory}
        return simulate(self.spec, program, MODELS[backend], concurrent_collectives=self.at_once > 1, **own)

    def uncharged_ns(self):
        """Their halving-doubling takes no time for the first of its reductions, of half of what the dimension has."""
        if self.kind == "all-gather" or "halvingDoubling" not in self.algorithms:
            return 0
        first = self.size // np.prod(self.sizes[:-1], dtype=int) // 2
        return 3 * (int(first) // self.memory)


def case_of(row):
    kind, size, npus = row["collective"].replace("_", "-"), int(row["bytes"]), int(row["npus"])
    if row["network"].startswith("HGX"):
        return Case(HGX, kind, ["ring"], [8], size, 4, at_once=2, memory=HGX_MEMORY)
    algorithms, chunks = re.fullmatch(r"([a-zA-Z_]+)_(\d)chunks?\.json", row["system"]).groups()
    algorithms = [name[0].lower() + name[1:] for name in algorithms.split("_")]
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


def test_every_row(shared_data):
    path = shared_data / "astra-sim" / "analytical_results_8_16_npus.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    off = {}
    for row in rows:
        case = case_of(row)
        found = least_and_most_ns(case.run(row["backend"]))
        expected = tuple(int(row[f"{end}_cycles"]) + case.uncharged_ns() for end in ("min", "max"))
        if found != expected:
            off[tuple(row.values())] = found
    assert off == {}
    assert len(rows) == 178
    assert sum(case_of(row).uncharged_ns() > 0 for row in rows) == 12


@pytest.mark.parametrize("backend", MODELS)
@pytest.mark.parametrize(
    ("topology", "algorithm", "npus", "nanoseconds"),
    [
        ("ring", "ring", 8, {"Unaware": 43_025, "Aware": 43_025}),
        ("ring", "ring", 16, {"Unaware": 53_710, "Aware": 53_710}),
        ("fully-connected", "direct", 8, {"Unaware": 6155, "Aware": 6155}),
        ("switch", "halvingDoubling", 8, {"Unaware": 40_978, "Aware": 75_154}),
    ],
)
def test_known_all_reduces_of_1_mib(topology, algorithm, npus, nanoseconds, backend):
    case = Case(f"{topology}:npus={npus},rate=50GiB/s,delay=500ns", "all-reduce", [algorithm], [npus], 1 << 20, 1)
    expected = nanoseconds[backend] + (3 * 327 if algorithm == "halvingDoubling" else 0)
    assert least_and_most_ns(case.run(backend)) == (expected, expected)


def test_their_regression_of_four_splits():
    """Memory of 50 B/ns: a ring of 8 that is done with all four quarters at 117,780 ns on every rank."""
    case = Case("ring:npus=8,rate=50GiB/s,delay=500ns", "all-reduce", ["ring"], [8], 1 << 20, 4, memory=50)
    assert least_and_most_ns(case.run("Aware")) == (117_780, 117_780)
