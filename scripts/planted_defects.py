"""Plant known defects on simulated clusters, write what nccl-tests would print, and count how often they are found.

    python scripts/planted_defects.py --seed 1 [2 ...] [--only NAME] [--out DIR]

Ten defects and five healthy clusters, on fabrics of three kinds: rails of H100 (InfiniBand), A100 behind leaves and
spines (RoCE), H100 with NICs of two ports into two planes. Sizes up to 8 MiB are simulated as packets, larger ones as
flows. The seed decides where the defect is, how severe it is, and 2 % of noise of each row. Each log has what an
operator would run: four collectives on all GPUs, one of them twice, one on each host alone and on each two neighbouring
hosts, and one rail of two hosts after the other.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nadi.insight.benchmark_logs import SEND_RECEIVE, read_logs
from nadi.insight.node_times import bus_factor
from nadi.studies.diagnosis import diagnose
from nadi.studies.diagnosis.simulating import HEALTHY, Cap, Simulator, Slow, TimedCollective, WhatIf

NOISE = 0.02  # standard deviation of ln(time) of each row
MAX_BYTES_OF_PACKETS = 8 << 20
SIZES_BYTES = (64 << 10, 1 << 20, 8 << 20, 64 << 20, 512 << 20, 4 << 30)
TESTS = ("all-reduce", "all-gather", "all-to-all", SEND_RECEIVE)
PROGRAMS = {
    "all-reduce": "all_reduce_perf",
    "all-gather": "all_gather_perf",
    "all-to-all": "alltoall_perf",
    SEND_RECEIVE: "sendrecv_perf",
}

LEAF_SPINE = """
gpu = "a100"
gpus_per_host = 8
gpus = 32

[fabric]
name = "rail-fat-tree"
accelerator = "a100"
nvlink_rate = "300GB/s"
rate = "200Gbps"
rails = 1
hosts_per_unit = 1
spines = 4
uplink_rate = "400Gbps"
switch_latency = "600ns"

[network]
load_balancing = "adaptive"
"""
TWO_PLANES = """
gpu = "h100"
gpus_per_host = 8
gpus = 64

[fabric]
name = "rail-fat-tree"
accelerator = "h100"
nvlink_rate = "450GB/s"
rate = "200Gbps"
ports = 2
hosts_per_unit = 4
spines = 8
switch_latency = "600ns"

[network]
load_balancing = "adaptive"
"""


class Case(NamedTuple):
    """A cluster with a defect, or a healthy one."""

    name: str  # name of the cause, or "healthy"
    cluster: str  # "rails", "leaf-spine" or "two-planes"
    gpus: int
    what_if: WhatIf


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Yield ten defects and five healthy clusters.

    Args:
        rng: Random numbers of severities and places.
    """
    share = rng.uniform(0.3, 0.6, 10)
    gpu = rng.integers(0, 16, 10)
    yield Case("nvls-off", "rails", 16, WhatIf(nccl=("nvls=false",)))
    yield Case("pxn-off", "rails", 64, WhatIf(nccl=("pxn=false",)))
    yield Case("few-channels", "rails", 16, WhatIf(nccl=(f"channels={rng.choice([2, 4, 8])}",)))
    yield Case("gdr-off", "rails", 16, WhatIf(slow=Slow("all NICs", share[0], round(rng.uniform(3e6, 6e6)))))
    yield Case("slow-gpu", "rails", 16, WhatIf(slow=Slow("a GPU's NVLinks", share[1], npu=int(gpu[1]))))
    # a ring has two connections between two NICs
    yield Case("connection-cap", "rails", 16, WhatIf(cap=Cap(float(share[2]) / 2)))
    yield Case("slow-nic", "two-planes", 16, WhatIf(slow=Slow("one NIC", share[3], npu=int(gpu[3]))))
    yield Case("slow-host", "two-planes", 32, WhatIf(slow=Slow("a host", share[4], npu=int(gpu[4]))))
    hashed = WhatIf(('network.load_balancing="ecmp"',), seed=int(rng.integers(100, 1000)))
    yield Case("ecmp-collisions", "leaf-spine", 32, hashed)
    yield Case("oversubscription", "leaf-spine", 32, WhatIf(slow=Slow("all uplinks", share[5])))
    for cluster, gpus in (("rails", 16), ("rails", 64), ("leaf-spine", 32), ("two-planes", 16), ("two-planes", 32)):
        yield Case("healthy", cluster, gpus, HEALTHY)


class Test(NamedTuple):
    """A run of a program of nccl-tests."""

    kind: str
    hosts: tuple[int, ...]
    devices: tuple[int, ...] = tuple(range(8))  # of each host

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return len(self.hosts) * len(self.devices)

    def place(self, size_bytes: int) -> TimedCollective:
        """Return the measurement of a size."""
        return TimedCollective(self.kind, self.gpus, size_bytes, len(self.hosts) if len(self.devices) < 8 else 0)

    def what_if(self, case: Case, number: int) -> WhatIf:
        """Return what of a defect the test meets, with paths of its own: each run opens new queue pairs.

        Args:
            case: The defect.
            number: Number of the test.
        """
        changed = case.what_if._replace(seed=case.what_if.seed + number) if case.what_if.settings else case.what_if
        if len(self.hosts) == 1:
            changed = changed._replace(settings=(), cap=None, seed=1)
        if changed.slow is None or changed.slow.place not in {"one NIC", "a GPU's NVLinks", "a host"}:
            return changed
        host, device = divmod(changed.slow.npu, 8)
        is_met = host in self.hosts and (device in self.devices or changed.slow.place == "a host")
        if not is_met:
            return changed._replace(slow=None)
        npu = self.hosts.index(host) * len(self.devices)
        npu += self.devices.index(device) if device in self.devices else 0
        return changed._replace(slow=changed.slow._replace(npu=npu))


