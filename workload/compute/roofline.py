"""A roofline with mechanisms: operator times on a GPU without measurements."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nadi.workload.compute.attention import attention_ps
from nadi.workload.compute.efficiency import Efficiencies
from nadi.workload.compute.gemm import product_ps, products_ps, streaming_ps
from nadi.workload.compute.gpu import Gpu
from nadi.workload.compute.operators import OLD_ATTENTION, Operator

_CLASSES = {
    "gemm": "gemm",
    "batched-gemm": "gemm",
    "grouped-gemm": "gemm",
    "attention": "attention",
    "attention-backward": "attention",
    "latent-attention": "attention",
    "optimizer": "optimizer",
}
_TIMES = {"gemm": product_ps, "attention": attention_ps}


def class_of(kind: str) -> str:
    """Return the efficiency class of a kind of operator: gemm, attention, memory or optimizer.

    Args:
        kind: The kind of operator, a key of operators.KINDS.
    """
    return "attention" if kind.startswith(OLD_ATTENTION) else _CLASSES.get(kind, "memory")


def roofline_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Return the ps of an operator from the mechanisms alone, 0 if it is empty. Raises WorkloadError: no peak rate.

    Args:
        operator: The operator: its kind, shape and data type.
        gpu: The GPU that runs the work.
        efficiencies: The shares of the GPU's peak rates that its libraries reach, by class of operators.
    """
    return _TIMES.get(class_of(operator.kind), streaming_ps)(operator, gpu, efficiencies)


def rooflines_ps(operators: Sequence[Operator], gpu: Gpu, efficiencies: Efficiencies) -> NDArray[np.float64]:
    """Return float64[operators]: the ps of operators. Raises WorkloadError: no peak rate for the data type.

    Args:
        operators: Operators of one kind and data type.
        gpu: The GPU that runs the work.
        efficiencies: The shares of the GPU's peak rates that its libraries reach, by class of operators.
    """
    if operators and class_of(operators[0].kind) == "gemm":
        return products_ps(operators, gpu, efficiencies)
    return np.array([roofline_ps(operator, gpu, efficiencies) for operator in operators], np.float64)
