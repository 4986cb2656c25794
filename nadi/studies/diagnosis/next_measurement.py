"""The measurement that separates two hypotheses: the one whose times differ most in units of the noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from nadi.inputs.errors import InputError
from nadi.insight.benchmark_logs import SEND_RECEIVE, BenchmarkLog
from nadi.studies.diagnosis.likelihood import Noise
from nadi.studies.diagnosis.rows import latency_sd, place_of
from nadi.studies.diagnosis.simulating import HEALTHY, Simulator, TimedCollective, WhatIf
from nadi.workload.collectives import ON_NVSWITCHES

_SIZES_BYTES = (1 << 16, 1 << 24, 1 << 30)
_KINDS = ("all-reduce", "all-gather", "all-to-all", "broadcast", SEND_RECEIVE)
# variables that may separate hypotheses, their parameters of the algorithm nccl, and the collectives that they change
_SETTINGS = {
    "": ((), _KINDS),
    "NCCL_ALGO=Ring": (("algo=ring",), ("all-reduce",)),
    "NCCL_NVLS_ENABLE=0": (("nvls=false",), ("all-reduce",)),
    "NCCL_MIN_NCHANNELS=32": (("channels=32",), ("all-gather",)),
}


@dataclass(frozen=True)
class NextMeasurement:
    """A measurement that separates two hypotheses."""

    kind: str
    gpus: int
    hosts: int
    size_bytes: int
    settings: str  # variables of NCCL, "" = none
    elsewhere: str  # name of the place that the measurement leaves out, "" = none
    names: tuple[str, str]  # of the two hypotheses
    times_us: tuple[float, float]  # predicted with the first and with the second hypothesis
    sds: float  # difference of ln(time) in standard deviations of the noise

    def document(self) -> dict[str, Any]:
        """Return the measurement for --json."""
        fields = ("kind", "gpus", "hosts", "settings", "elsewhere", "names", "times_us", "sds")
        return {"bytes": self.size_bytes, **{name: getattr(self, name) for name in fields}}


def separating(
    simulator: Simulator,
    logs: Sequence[BenchmarkLog],
    noise: Noise,
    what_ifs: Mapping[str, WhatIf],
    places: Mapping[str, str],
) -> NextMeasurement | None:
    """Return the measurement whose times with two changes differ most in units of noise; None if none differs by one.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        logs: Tests that are there already.
        noise: Errors of predictions.
        what_ifs: The changes by name of the hypothesis, the more probable first.
        places: Name of the place of hypotheses that are at one: it can be left out if there are more hosts.
    """
    names = tuple(what_ifs)
    if len(names) < 2:
        return None
    largest = max(logs, key=lambda log: log.gpus)
    whole = simulator.fabric_of(HEALTHY, place_of(simulator, largest, 1)).graph
    hosts, per_host = len(np.unique(whole.host)), int(np.bincount(whole.host).max())
    numbers = {(per_host * count, 0) for count in (1, 2, hosts) if count <= hosts}
    numbers |= {(2, 2)} if hosts > 1 else set()  # a GPU of each of two hosts: one rail
    seen = {(log.collective, log.gpus) for log in logs}
    omitted = [""] + [place for place in places.values() if place and hosts > 2]
    best: NextMeasurement | None = None
    for kind, (gpus, of_hosts), size_bytes, settings, place_name in product(
        _KINDS, sorted(numbers), _SIZES_BYTES, _SETTINGS, omitted
    ):
        parameters, kinds = _SETTINGS[settings]
        is_seen = (kind, gpus) in seen and not settings and not place_name
        if gpus < 2 or is_seen or kind not in kinds or (place_name and (settings or gpus >= per_host * hosts)):
            continue
        place = TimedCollective(kind, gpus, size_bytes, of_hosts, parameters)
        try:
            if settings and not simulator.algorithm(HEALTHY, place).startswith(ON_NVSWITCHES):
                continue
            changes = [HEALTHY if place_name and places.get(name) == place_name else what_ifs[name] for name in names]
            first, second = (simulator.time_us(each, place) for each in changes)
        except InputError:
            continue
        sds = abs(math.log(first / second)) / math.hypot(noise.test, noise.row, latency_sd(simulator, place))
        if best is None or sds > best.sds:
            count = simulator.hosts(place)
            best = NextMeasurement(
                kind, gpus, count, size_bytes, settings, place_name, (names[0], names[1]), (first, second), sds
            )
    return best if best is not None and best.sds >= 1 else None
