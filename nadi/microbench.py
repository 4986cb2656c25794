"""One collective of all NPUs on an idle fabric, size after size, with the closed form beside: what nccl-tests does."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import pdes
import workload
from nadi.analysis import bandwidths_Bps
from nadi.closed_form import idle_ps
from nadi.errors import ConfigError
from nadi.progress import Progress, Silence
from nadi.simulate import run_program
from topologies import Graph
from topologies.units import parse_bytes
from workload import KINDS

MOST_SIZES = 1000


class Row(NamedTuple):
    """A collective and how long it took."""

    kind: str
    algorithm: str
    bytes: int
    time_ps: int
    algbw_Bps: float  # noqa: N815 - bytes, not bits
    busbw_Bps: float  # noqa: N815 - bytes, not bits
    closed_form_ps: float
    ratio: float
    packet_hops: int
    digest: str


def measure(
    graph: Graph,
    kind: str,
    algorithms: list[str],
    sizes: list[int],
    settings: pdes.Settings,
    progress: Progress | Silence,
) -> Iterator[Row]:
    """Run a collective with each algorithm and size.

    Args:
        graph: the fabric; all its NPUs take part.
        kind: see workload.KINDS.
        algorithms: names.
        sizes: bytes of the whole buffer S.
        settings: packets and switching.
        progress: told what is going on.

    Raises:
        workload.WorkloadError: an algorithm that does not do this kind.
        pdes.RunError: a run failed.
    """
    for algorithm in algorithms:
        for size in sizes:
            program = workload.collective_program(kind, graph.npus, size, algorithm)
            results = run_program(graph, program, settings, progress)
            closed_ps = idle_ps(
                graph,
                program,
                settings,
                kind=kind,
                algorithm=algorithm,
                schedule=int(program.node_schedule[0]),
                members=np.arange(graph.npus),
                size_bytes=int(program.node_bytes[0]),
            )
            time_ps = results.finish_time_ps
            bandwidths = bandwidths_Bps(KINDS.index(kind), graph.npus, int(program.node_bytes[0]), time_ps)
            ratio = time_ps / closed_ps if closed_ps > 0 else float("nan")
            hops = results.counters["packet_hops"]
            yield Row(kind, algorithm, size, time_ps, *bandwidths, closed_ps, ratio, hops, results.digest)


def parse_sizes(text: str) -> list[int]:
    """Bytes of "64KiB", "1MiB,4MiB", "1MiB:1GiB:x2" (each twice the one before) or "1MiB:8MiB:+1MiB".

    Raises:
        ConfigError: anything else, a step that does not grow, or more than MOST_SIZES.
        TopologyError: a part is no size.
    """
    sizes = [size for part in text.split(",") for size in _range(part.strip())]
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"--sizes {text}: found a size of 0; expected sizes like 1MiB:1GiB:x2")
    return sizes


def _range(text: str) -> list[int]:
    parts = text.split(":")
    if len(parts) == 1:
        return [parse_bytes(text)]
    if len(parts) != 3 or parts[2][:1] not in {"x", "+"}:
        raise ConfigError(f"--sizes {text}: expected a form like 1MiB:1GiB:x2, 1MiB:8MiB:+1MiB or 64KiB")
    first, last, step = parse_bytes(parts[0]), parse_bytes(parts[1]), parts[2]
    factor, summand = (_factor(text, step), 0) if step[0] == "x" else (1, parse_bytes(step[1:]))
    if first < 1 or (factor < 2 and summand < 1):
        raise ConfigError(f"--sizes {text}: does not grow; expected a first size above 0 and a step like x2 or +1MiB")
    sizes = []
    while first <= last:
        sizes.append(first)
        first = first * factor + summand
        if len(sizes) > MOST_SIZES:
            raise ConfigError(f"--sizes {text}: more than {MOST_SIZES} sizes; expected fewer")
    if not sizes:
        raise ConfigError(f"--sizes {text}: the first size is above the last; expected first:last:step")
    return sizes


def _factor(text: str, step: str) -> int:
    if not step[1:].isdecimal():
        raise ConfigError(f"--sizes {text}: found factor {step!r}; expected a whole number, as x2")
    return int(step[1:])