def tests_of(hosts: int) -> Iterator[Test]:
    """Yield the tests of a log.

    Args:
        hosts: Number of hosts.
    """
    for kind in (*TESTS, "all-gather"):
        yield Test(kind, tuple(range(hosts)))
    for host in range(hosts):
        yield Test("all-reduce", (host,))
    for host in range(0, hosts if hosts > 2 else 0, 2):
        yield Test("all-gather", (host, host + 1))
    for device in range(8):
        yield Test(SEND_RECEIVE, (0, 1), (device,))


def printed(simulator: Simulator, case: Case, rng: np.random.Generator) -> Iterator[str]:
    """Yield the lines that nccl-tests would print.

    Args:
        simulator: The cluster of the case.
        case: The defect.
        rng: Random numbers of the noise.
    """
    known_us: dict[tuple[WhatIf, TimedCollective], float] = {}
    for number, test in enumerate(tests_of(case.gpus // 8)):
        kind, gpus = test.kind, test.gpus
        yield f"$ mpirun -np {gpus} {PROGRAMS[kind]} -b 64K -e 4G -f 8"
        yield "# nThread 1 nGpus 1 minBytes 65536 maxBytes 4294967296 step: 8(factor) warmup iters: 5 iters: 20"
        yield "#\n# Using devices"
        for rank, (host, device) in enumerate(product(test.hosts, test.devices)):
            name = "NVIDIA A100-SXM4-80GB" if case.cluster == "leaf-spine" else "NVIDIA H100 80GB HBM3"
            at = f"host-{host} device {device:2d} [0x{16 + 8 * device:02x}]"
            yield f"#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} on {at} {name}"
        yield "#\n#" + " " * 62 + "out-of-place                       in-place"
        columns = "   time   algbw   busbw #wrong"
        yield f"#       size         count      type   redop    root  {columns}  {columns}"
        yield (
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
            + " " * 12
            + "(us)  (GB/s)  (GB/s)"
        )
        redop = "sum" if kind == "all-reduce" else "none"
        for size in SIZES_BYTES:
            by_packets = size <= MAX_BYTES_OF_PACKETS
            key = test.what_if(case, number), test.place(size)
            if key not in known_us:
                known_us[key] = simulator.run_us(*key, by_packets=by_packets)
            time_us = known_us[key]
            parts = [_part(kind, gpus, size, time_us * np.exp(rng.normal(0, NOISE))) for _ in range(2)]
            yield f"{size:12d}  {size // 4:12d}     float  {redop:>6}      -1  {parts[0]}  {parts[1]}"
        yield "# Out of bounds values : 0 OK\n#"


def _part(kind: str, gpus: int, size_bytes: int, time_us: float) -> str:
    """Return time, algorithm and bus bandwidth and number of wrong elements, as nccl-tests prints them."""
    rate = size_bytes / time_us / 1e3
    decimals = 2 if time_us < 1e3 else 1 if time_us < 1e5 else 0
    return f"{time_us:7.{decimals}f}  {rate:6.2f}  {rate * bus_factor(kind, gpus):6.2f}       0"


def main() -> None:
    """Run all cases of a seed, and print how often the right cause was first or second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, nargs="+", required=True)
    parser.add_argument("--only", default="", help="name of one cause, or healthy")
    parser.add_argument("--out", type=Path, help="folder for clusters and logs; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        clusters = {"rails": "dgx-h100-superpod"}
        for name, text in (("leaf-spine", LEAF_SPINE), ("two-planes", TWO_PLANES)):
            (folder / f"{name}.toml").write_text(text, encoding="utf-8")
            clusters[name] = str(folder / f"{name}.toml")
        # what is planted and what is diagnosed share no times
        simulators, diagnosers = ({name: Simulator(each) for name, each in clusters.items()} for _ in range(2))
        for seed in options.seed:
            _trial(seed, options.only, folder, clusters, simulators, diagnosers)


def _trial(
    seed: int,
    only: str,
    folder: Path,
    clusters: dict[str, str],
    simulators: dict[str, Simulator],
    diagnosers: dict[str, Simulator],
) -> None:
    """Diagnose the cases of a seed, and print a line for each and their sums."""
    rng = np.random.default_rng(seed)
    first = among_two = defects = alarms = healthy = 0
    for number, case in enumerate(cases(rng)):
        lines = np.random.default_rng([seed, number])
        if only and case.name != only:
            continue
        path = folder / f"{seed}-{number:02d}-{case.name}-{case.cluster}.log"
        path.write_text("\n".join(printed(simulators[case.cluster], case, lines)) + "\n", encoding="utf-8")
        begun_s = time.process_time()
        found = diagnose(clusters[case.cluster], read_logs([path]), diagnosers[case.cluster])
        best = found.hypotheses[:3]
        texts = ", ".join(f"{each.name} {each.probability:.0%}" for each in best)
        print(f"{case.name:18s} {case.cluster:11s} {texts}  ({time.process_time() - begun_s:.0f} s)", flush=True)
        if case.name == "healthy":
            healthy, alarms = healthy + 1, alarms + (best[0].name != "healthy")
            continue
        defects += 1
        first += best[0].name == case.name
        among_two += case.name in {each.name for each in best[:2]}
    print(f"seed {seed}: first {first} of {defects}, among two {among_two}; false alarms {alarms} of {healthy}")


if __name__ == "__main__":
    main()
