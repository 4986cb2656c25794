"""Measured operator times: tables in CSV or Parquet (`scripts/profile_gpu.py` writes them), interpolated by shape.

Columns: gpu, operator, shape, dtype, time_ps, source, date; others are ignored. Lines that begin with # are comments. A
name without a suffix is a table of this library, in the folder beside this file. `MeasuredTimes`
interpolates between measured shapes.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import inputs
from nadi.inputs.limits import LONGEST_PS
from nadi.inputs.units import PS_PER_US
from nadi.workload.compute.operators import KINDS, Operator, parse_operators
from nadi.workload.errors import WorkloadError

_FOLDER = Path(__file__).parent / "tables"
COLUMNS = ("gpu", "operator", "shape", "dtype", "time_ps", "source", "date")
_REQUIRED = COLUMNS[:5]


class Measurement(NamedTuple):
    """One row of a table: the measured time of an operator on a GPU."""

    gpu: str  # Name of the GPU
    operator: Operator  # Operator that was measured
    time_ps: int  # Measured time in ps
    source: str = ""  # Tool or person that measured it
    date: str = ""  # Date of the measurement


def table_names() -> tuple[str, ...]:
    """Return the names of the library's tables."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.csv")))


def read_tables(tables: Sequence[str | Path]) -> list[Measurement]:
    """Return the rows of several tables. Raises WorkloadError: a table is missing or wrong.

    Args:
        tables: The tables, each a name in the library or a path.
    """
    return [row for table in tables for row in read_table(table)]


def read_table(table: str | Path) -> list[Measurement]:
    """Return the rows of a table. Raises WorkloadError: it is missing or wrong.

    Args:
        table: The name of a table of the library, or the path of a file in CSV or Parquet.
    """
    path = _FOLDER / f"{table}.csv" if str(table) in table_names() else Path(table)
    if path.suffix not in {".csv", ".parquet"}:
        known = ", ".join(table_names()) or "none"
        raise WorkloadError(f"table {str(table)!r}: not known; expected one of {known}, or a path NAME.csv or .parquet")
    with inputs.refusing(path, "a table of measured times", WorkloadError, ValueError):
        rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
    return [_measurement(path, number, row) for number, row in rows]


def write_table(path: Path, rows: Iterable[Measurement]) -> None:
    """Write rows as CSV. Raises OSError: the file cannot be written.

    Args:
        path: The path of the file, which is replaced if it exists.
        rows: The measurements to write.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        shape = "x".join(map(str, row.operator.shape))
        writer.writerow([row.gpu, row.operator.kind, shape, row.operator.dtype, row.time_ps, row.source, row.date])
    inputs.write_whole(path, text.getvalue())


def _csv_rows(path: Path) -> list[tuple[int, Mapping[str, object]]]:
    """Return line number and cells of each row of a CSV file."""
    lines = inputs.read_text(path).splitlines()
    kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    rows = [next(csv.reader([line])) for _, line in kept]
    columns = rows[0] if rows else []
    _check_columns(path, columns)
    for (number, _), row in zip(kept[1:], rows[1:], strict=True):
        if len(row) != len(columns):
            raise WorkloadError(
                f"{path}: row {number}: {len(row)} fields; expected {len(columns)}, as in the header (truncated file?)"
            )
    return [(number, dict(zip(columns, row, strict=True))) for (number, _), row in zip(kept[1:], rows[1:], strict=True)]


def _parquet_rows(path: Path) -> list[tuple[int, Mapping[str, object]]]:
    """Return number and cells of each row of a Parquet file."""
    import pyarrow as pa  # noqa: PLC0415 - half a second, only for Parquet tables
    import pyarrow.parquet as pq  # noqa: PLC0415 - the same

    try:
        table = pq.ParquetFile(pa.BufferReader(inputs.read_bytes(path))).read()
    except pa.ArrowException as error:
        raise WorkloadError(f"{path}: no Parquet: {str(error).splitlines()[0]}; expected a table") from None
    _check_columns(path, table.column_names)
    return list(enumerate(table.to_pylist(), 1))


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Check that a table, whose path errors name, has the required columns."""
    missing = [column for column in _REQUIRED if column not in columns]
    if missing:
        raise WorkloadError(f"{path}: no column {missing[0]}; expected {', '.join(COLUMNS)}")


