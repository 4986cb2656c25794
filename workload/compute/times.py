"""Operator times on a GPU: measured on it, scaled from another GPU's measurements, or from a roofline."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.limits import LONGEST_PS
from nadi.workload.compute import nvidia, operators as ops
from nadi.workload.compute.attention import attention_ps
from nadi.workload.compute.gemm import product_ps, products_ps, streaming_ps
from nadi.workload.compute.gpu import ALONE, Efficiencies, Gpu, SustainedShare, scaled_ps
from nadi.workload.compute.measured_times import MeasuredTimes, Measurement
from nadi.workload.errors import WorkloadError

# A roofline with mechanisms: operator times on a GPU without measurements.

_CLASSES = {
    "gemm": "gemm",
    ops.EARLY_PRODUCT: "gemm",
    "batched-gemm": "gemm",
    "expert-gemm": "gemm",
    "fused-expert-gemm": "gemm",
    "grouped-gemm": "gemm",
    "attention": "attention",
    "attention-backward": "attention",
    "latent-attention": "attention",
    ops.WINDOW_ATTENTION: "attention",
    f"{ops.WINDOW_ATTENTION}-backward": "attention",
    "optimizer": "optimizer",
}
_TIMES = {"gemm": product_ps, "attention": attention_ps}


def class_of(kind: str) -> str:
    """Return the efficiency class of a kind of operator: gemm, attention, memory or optimizer.

    Args:
        kind: The kind of operator, a key of operators.KINDS.
    """
    return "attention" if kind.startswith(ops.OLD_ATTENTION) else _CLASSES.get(kind, "memory")


def roofline_ps(operator: ops.Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the ps of an operator from the mechanisms alone, 0 if it is empty. Raises WorkloadError: no peak rate.

    Args:
        operator: The operator: its kind, shape and data type.
        gpu: The GPU that runs the work.
        efficiencies: The shares of the GPU's peak rates that its libraries reach, by class of operators.
    """
    return _TIMES.get(class_of(operator.kind), streaming_ps)(operator, gpu, efficiencies)


def rooflines_ps(operators: Sequence[ops.Operator], gpu: Gpu, efficiencies: Efficiencies) -> NDArray[np.float64]:
    """Return float64[operators]: the ps of operators. Raises WorkloadError: no peak rate for the data type.

    Args:
        operators: Operators of one kind and data type.
        gpu: The GPU that runs the work.
        efficiencies: The shares of the GPU's peak rates that its libraries reach, by class of operators.
    """
    if operators and class_of(operators[0].kind) == "gemm":
        return products_ps(operators, gpu, efficiencies)
    return np.array([roofline_ps(operator, gpu, efficiencies) for operator in operators], np.float64)


MEASURED, BETWEEN, SCALED, ROOFLINE = "measured", "interpolated", "scaled", "roofline"  # Source of a time
SOURCES = (MEASURED, BETWEEN, SCALED, ROOFLINE)  # All sources, the most accurate first


class TimeEstimate(NamedTuple):
    """The time of an operator and its source."""

    time_ps: int  # Time in ps
    how: str  # Source of the time: MEASURED, BETWEEN, SCALED or ROOFLINE


