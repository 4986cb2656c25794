"""The question of `nadi expect`, and its answer: rows with times, bands, limits, and where they come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nadi.inputs.units import PS_PER_US
from nadi.insight.nccl_tests_command import NcclTestsCommand
from nadi.insight.node_times import bus_factor

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "send-receive")
"""Kinds of collectives by default: those of nccl-tests' programs that NCCL has as collectives, and a shift."""
SIZES = tuple(1 << power for power in (10, 16, 20, 24, 27, 30, 33))
"""Sizes in bytes by default: 1 and 64 KiB, 1, 16 and 128 MiB, 1 and 8 GiB."""
ALL_SIZES = tuple(1 << power for power in range(10, 35))  # sizes in bytes with --all: 1 KiB to 16 GiB
_PS_PER_NS_PER_GB_S = 1e3  # bytes per picosecond are thousands of GB/s


class ClusterQuestion(NamedTuple):
    """What a user asks about a cluster."""

    cluster: str  # name or file of a cluster, machine or topology, with parameters
    hosts: int = 0  # number of hosts of the largest group; 0 = all of the cluster
    kinds: Sequence[str] = KINDS
    sizes: Sequence[int] = ()  # sizes of the whole buffer in bytes; () = SIZES, or ALL_SIZES
    all_rows: bool = False  # whether every size and every power of two of hosts is wanted
    command: NcclTestsCommand | None = None  # command line of nccl-tests in place of kinds, sizes and hosts
    overrides: Sequence[str] = ()  # values of [network] and [system], or topology.params


class ExpectedRow(NamedTuple):
    """A collective of a size on a number of hosts: what nccl-tests should show."""

    kind: str
    bytes: int  # size of the whole buffer in bytes, as nccl-tests prints it
    hosts: int  # number of hosts
    gpus: int  # number of ranks
    time_ps: float  # time in picoseconds
    fastest_ps: float | None  # lower end of the band of times; None = its class has too few measured cases
    slowest_ps: float | None  # upper end of it
    choice: str  # what NCCL chooses: algorithm, protocol and channels; or the algorithm
    limit: str  # what limits: launch, protocol, channels, NVLink, NIC, leaf, spine, or "latency" and "links"
    limit_share: float | None  # fraction of the time that the limit takes; None = not known
    source: str  # how the time was obtained: "packets", "flows", "formula" or "messages", and what came to it
    class_name: str  # class of the question in validation
    cases: int  # number of measured cases behind the band, those of the class that latency, or a rate, decides
    measured: int  # number of measured cases of this kind of collective in the class
    coverage: float | None  # probability that a further case of the class is in its band
    paths: int = 0  # number of draws of hashed paths behind the band; 0 = paths are not hashed

    @property
    def evidence(self) -> str:
        """What was measured of the row's kind: numbers of cases, or that there are none."""
        return f"{self.measured} of {self.kind} in its class" if self.measured else "no measured rows behind this"

    @property
    def algbw_gb_per_s(self) -> float:
        """Algorithm bandwidth in GB/s."""
        return _gb_per_s(self.bytes, self.time_ps)

    @property
    def busbw_gb_per_s(self) -> float:
        """Bus bandwidth in GB/s, by nccl-tests' factors (doc/PERFORMANCE.md)."""
        return self.algbw_gb_per_s * bus_factor(self.kind, self.gpus)

    @property
    def best_gb_per_s(self) -> float | None:
        """Upper end of the band of bus bandwidths in GB/s."""
        return None if self.fastest_ps is None else self._busbw(self.fastest_ps)

    @property
    def threshold_gb_per_s(self) -> float | None:
        """Threshold of an acceptance test in GB/s of the bus: the lower end of the band of bus bandwidths."""
        return None if self.slowest_ps is None else self._busbw(self.slowest_ps)

    def _busbw(self, time_ps: float) -> float:
        return _gb_per_s(self.bytes, time_ps) * bus_factor(self.kind, self.gpus)

    def document(self) -> dict[str, Any]:
        """Return the row as JSON values: times in microseconds, bandwidths in GB/s."""
        return {
            "collective": self.kind,
            "bytes": self.bytes,
            "hosts": self.hosts,
            "gpus": self.gpus,
            "time_us": self.time_ps / PS_PER_US,
            "algbw_GB_per_s": self.algbw_gb_per_s,
            "busbw_GB_per_s": self.busbw_gb_per_s,
            "threshold_busbw_GB_per_s": self.threshold_gb_per_s,
            "best_busbw_GB_per_s": self.best_gb_per_s,
            "fastest_us": None if self.fastest_ps is None else self.fastest_ps / PS_PER_US,
            "slowest_us": None if self.slowest_ps is None else self.slowest_ps / PS_PER_US,
            "choice": self.choice,
            "limit": self.limit,
            "limit_share": self.limit_share,
            "source": self.source,
            "class": self.class_name,
            "cases": self.cases,
            "evidence": self.evidence,
            "coverage": self.coverage,
            "hashed_paths": self.paths,
        }


def counted(count: int, noun: str) -> str:
    """Return a number with a noun in singular or plural.

    Args:
        count: The number.
        noun: The noun in singular.
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _gb_per_s(size_bytes: int, time_ps: float) -> float:
    return size_bytes / time_ps * _PS_PER_NS_PER_GB_S if time_ps > 0 else 0.0


@dataclass(frozen=True)
class Expectation:
    """The answer of `nadi expect`."""

    cluster: str  # cluster as the user named it
    gpus: int  # number of GPUs of the fabric
    hosts: int  # number of hosts of the fabric
    rows: Sequence[ExpectedRow]  # by kind, then hosts, then size
    notes: Sequence[str] = ()  # sentences about what is not modelled, and what was left out
    command: NcclTestsCommand | None = None
    counts: Sequence[int] = ()  # column "count" of nccl-tests of each row; () without a command

    def document(self) -> dict[str, Any]:
        """Return the document that --json prints."""
        rows = [row.document() for row in self.rows]
        for row, count in zip(rows, self.counts, strict=False):
            row["count"] = count
        return {
            "cluster": self.cluster,
            "gpus": self.gpus,
            "hosts": self.hosts,
            "notes": list(self.notes),
            "rows": rows,
        }