def _measurement(path: Path, row_number: int, row: Mapping[str, object]) -> Measurement:
    """Return the measurement of a row of a table, by column; WorkloadError if it is wrong."""
    text = {column: str(row.get(column) or "").strip() for column in COLUMNS}
    try:
        operator = parse_operators(f"{text['operator']} {text['shape']} {text['dtype']}")[0]
    except WorkloadError as error:
        raise WorkloadError(f"{path}: row {row_number}: {error}") from None
    if not text["time_ps"].isdecimal() or len(text["time_ps"]) > 18 or not 0 < int(text["time_ps"]) <= LONGEST_PS:
        raise WorkloadError(
            f"{path}: row {row_number}: time_ps {text['time_ps']!r}; expected whole picoseconds above 0"
        )
    if not text["gpu"]:
        raise WorkloadError(f"{path}: row {row_number}: no gpu; expected its name, as h100")
    return Measurement(text["gpu"], operator, int(text["time_ps"]), text["source"], text["date"])


# Measured times of operators, and times of shapes between measured ones.
#
# A measured shape has its measured time. Other shapes of the same kind and data type have the time of the roofline
# (`workload.compute.times`) times a correction factor: the geometric mean of measurement over roofline at the
# nearest measured shapes, weighted by the inverse square of their distance between the logarithms of the entries.
# Entries that are not sizes (head dimensions, causal or not, reads and writes) must be equal. There is no
# extrapolation: each entry must be between the measured minimum and maximum, and the nearest shape must be within a
# factor of 4 (2 in logarithms to base 2).


_NOT_SIZES = {
    "head_dim",
    "value_dim",
    "causal",
    "window",
    "reads",
    "writes",
    "copies",
    "transposes",
    "bytes",
    "top_k",
    "rank",
    "rope_dim",
}
"""Entries of shapes that are not sizes and must be equal."""
_MAX_DISTANCE = 2.0  # of the nearest measured shape, in logarithms to base 2
_NEIGHBOURS = 4  # measured shapes from which others are interpolated

Roofline = Callable[[Operator], float]
Share = Callable[[Operator], float]
"""Function from an operator to its share of its measured time, 0 to 1; other kernels take the rest."""
Family = tuple[object, ...]
"""What two operators must share for interpolation: kind, data type, and entries of shapes that are not sizes."""
Row = tuple[Operator, float]  # An operator and its measured time in ps


class MeasuredTimes:
    """Measured times on one GPU, in families of operators that differ in their sizes only."""

    def __init__(
        self,
        families: Mapping[Family, "MeasuredFamily"],
        load: Callable[[str, str], Iterable[Row]],
        share: Share = lambda _operator: 1.0,
    ) -> None:
        """Keep the known families of operators, and functions that find further ones.

        Args:
            families: The measured operators that are known already, by family.
            load: A function that returns the measured rows of a kind and data type, called once for each.
            share: A function that returns an operator's share of its measured time, 0 to 1.
        """
        self._families = dict(families)
        self._load = load
        self._share = share
        self._loaded: set[tuple[str, str]] = set()

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> "MeasuredTimes":
        """Return the times of given rows.

        Args:
            rows: Operators and their times in ps; of several rows of one operator, the last one counts.
        """
        return cls(_families(rows), lambda _kind, _dtype: ())

    def __len__(self) -> int:
        return sum(len(family.exact) for family in self._families.values())

    def exact_ps(self, operator: Operator) -> float | None:
        """Return the measured time of an operator in ps, None = not measured.

        Args:
            operator: The operator: its kind, shape and data type.
        """
        family = self._family(operator)
        time_ps = None if family is None else family.exact.get(operator.shape)
        return None if time_ps is None else time_ps * self._share(operator)

    def between_ps(self, operator: Operator, roofline_ps: Roofline) -> float | None:
        """Return the ps interpolated between measured shapes; None = outside the measured range.

        Args:
            operator: The operator: its kind, shape and data type.
            roofline_ps: A function that returns the roofline's time of an operator on the same GPU in ps.
        """
        family = self._family(operator)
        return None if family is None else family.between_ps(operator, roofline_ps, self._share)

    def _family(self, operator: Operator) -> "MeasuredFamily | None":
        """Return the family of an operator, loaded at first use; None = not measured."""
        table = operator.kind, operator.dtype
        if table not in self._loaded:
            self._loaded.add(table)
            for key, family in _families(self._load(*table)).items():
                self._families.setdefault(key, family)
        return self._families.get(_family_of(operator))


