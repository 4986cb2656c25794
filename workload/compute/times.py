"""How long operators take on a GPU: as measured there, as measured on another one and scaled, or by a roofline."""

from collections.abc import Iterable
from typing import NamedTuple

from topologies.bounds import LONGEST_PS
from workload.compute.efficiency import ALONE, Efficiencies, SustainedShare
from workload.compute.gpu import Gpu
from workload.compute.operators import Operator, parse_operators
from workload.compute.roofline import roofline_ps
from workload.compute.scaling import scaled_ps
from workload.compute.tables import MeasuredTimes, Measurement
from workload.errors import WorkloadError

MEASURED, BETWEEN, SCALED, ROOFLINE = "measured", "between measured shapes", "scaled", "roofline"
"""How a time was found."""


class TimeEstimate(NamedTuple):
    """A time and how it was found.

    Attributes:
        time_ps: picoseconds.
        how: MEASURED, BETWEEN, SCALED or ROOFLINE.
    """

    time_ps: int
    how: str


class ComputeTimes:
    """Times of operators on one GPU. Equal operators are worked out once.

    Attributes:
        gpu: on which they run.
        efficiencies: of the roofline.
        pace: of all times, measured ones too.
    """

    def __init__(
        self,
        gpu: Gpu,
        tables: Iterable[Measurement] = (),
        *,
        scale_from: Gpu | None = None,
        efficiencies: Efficiencies | None = None,
        pace: SustainedShare = ALONE,
    ) -> None:
        """Prepare the tables.

        Args:
            gpu: on which the operators run.
            tables: rows of measured times, of any GPUs.
            scale_from: what this GPU's rows do not say is taken from this one's and scaled; None = from the roofline.
            efficiencies: of the roofline, None = as they are documented.
            pace: share of the rate that operators reach alone.

        Raises:
            WorkloadError: the tables have no row of the GPU scale_from.
        """
        self.gpu = gpu
        self.efficiencies = efficiencies or Efficiencies()
        self.pace = pace
        rows = list(tables)
        self._own = MeasuredTimes(gpu.name, rows)
        self._other = None if scale_from is None else MeasuredTimes(scale_from.name, rows)
        self._scale_from = scale_from
        self._found: dict[Operator, TimeEstimate] = {}
        self._of_text: dict[str, int] = {}
        if self._other is not None and not len(self._other):
            raise WorkloadError(f"scale_from is {self._other.gpu}: the tables have no row of it, expected some")

    def time_ps(self, operator: Operator) -> int:
        """Picoseconds of one operator.

        Raises:
            WorkloadError: the GPU does not know the data type, or it takes longer than 11 days.
        """
        return self.find(operator).time_ps

    def find(self, operator: Operator) -> TimeEstimate:
        """Picoseconds of one operator and how they were found.

        Raises:
            WorkloadError: as `time_ps`.
        """
        found = self._found.get(operator)
        if found is None:
            alone_ps, how = self._work_out(operator)
            time = alone_ps / self.pace.of(operator.kind)
            if not time <= LONGEST_PS:
                raise WorkloadError(f"operator {str(operator)!r} takes longer than 11 days, expected less")
            found = self._found[operator] = TimeEstimate(round(time), how)
        return found

    def _work_out(self, operator: Operator) -> tuple[float, str]:
        time_ps = self._own.time_ps(operator, self._roofline_ps)
        if time_ps is not None:
            return time_ps, MEASURED if operator in self._own.exact else BETWEEN
        if self._other is not None and self._scale_from is not None:
            other = self._scale_from
            time_ps = self._other.time_ps(operator, lambda op: roofline_ps(op, other, self.efficiencies))
            if time_ps is not None:
                return scaled_ps(time_ps, operator, other, self.gpu), SCALED
        return self._roofline_ps(operator) / self._in_a_row(operator), ROOFLINE

    def _in_a_row(self, operator: Operator) -> float:
        """What is left of a product's rate in a step; 1 for what is no product of matrices."""
        if not self.pace.in_a_row or not operator.kind.endswith("gemm"):
            return 1.0
        return self.gpu.in_a_row.get(operator.dtype, 1.0)

    def _roofline_ps(self, operator: Operator) -> float:
        return roofline_ps(operator, self.gpu, self.efficiencies)

    def text_ps(self, text: str) -> int:
        """Picoseconds of the operators of an `operators` attribute, one after another.

        Raises:
            WorkloadError: as `parse_operators` and `time_ps`.
        """
        time_ps = self._of_text.get(text)
        if time_ps is None:
            time_ps = self._of_text[text] = sum(self.time_ps(operator) for operator in parse_operators(text))
        return time_ps

    @property
    def product_flops(self) -> float:
        """Operations per second of work of which nothing is known but its operations: products in 16 bits."""
        dtype = "bf16" if "bf16" in self.gpu.peak_flops else "fp16" if "fp16" in self.gpu.peak_flops else "fp32"
        left = self.gpu.in_a_row.get(dtype, 1.0) if self.pace.in_a_row else 1.0
        return self.gpu.peak_of(dtype) * self.gpu.sustained * self.efficiencies.gemm * self.pace.products * left

    @property
    def memory_Bps(self) -> float:  # noqa: N802 - bytes, not bits
        """Bytes per second of work of which nothing is known but its bytes."""
        return self.gpu.memory_bandwidth_Bps * self.efficiencies.memory * self.pace.others
