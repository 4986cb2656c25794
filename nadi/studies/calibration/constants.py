"""The constants that `nadi calibrate` may fit: factors on cited values, and the host's time of a step, with priors.

A fit moves coordinates: the logarithm of a factor, or a time over a unit. The prior is a normal distribution of the
coordinate around the cited value. Its standard deviations come from the spread of nadi/validation/errors.json and of
the published rows: predictions of NCCL in one host err by 5 % in the mean, and by up to 8 % at the largest sizes, where
rates decide. Over hosts the first predictions, made before a site was seen, erred by 22 % in the mean, and by up to
69 % where the time of steps between hosts decides. Training steps err by 3 to 8 % in the mean, by class. Hosts take up
to 100 ms of a step beside what profiles describe (the profile fsdp-2023).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from nadi.inputs.units import format_bytes
from nadi.pdes import Settings
from nadi.workload.collectives import with_parameters
from nadi.workload.collectives.nccl.generations import Generation
from nadi.workload.collectives.nccl.site import FACTOR_RANGE
from nadi.workload.collectives.nccl.tables import TABLES

WIRE = "wire"
RATE_RANGE = (0.5, 1.5)  # factors on rates of a GPU's operators: beyond them it is another GPU, or has a defect
_MIN_WIRE = 0.5  # share of a NIC's payload rate below which a fabric has a defect, and no other constant


class SiteConstant(NamedTuple):
    """A constant that may differ on a site, as a factor on its cited value."""

    name: str  # name that users read
    meaning: str  # what the factor multiplies
    prior: float  # standard deviation of its coordinate before any row is seen
    low: float  # smallest value that is possible
    high: float  # largest value that is possible
    unit_ms: float = 0.0  # milliseconds of a coordinate of 1; 0 = a factor, whose coordinate is its logarithm

    @property
    def default(self) -> float:
        """The value of a site as cited."""
        return 0.0 if self.unit_ms else 1.0

    def value(self, coordinate: float) -> float:
        """Return the factor or milliseconds of a coordinate."""
        return coordinate * self.unit_ms if self.unit_ms else math.exp(coordinate)

    def coordinate(self, value: float) -> float:
        """Return the coordinate of a factor or of milliseconds."""
        return value / self.unit_ms if self.unit_ms else math.log(value)

    def shown(self, value: float) -> str:
        """Return a value with its unit, if it has one."""
        return f"{value:g} ms" if self.unit_ms else f"{value:g}"

    def deviation_shown(self, deviation: float) -> str:
        """Return the standard deviation of a coordinate as milliseconds, or as a share of a factor."""
        return f"{deviation * self.unit_ms:.2g} ms" if self.unit_ms else f"{deviation:.1%}"


CONSTANTS = (
    SiteConstant("launch", "time of a kernel before its first step", 0.25, *FACTOR_RANGE),
    SiteConstant("hop", "time of a step inside a host beside its data", 0.25, *FACTOR_RANGE),
    SiteConstant("block", "rate of a thread block", 0.2, *FACTOR_RANGE),
    SiteConstant("nvlink", "rate that kernels reach on NVLink", 0.1, *FACTOR_RANGE),
    SiteConstant("nic", "time of a step between hosts beside its data", 0.35, *FACTOR_RANGE),
    SiteConstant(WIRE, "payload rate of NICs, headers and routing included", 0.1, _MIN_WIRE, math.inf),
)
"""Constants of collectives."""
HOST, PRODUCTS, MEMORY = "host", "products", "memory"
STEP_CONSTANTS = (
    SiteConstant(HOST, "time per step for which GPUs wait for their hosts", 0.5, 0.0, 1e4, 100.0),
    SiteConstant(PRODUCTS, "rate of matrix products of a step", 0.1, *RATE_RANGE),
    SiteConstant(MEMORY, "rate of a step's operators that memory bounds", 0.15, *RATE_RANGE),
)
"""Constants of training steps, which a cluster's file has as parameters of its GPU."""
NAMES = tuple(constant.name for constant in CONSTANTS)
Factors = dict[str, float]
"""Values by the name of their constant; those that are missing are as cited: factors of 1, and no time of the host."""


def header_bytes(settings: Settings, wire_factor: float) -> int:
    """Return the header of a packet that gives a NIC a factor on its payload rate; at least one byte.

    Args:
        settings: The settings of the network, whose header is the cited one.
        wire_factor: The factor on the share of the rate that payload has.
    """
    mtu = settings.mtu_bytes
    return max(1, round((mtu + settings.header_bytes) / wire_factor) - mtu)


def algorithm_with(algorithm: str, factors: Factors, parameters: Mapping[str, str] = {}) -> str:
    """Return the text of NCCL's algorithm with the factors of a site in place of those that it has.

    Args:
        algorithm: The algorithm with its parameters, as users write it.
        factors: The factors of the site.
        parameters: Further parameters by name, which replace equal ones.
    """
    added = {f"{each}_factor": f"{factors[each]:g}" for each in NAMES if each != WIRE and factors.get(each, 1.0) != 1.0}
    return with_parameters(algorithm, {**parameters, **added}, {f"{each}_factor" for each in NAMES})


def cited(name: str, generation: Generation, settings: Settings) -> str:
    """Return the cited value of a constant, for tables.

    Args:
        name: The name of the constant.
        generation: NCCL's constants for the GPUs of the fabric.
        settings: The settings of the network.
    """
    kernel = generation.kernel
    base_us, step_us = TABLES["base_us"]["ring"], TABLES["step_us"]
    if name == WIRE:
        share = settings.mtu_bytes / (settings.mtu_bytes + settings.header_bytes)
        return f"{share:.1%}, header {format_bytes(settings.header_bytes)}"
    if name == "nic":
        return f"{_listed(step_us['net']['ring'])} us a step, {TABLES['ring_over_hosts']['message_us']:g} us a message"
    if name == "launch":
        return f"{_listed(kernel.launch_us if kernel else base_us)} us"
    if name == "hop":
        return f"{_listed(kernel.hop_us if kernel else step_us['nvlink']['ring'])} us"
    if name == "block":
        rates = (kernel.ll_block_gb_per_s, kernel.block_gb_per_s) if kernel else ()
        return f"{_listed((*rates, generation.message_block_gb_per_s))} GB/s"
    return f"{generation.nvlink_payload:g} of the link"


def _listed(values: "tuple[float, ...] | list[float]") -> str:
    return "/".join(f"{value:g}" for value in values)
