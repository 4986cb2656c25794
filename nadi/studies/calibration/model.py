"""Times of measured rows at any factors of a site: as `nadi collective` gives them, and by formulas in a moment.

The exact time of a row plays its messages on an idle fabric, which takes up to seconds. A formula of the algorithm
takes less than a millisecond, and is off by a few per cent. A fit moves by the formulas' ratio from the exact times at
its starting point, and takes the exact times anew where it has arrived (`anchored`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nadi import workload
from nadi.configuration.run_file import collective_config
from nadi.errors import ConfigError
from nadi.inputs.arrays import Float64
from nadi.inputs.units import PS_PER_US
from nadi.pdes import Settings
from nadi.simulation.closed_forms import closed_form, payload_shape
from nadi.simulation.resolving import Resolver, TimedFabric
from nadi.studies.calibration.constants import WIRE, Factors, algorithm_with, header_bytes
from nadi.studies.calibration.rows import SiteRow
from nadi.topologies import Graph, names_cluster, parse_spec
from nadi.topologies.machines import is_machine
from nadi.topologies.registry import spec_with_gpus
from nadi.workload.collectives import ON_NVSWITCHES, choose, defaults_on, with_parameters
from nadi.workload.shape import GroupShape

SEED = 1  # seed of hashed choices, as the default of `nadi collective`


def spec_of(cluster: str, gpus: int) -> str:
    """Return the fabric of some GPUs of a cluster, as users write it; ConfigError if it is no cluster or machine.

    Args:
        cluster: The cluster as users write it: a name or file, or a machine.
        gpus: The number of GPUs.
    """
    values = parse_spec(cluster)
    if not names_cluster(values["name"], values) and not is_machine(str(values["name"])):
        raise ConfigError(f"{cluster}: found a topology; expected a cluster or machine (`nadi topology clusters`)")
    return spec_with_gpus(cluster, gpus)


@dataclass(frozen=True)
class SiteFabric:
    """The fabric of some GPUs of a cluster, whose collectives all of them take part in."""

    spec: str  # fabric as users write it

    @cached_property
    def _idle(self) -> TimedFabric:
        return Resolver(collective_config(self.spec, []), force=True).idle_fabric(SEED)

    @property
    def graph(self) -> Graph:
        """The fabric."""
        return self._idle.graph

    @property
    def settings(self) -> Settings:
        """The settings of the network, with the cited header."""
        return self._idle.settings

    def algorithm(self, kind: str) -> str:
        """Return the algorithm of a kind on this fabric; ConfigError if it is not NCCL's.

        Args:
            kind: The kind of collective.
        """
        own = self._idle.collectives.algorithm.get(kind) or defaults_on(self.graph).get(kind, "")
        if own.partition(":")[0] != ON_NVSWITCHES:
            found = own or workload.default_algorithm(kind)
            raise ConfigError(f"{self.spec}: {kind} runs {found}; expected a cluster whose hosts run {ON_NVSWITCHES}")
        return own

    def has_factors(self, kind: str) -> bool:
        """Return whether the cluster's own file has factors on NCCL's constants, as one that was calibrated.

        Args:
            kind: The kind of collective.
        """
        return algorithm_with(self.algorithm(kind), {}) != self.algorithm(kind)

    def exact_us(self, row: SiteRow, factors: Factors | None) -> float:
        """Return the time of a row in microseconds, as `nadi collective --fidelity closed-form` does.

        Args:
            row: Measured row, whose kind of collective, number of GPUs and size count.
            factors: The factors of the site; None = those of the cluster's own file.
        """
        text = self.algorithm(row.kind)
        settings = self.settings
        if factors is not None:
            text = algorithm_with(text, factors, dict(row.parameters))
            settings = self._with_header(factors)
        else:
            text = with_parameters(text, dict(row.parameters))
        algorithm = replace(self._idle.collectives, algorithm={row.kind: text}).algorithm_of(row.kind)
        most_bytes = self._idle.collectives.most_bytes
        program = workload.collective_program(
            row.kind, self.graph.npus, row.size_bytes, algorithm, self.graph, most_bytes
        )
        found = closed_form(
            *(self.graph, program, settings),
            kind=row.kind,
            algorithm=algorithm,
            schedule=int(program.node_schedule[0]),
            members=np.arange(self.graph.npus),
            size_bytes=int(program.node_bytes[0]),
        )
        return found.time_ps / PS_PER_US

    def formula_us(self, row: SiteRow, factors: Factors) -> float:
        """Return the time of a row in microseconds by the formula of its algorithm.

        Args:
            row: Measured row, whose kind of collective, number of GPUs and size count.
            factors: The factors of the site.
        """
        chosen = choose(row.kind, algorithm_with(self.algorithm(row.kind), factors, dict(row.parameters)))
        shape = self._shape(chosen.trees, factors.get(WIRE, 1.0))
        return chosen.closed_form(row.kind, self.graph.npus, row.size_bytes, 0.0, 0.0, shape) / PS_PER_US

    def _with_header(self, factors: Factors) -> Settings:
        """Return the settings with the header that expresses the factor on the rate of NICs."""
        wire = factors.get(WIRE, 1.0)
        return self.settings if wire == 1.0 else replace(self.settings, header_bytes=header_bytes(self.settings, wire))

    @cached_property
    def _shapes(self) -> dict[tuple[str, int], GroupShape]:
        return {}

    def _shape(self, trees: str, wire_factor: float) -> GroupShape:
        """Return the shape of all GPUs with the rates of payload."""
        settings = self._with_header({WIRE: wire_factor})
        key = trees, settings.header_bytes
        if key not in self._shapes:
            self._shapes[key] = payload_shape(self.graph, settings, np.arange(self.graph.npus), trees=trees)
        return self._shapes[key]


class SiteModel:
    """The times of rows as functions of the factors of a site."""

    def __init__(self, fabrics: dict[int, SiteFabric], rows: Sequence[SiteRow]) -> None:
        """Begin with formulas that are not corrected.

        Args:
            fabrics: The fabric by its number of GPUs.
            rows: Measured rows, in the order of the results.
        """
        self._fabrics, self._rows = fabrics, rows
        self._correction, self._tilt = np.zeros(len(rows)), np.zeros(len(rows))

    def exact_us(self, factors: Factors | None) -> Float64:
        """Return float64[rows]: the exact times in microseconds.

        Args:
            factors: The factors of the site; None = those of the cluster's own file.
        """
        known: dict[tuple[object, ...], float] = {}  # several rows may be runs of the same collective
        for row in self._rows:
            if row.collective not in known:
                known[row.collective] = self._fabrics[row.gpus].exact_us(row, factors)
        return np.array([known[row.collective] for row in self._rows])

    def anchored(self, exact_us: Float64, factors: Factors) -> None:
        """Correct the formulas so that they give the exact times at some factors.

        Args:
            exact_us: float64[rows], the exact times at these factors.
            factors: The factors of the site.
        """
        self._correction += np.log(exact_us) - self.log_us(factors, np.ones(len(self._rows), np.bool_))

    def tilted(self, exact_us: Float64, wire_factor: float) -> None:
        """Correct the slopes of formulas over the rate of NICs, after `anchored` at factors of 1.

        A block's pace counts headers, which formulas leave out.

        Args:
            exact_us: float64[rows], the exact times where only this factor is not 1.
            wire_factor: The factor on the rate of NICs.
        """
        missing = np.log(exact_us) - self.log_us({WIRE: wire_factor}, np.ones(len(self._rows), np.bool_))
        self._tilt = missing / np.log(wire_factor)

    def log_us(self, factors: Factors, is_used: NDArray[np.bool_]) -> Float64:
        """Return float64[used rows]: logarithms of the times in microseconds by corrected formulas.

        Args:
            factors: The factors of the site.
            is_used: bool[rows], the rows that are asked for.
        """
        used = [self._rows[int(place)] for place in np.flatnonzero(is_used)]
        by_formula = np.log([self._fabrics[row.gpus].formula_us(row, factors) for row in used])
        return by_formula + self._correction[is_used] + self._tilt[is_used] * np.log(factors.get(WIRE, 1.0))
