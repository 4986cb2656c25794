"""Conversion of times that AICB (SimAI's AIOB) measured into measured times of operators.

AIOB writes microseconds under its own operator names, without shapes. The shapes follow from the model that AIOB ran
(workload_generator/mocked_model/training/AiobMegatron.py of aliyun/aicb), which the caller must provide.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from nadi import inputs
from nadi.inputs.units import PS_PER_US
from nadi.workload.compute.measured_times import Measurement
from nadi.workload.compute.operators import Operator
from nadi.workload.errors import WorkloadError

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
