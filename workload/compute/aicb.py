"""Times that AICB (SimAI's AIOB) has measured, as text, to measured times of operators.

AIOB writes microseconds by names of its own, without their shapes; these follow from the model that it was
told (workload_generator/mocked_model/training/AiobMegatron.py of aliyun/aicb), which the caller says again here.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import inputs
from inputs.units import PS_PER_US
from workload.compute.operators import Operator
from workload.compute.tables import Measurement
from workload.errors import WorkloadError

_NAME = re.compile(r"(\w+):\s*")
_VALUE = re.compile(r"\s+time_gpu_(max|min|avg):\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?)\s*")


@dataclass(frozen=True)
class AicbModel:
    """What AIOB was told.

    Attributes:
        hidden: size.
        heads: of attention, all of them.
        ffn: width of the MLP, 0 = 4 hidden.
        vocab: padded.
        sequence: tokens.
        micro_batch: sequences.
        tp: tensor-parallel GPUs.
        sequence_parallel: norms see the tokens of one of them only.
        gated: the MLP has a third matrix (SwiGLU).
        parameters: of the model, 0 = not known; only of param_time.
        dtype: of all but param_time.

    Raises:
        WorkloadError: a size that is not above 0, or that tp does not divide.
    """

    hidden: int
    heads: int
    vocab: int
    sequence: int
    micro_batch: int = 1
    ffn: int = 0
    tp: int = 1
    sequence_parallel: bool = False
    gated: bool = False
    parameters: int = 0
    dtype: str = "bf16"

    def __post_init__(self) -> None:
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
        """Of the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.sequence * self.micro_batch

    def operators(self) -> dict[str, Operator]:
        """The operator of each of AIOB's names."""
        h, tp, tokens, width = self.hidden, self.tp, self.tokens, self.width // self.tp
        own_heads, head = self.heads // tp, h // self.heads
        rows = tokens // tp if self.sequence_parallel else tokens
        square = (self.micro_batch * own_heads, self.sequence, self.sequence, head)
        of: dict[str, tuple[str, tuple[int, ...]]] = {
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
        found = {name: Operator(kind, shape, self.dtype) for name, (kind, shape) in of.items()}
        if self.parameters:
            found["param_time"] = Operator("elementwise", (self.parameters // tp, 1, 1), "fp32")
        return found


def read_aicb(path: str | Path, gpu: str, model: AicbModel) -> tuple[list[Measurement], list[str]]:
    """Measured times of AIOB's text: the average of each name; of names with one operator, their mean.

    Args:
        path: the text.
        gpu: on which it was measured.
        model: what AIOB was told.

    Returns:
        The rows, and the names that have no operator here.

    Raises:
        WorkloadError: the file cannot be read, or is not of this form.
    """
    averages = _averages(Path(path))
    known = model.operators()
    times: dict[Operator, list[float]] = {}
    for name, micros in averages.items():
        if name in known and micros > 0:
            times.setdefault(known[name], []).append(micros)
    source = f"AICB {Path(path).name}"
    rows = [
        Measurement(gpu, operator, round(sum(each) / len(each) * PS_PER_US), source) for operator, each in times.items()
    ]
    return rows, [name for name in averages if name not in known]


def _averages(path: Path) -> dict[str, float]:
    """Microseconds by name."""
    try:
        lines = inputs.read_text(path).splitlines()
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise WorkloadError(f"{path}: {said}; expected AICB's times") from None
    if not lines or not lines[0].startswith("train_iter:"):
        raise WorkloadError(f"{path}: line 1: expected train_iter:N, as AICB's times begin")
    found: dict[str, float] = {}
    name = ""
    for number, line in enumerate(lines[1:], 2):
        heading, value = _NAME.fullmatch(line), _VALUE.fullmatch(line)
        if heading:
            name = heading[1]
        elif value and name:
            if value[1] == "avg":
                found[name] = float(value[2])
        elif line.strip():
            raise WorkloadError(f"{path}: line {number}: {line.strip()[:60]!r}; expected a name or its time_gpu_avg")
    return found