class MeasuredFamily:
    """Measured operators of one family, which differ in their sizes only."""

    def __init__(self, example: Operator, exact: Mapping[tuple[int, ...], float]) -> None:
        """Keep the measured times in ps by shape, of the family of an example."""
        self.exact = exact
        self._example = example
        names = KINDS[example.kind].shape
        self._sizes = [index for index, name in enumerate(names) if name not in _NOT_SIZES]
        self._shapes = [shape for shape in exact if min(shape) > 0]
        self._tree: Any = None  # scipy's cKDTree of the positions, built at the first interpolation

    def between_ps(self, operator: Operator, roofline_ps: Roofline, share_of: Share) -> float | None:
        """Return the ps interpolated between measured shapes; None = outside the measured range.

        Args:
            operator: An operator of this family.
            roofline_ps: A function that returns the roofline's time of an operator on the same GPU in ps.
            share_of: A function that returns an operator's share of its measured time, 0 to 1.
        """
        if min(operator.shape) <= 0 or not self._shapes:
            return None
        if self._tree is None:
            from scipy.spatial import cKDTree  # noqa: PLC0415 - a quarter of a second, for shapes between measured ones

            self._tree = cKDTree(self._positions(self._shapes))
        position = self._positions([operator.shape])[0]
        if np.any(position < self._tree.mins) or np.any(position > self._tree.maxes):
            return None
        neighbours = min(_NEIGHBOURS, len(self._shapes))
        distances, rows = self._tree.query(position, k=range(1, neighbours + 1))
        if distances[0] > _MAX_DISTANCE:
            return None
        known = [self._example._replace(shape=self._shapes[row]) for row in rows]
        rooflines_ps = [max(roofline_ps(near), 1.0) for near in known]
        measured_ps = [max(self.exact[near.shape] * share_of(near), 1.0) for near in known]
        # The mean of logarithms is the geometric mean of measurement over roofline
        corrections = np.log(measured_ps) - np.log(rooflines_ps)
        weights = 1.0 / np.maximum(distances, 1e-9) ** 2
        return roofline_ps(operator) * float(np.exp(np.average(corrections, weights=weights)))

    def _positions(self, shapes: Sequence[tuple[int, ...]]) -> NDArray[np.float64]:
        """Return float64[shapes, sizes]: logarithms to base 2 of the sizes."""
        return np.log2(np.asarray(shapes, np.float64)[:, self._sizes])


def _families(measurements: Iterable[Row]) -> dict[Family, MeasuredFamily]:
    """Return the measurements, pairs of operator and time in ps, by family."""
    exact: dict[Family, dict[tuple[int, ...], float]] = defaultdict(dict)
    examples: dict[Family, Operator] = {}
    for operator, time_ps in measurements:
        family = _family_of(operator)
        exact[family][operator.shape] = time_ps
        examples[family] = operator
    return {family: MeasuredFamily(examples[family], times) for family, times in exact.items()}


def _family_of(operator: Operator) -> Family:
    """Return the key of an operator's family: kind, data type and the entries of its shape that are no sizes."""
    names = KINDS[operator.kind].shape
    fixed = [entry for name, entry in zip(names, operator.shape, strict=True) if name in _NOT_SIZES]
    return (operator.kind, operator.dtype, *fixed)


# Conversion of times that AICB (SimAI's AIOB) measured into measured times of operators.
#
# AIOB writes microseconds under its own operator names, without shapes. The shapes follow from the model that AIOB ran
# (workload_generator/mocked_model/training/AiobMegatron.py of aliyun/aicb), which the caller must provide.


_NAME = re.compile(r"(\w+):\s*")
_VALUE = re.compile(r"\s+time_gpu_(max|min|avg):\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?)\s*")


