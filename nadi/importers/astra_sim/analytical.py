"""Networks of ASTRA-sim's analytical back ends: topology, NPUs, bandwidth and latency of each dimension.

Source: astra-sim/astra-network-analytical. Bandwidths are in GB/s of 2^30 bytes, latencies in ns, both of one link.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, model_validator

from nadi.importers.file_sections import FileSections
from nadi.importers.files import PeerFile, read_model
from nadi.inputs.units import GIB, PS_PER_NS, format_rate, format_time

EXPECTED = "a network of ASTRA-sim: topology, npus_count, bandwidth and latency of each dimension (YAML or JSON)"
MAX_DIMENSIONS = 16


def _listed(value: object) -> object:
    """Return a scalar as a list of one, as ASTRA-sim 1 wrote networks of one dimension."""
    return value if isinstance(value, list) else [value]


_PER_DIMENSION = (BeforeValidator(_listed), Field(min_length=1, max_length=MAX_DIMENSIONS))


class NetworkFile(PeerFile):
    """Keys of a network file; each value is a list over the dimensions, fastest first."""

    topology: Annotated[list[Literal["Ring", "FullyConnected", "Switch"]], *_PER_DIMENSION]
    npus_count: Annotated[list[Annotated[int, Field(ge=2, le=1 << 24)]], *_PER_DIMENSION]
    bandwidth: Annotated[list[Annotated[FiniteFloat, Field(gt=0, le=1e9)]], *_PER_DIMENSION]
    latency: Annotated[list[Annotated[FiniteFloat, Field(ge=0, le=1e12)]], *_PER_DIMENSION]

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        """Refuse lists of different lengths."""
        for key in ("npus_count", "bandwidth", "latency"):
            if len(getattr(self, key)) != len(self.topology):
                raise ValueError(f"{key} has {len(getattr(self, key))} entries; expected {len(self.topology)}")
        return self


def read_analytical(path: Path, *, congestion_aware: bool | None) -> tuple[FileSections, list[int]]:
    """Return what a network file says, and the sizes of its dimensions, fastest first.

    `congestion_aware` chooses the back end; None = congestion-aware for one dimension, else unaware, as ASTRA-sim's
    congestion-aware back end has one dimension.
    """
    file = read_model(path, NetworkFile, EXPECTED)
    dims = "_".join(f"{kind}({npus})" for kind, npus in zip(file.topology, file.npus_count, strict=True))
    rates = "_".join(_rate(gib_s) for gib_s in file.bandwidth)
    delays = "_".join(format_time(round(ns * PS_PER_NS)) for ns in file.latency)
    aware = len(file.topology) == 1 if congestion_aware is None else congestion_aware
    sections = {
        "topology": {"spec": f"stack:dims={dims},rates={rates},delays={delays}"},
        "system": {"one_at_a_time": True},
        "network": {"fidelity": "analytical", "congestion_aware": aware, "resolution": "1ns"},
    }
    return FileSections(sections, tuple(file.unknown_keys())), file.npus_count


def _rate(gib_s: float) -> str:
    """Return a bandwidth in GB/s of 2^30 bytes in the notation of run files, in whole bits per second."""
    return f"{gib_s:g}GiB/s" if float(f"{gib_s:g}") == gib_s and gib_s % 1 == 0 else format_rate(round(gib_s * 8 * GIB))