class ComputeTimes:
    """Times of operators on one GPU, cached by operator; their pace applies to measured times, too.

    `vendor_tables` is the package and version of NVIDIA's tables, "" = these times do not use them.
    """

    def __init__(
        self,
        gpu: Gpu,
        tables: Iterable[Measurement] = (),
        *,
        vendor_tables: bool = True,
        scale_from: Gpu | None = None,
        efficiencies: Efficiencies | None = None,
        pace: SustainedShare = ALONE,
    ) -> None:
        """Index measured times for operators on one GPU. Raises WorkloadError: the tables have no row of `scale_from`.

        Args:
            gpu: The GPU that runs the operators.
            tables: Rows of measured times on any GPUs.
            vendor_tables: Whether NVIDIA's tables (workload.compute.nvidia) are used where `tables` has no time; they
                need the package that has these tables.
            scale_from: The GPU whose measurements are scaled where this GPU lacks them; None = the roofline is used
                there.
            efficiencies: The efficiencies of the roofline; None = the defaults.
            pace: The share of the rates of operators alone that is sustained in a workload.
        """
        self.gpu = gpu
        self._with_libraries = gpu.for_training() if pace.is_training else gpu
        self.efficiencies = efficiencies or Efficiencies()
        self.pace = pace
        rows = list(tables)
        own = _times_on(gpu, rows)
        vendor = None
        if vendor_tables:
            vendor = nvidia.nvidia_times(
                gpu.nvidia_tables, lambda operators: rooflines_ps(operators, gpu, self.efficiencies)
            )
        self.vendor_tables = "" if vendor is None else nvidia.installed()
        self._own: Sequence[MeasuredTimes] = (own,) if vendor is None else (own, vendor)
        self._other = None if scale_from is None else _times_on(scale_from, rows)
        self._scale_from = scale_from
        self._estimates: tuple[dict[ops.Operator, TimeEstimate], dict[ops.Operator, TimeEstimate]] = (
            {},
            {},
        )  # in a graph, eager
        self._of_text: dict[str, int] = {}
        if self._other is not None and scale_from is not None and not len(self._other):
            raise WorkloadError(f"scale_from is {scale_from.name}: the tables have no row of it, expected some")

    def time_ps(self, operator: ops.Operator) -> int:
        """Return the ps of one operator. Raises WorkloadError: no rate for its data type, or longer than 11 days.

        Args:
            operator: The operator: its kind, shape and data type.
        """
        return self.find(operator).time_ps

    def sum_ps(self, operators: Sequence[ops.Operator], *, is_eager: bool = False) -> int:
        """Return the ps of operators one after another. Raises WorkloadError: as `time_ps`.

        Args:
            operators: The operators.
            is_eager: Whether the host launches them one by one.
        """
        return sum(self.find(each, is_eager=is_eager).time_ps for each in operators if each.kind != ops.LAUNCHES)

    def find(self, operator: ops.Operator, *, is_eager: bool = False) -> TimeEstimate:
        """Return the time of an operator and its source. Raises WorkloadError: as `time_ps`.

        Args:
            operator: The operator: its kind, shape and data type.
            is_eager: Whether the host launches it on its own.
        """
        estimate = self._estimates[is_eager].get(operator)
        if estimate is None:
            alone_ps, source = self._estimate(operator)
            pace = self.pace.eager if is_eager and self.pace.eager is not None else self.pace
            sustained_ps = alone_ps / pace.of(operator.kind)
            if not sustained_ps <= LONGEST_PS:
                raise WorkloadError(f"operator {str(operator)!r} takes longer than 11 days, expected less")
            estimate = self._estimates[is_eager][operator] = TimeEstimate(round(sustained_ps), source)
        return estimate

    def _estimate(self, operator: ops.Operator) -> tuple[float, str]:
        """Return the time in ps that the operator takes alone, and its source."""
        if operator.kind == ops.EARLY_PRODUCT:
            today_ps, source = self._estimate(operator._replace(kind="gemm"))
            return today_ps / self.gpu.early_products.get(operator.dtype, 1.0), source
        # NVIDIA's tables have the attention of serving
        is_trained = self._with_libraries is not self.gpu and operator.kind == "attention"
        own = self._own[:1] if is_trained else self._own
        for times in own:
            time_ps = times.exact_ps(operator)
            if time_ps is not None:
                return time_ps, MEASURED
        # Exact times of any table come before interpolation in the first: a neighbour says less than the shape
        for times in own:
            time_ps = times.between_ps(operator, self._roofline_ps)
            if time_ps is not None:
                return time_ps, BETWEEN
        if self._other is not None and self._scale_from is not None:
            other = self._scale_from
            time_ps = self._other.exact_ps(operator)
            if time_ps is None:
                time_ps = self._other.between_ps(operator, lambda op: roofline_ps(op, other, self.efficiencies))
            if time_ps is not None:
                return scaled_ps(time_ps, operator, other, self.gpu), SCALED
        return self._roofline_ps(operator) / self._in_a_row(operator), ROOFLINE

    def _in_a_row(self, operator: ops.Operator) -> float:
        """Return the share of a product's rate that is left in a long sequence; 1 for other operators."""
        if not self.pace.in_a_row or not operator.kind.endswith("gemm"):
            return 1.0
        return self.gpu.in_a_row.get(operator.dtype, 1.0)

    def _roofline_ps(self, operator: ops.Operator) -> float:
        return roofline_ps(operator, self._with_libraries, self.efficiencies)

    def text_ps(self, text: str) -> int:
        """Return the ps of the sequential operators of an `operators` attribute. Raises WorkloadError: one is wrong.

        Args:
            text: The text of the attribute, operators separated by ";".
        """
        time_ps = self._of_text.get(text)
        if time_ps is None:
            operators = ops.parse_operators(text)
            is_eager = any(operator.kind == ops.LAUNCHES for operator in operators)
            time_ps = self._of_text[text] = self.sum_ps(operators, is_eager=is_eager)
        return time_ps

    def sources(self) -> dict[ops.Operator, str]:
        """Return the source of the time of each operator asked for so far."""
        return {operator: estimate.how for each in self._estimates for operator, estimate in each.items()}

    @property
    def product_flops(self) -> float:
        """Operations per second of work with unknown shape: products in 16 bits."""
        dtype = "bf16" if "bf16" in self.gpu.peak_flops else "fp16" if "fp16" in self.gpu.peak_flops else "fp32"
        share = self.gpu.in_a_row.get(dtype, 1.0) if self.pace.in_a_row else 1.0
        return self.gpu.peak_of(dtype) * self.gpu.sustained * self.efficiencies.gemm * self.pace.products * share

    @property
    def memory_Bps(self) -> float:  # noqa: N802 - bytes, not bits
        """Bytes per second of work of which only the bytes are known."""
        return self.gpu.streaming_Bps(self.efficiencies.memory) * self.pace.others


def _times_on(gpu: Gpu, rows: Iterable[Measurement]) -> MeasuredTimes:
    """Return the measured times of the rows of one GPU."""
    return MeasuredTimes.of_rows((row.operator, float(row.time_ps)) for row in rows if row.gpu == gpu.name)