@dataclass(frozen=True)
class AicbModel:
    """The model that AIOB ran. Raises WorkloadError: a size is below 1, or not a multiple of tp."""

    hidden: int  # Hidden size of the model
    heads: int  # Number of attention heads before tensor parallelism
    vocab: int  # Padded vocabulary size
    sequence: int  # Sequence length in tokens
    micro_batch: int = 1  # Number of sequences per micro-batch
    ffn: int = 0  # Width of the MLP; 0 = 4 hidden
    tp: int = 1  # Number of tensor-parallel GPUs
    sequence_parallel: bool = False  # Whether norms process only one tensor-parallel GPU's share of the tokens
    gated: bool = False  # Whether the MLP has a third matrix (SwiGLU)
    parameters: int = 0  # Number of parameters of the model, needed for param_time only; 0 = unknown
    dtype: str = "bf16"  # Data type of all operators except param_time

    def __post_init__(self) -> None:
        """Check the sizes; WorkloadError if they do not fit together."""
        for name in ("hidden", "heads", "vocab", "sequence", "micro_batch", "tp"):
            if getattr(self, name) < 1:
                raise WorkloadError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name, size in (("hidden", self.hidden), ("heads", self.heads), ("vocab", self.vocab), ("ffn", self.width)):
            if size % self.tp:
                raise WorkloadError(f"{name} is {size}; expected a multiple of tp ({self.tp})")
        if self.hidden % self.heads:
            raise WorkloadError(f"hidden is {self.hidden}; expected a multiple of heads ({self.heads})")

    @property
    def width(self) -> int:
        """Width of the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def tokens(self) -> int:
        """Number of tokens of a micro-batch."""
        return self.sequence * self.micro_batch

    def operators(self) -> dict[str, Operator]:
        """Return the operator by AIOB name."""
        h, tp, tokens, width = self.hidden, self.tp, self.tokens, self.width // self.tp
        own_heads, head = self.heads // tp, h // self.heads
        rows = tokens // tp if self.sequence_parallel else tokens
        square = (self.micro_batch * own_heads, self.sequence, self.sequence, head)
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "Emb": ("embedding", (tokens, h)),
            "layernorm": ("norm", (rows, h)),
            "atten_qkv": ("gemm", (tokens, 3 * h // tp, h)),
            "atten_flash": (
                "attention",
                (self.micro_batch, own_heads, own_heads, self.sequence, self.sequence, head, head, 1),
            ),
            "atten_core_qk": ("batched-gemm", square),
            "atten_core_softmax": ("softmax", (square[0] * self.sequence, self.sequence)),
            "atten_core_contex": ("batched-gemm", (square[0], self.sequence, head, self.sequence)),
            "atten_linear": ("gemm", (tokens, h, h // tp)),
            "layernorm2": ("norm", (rows, h)),
            "mlp_linear_1": ("gemm", (tokens, (2 if self.gated else 1) * width, h)),
            "mlp_gelu": ("elementwise", (tokens * width, 2 if self.gated else 1, 1)),
            "mlp_linear_2": ("gemm", (tokens, h, width)),
            "layernorm_post": ("norm", (rows, h)),
            "logit_time": ("gemm", (tokens, self.vocab // tp, h)),
        }
        operators = {name: Operator(kind, shape, self.dtype) for name, (kind, shape) in shapes.items()}
        if self.parameters:
            operators["param_time"] = Operator("elementwise", (self.parameters // tp, 1, 1), "fp32")
        return operators


def read_aicb(path: str | Path, gpu: str, model: AicbModel) -> tuple[list[Measurement], list[str]]:
    """Return measured times from AIOB's text, and the names in it without a known operator.

    A time is the average of a name, and the mean of names with the same operator. Raises WorkloadError: the file cannot
    be read, or does not have this format.

    Args:
        path: The path of AIOB's text.
        gpu: The name of the GPU on which AIOB ran.
        model: The model that AIOB ran, which determines the shapes of the operators.
    """
    averages = _averages(Path(path))
    known = model.operators()
    measured_us: dict[Operator, list[float]] = {}
    for name, time_us in averages.items():
        if name in known and time_us > 0:
            measured_us.setdefault(known[name], []).append(time_us)
    source = f"AICB {Path(path).name}"
    rows = [
        Measurement(gpu, operator, round(sum(times_us) / len(times_us) * PS_PER_US), source)
        for operator, times_us in measured_us.items()
    ]
    return rows, [name for name in averages if name not in known]


def _averages(path: Path) -> dict[str, float]:
    """Return the average time in microseconds of each name in AIOB's text."""
    with inputs.refusing(path, "AICB's times", WorkloadError, ValueError):
        lines = inputs.read_text(path).splitlines()
    if not lines or not lines[0].startswith("train_iter:"):
        raise WorkloadError(f"{path}: line 1: expected train_iter:N, as AICB's times begin")
    averages: dict[str, float] = {}
    name = ""
    for number, line in enumerate(lines[1:], 2):
        heading, value = _NAME.fullmatch(line), _VALUE.fullmatch(line)
        if heading:
            name = heading[1]
        elif value and name:
            if value[1] == "avg":
                averages[name] = float(value[2])
        elif line.strip():
            raise WorkloadError(f"{path}: line {number}: {line.strip()[:60]!r}; expected a name or its time_gpu_avg")
    return averages
