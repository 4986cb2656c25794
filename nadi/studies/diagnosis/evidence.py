"""What the text of logs says about causes beside the rows: factors on their probabilities before the measurement.

NCCL itself reports what is on and off, perftest (ib_write_bw) measures NICs and network without NCCL, and `nvidia-smi
topo -m` shows whether a CPU is between GPUs and NICs. None of the factors follows from counts of cases: nobody has
published how often each cause occurs.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from nadi.insight.benchmark_logs import BenchmarkLog
from nadi.studies.diagnosis.rows import place_of
from nadi.studies.diagnosis.simulating import HEALTHY, Simulator, nic_links

EXCLUDED, REPORTED = (
    0.0,
    20.0,
)  # what NCCL reports as present is not missing; what it reports as absent probably matters
# A matrix of paths does not show ACS, which sends data between devices of one PCIe switch through the CPU all the same;
# a test of one pair of hosts does not show the others
_UNLIKELY = 0.25
_LINE_RATE, _SLOW_RATE = 0.9, 0.75  # shares of a link's rate at which perftest shows it to be fast, and to be slow
_BEYOND_VERBS = ("connection-cap", "pair-cap", "gdr-off", "nic-path")  # causes that perftest on memory of hosts misses
_OF_GPU_MEMORY = ("gdr-off", "nic-path")  # causes that perftest on memory of GPUs would show


def factors(simulator: Simulator, logs: Sequence[BenchmarkLog]) -> Mapping[str, float]:
    """Return the factor on the probability of each cause that the logs say something about.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        logs: The tests, with the lines around them.
    """
    found: dict[str, float] = {}
    for info in (log.nccl for log in logs if log.nccl):
        for name, value in (("nvls-off", info.nvls), ("gdr-off", info.gpu_direct)):
            if value is not None and found.get(name) != REPORTED:
                found[name] = EXCLUDED if value else REPORTED
        for variable, off, name in (("NCCL_NVLS_ENABLE", "0", "nvls-off"), ("NCCL_PXN_DISABLE", "1", "pxn-off")):
            if info.settings.get(variable) == off:
                found[name] = REPORTED
    for log in logs:
        own = _factors_of_hosts(log, link_bytes_per_s(simulator, log))
        found |= {name: factor for name, factor in own.items() if found.get(name) not in {EXCLUDED, REPORTED}}
    return found


def _factors_of_hosts(log: BenchmarkLog, line_rate: float) -> dict[str, float]:
    """Return the factors by perftest and by the matrix of paths; line_rate: bytes per second of a NIC's port."""
    evidence, found = log.evidence, {}
    if evidence.near_nics is not None:
        found["nic-path"] = _UNLIKELY if evidence.near_nics else REPORTED
    if 0 < evidence.verbs_Bps < _SLOW_RATE * line_rate:
        found |= dict.fromkeys(_BEYOND_VERBS, _UNLIKELY)
    if evidence.gpu_verbs_Bps >= _LINE_RATE * line_rate:
        found |= dict.fromkeys(_OF_GPU_MEMORY, _UNLIKELY)
    return found


def has_fast_nics(simulator: Simulator, log: BenchmarkLog) -> bool:
    """Return whether perftest had the rate of a port on every NIC that a test used.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        log: The test, with the names of NICs that NCCL printed.
    """
    used = {nic.name for nic in log.nccl.nics} if log.nccl else set()
    fastest = max(log.evidence.verbs_Bps, log.evidence.gpu_verbs_Bps)
    return bool(used) and used <= log.evidence.devices and fastest >= _LINE_RATE * link_bytes_per_s(simulator, log)


def link_bytes_per_s(simulator: Simulator, log: BenchmarkLog) -> float:
    """Return the rate of a port of a NIC of the cluster in bytes per second; 0 = there is no network.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        log: Log of one test, with at least one row.
    """
    graph = simulator.fabric_of(HEALTHY, place_of(simulator, log, log.rows[0].size_bytes)).graph
    return float(np.max(graph.link_rate_bps[nic_links(graph)], initial=0.0)) / 8
