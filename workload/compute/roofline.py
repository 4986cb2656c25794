"""A roofline with mechanisms: how long an operator takes on a GPU of which nothing has been measured."""

from workload.compute.attention import attention_ps
from workload.compute.efficiency import Efficiencies
from workload.compute.gemm import product_ps
from workload.compute.gpu import Gpu
from workload.compute.operators import Operator
from workload.compute.streaming import streaming_ps

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
    """Which of the efficiencies a kind of operator has: gemm, attention, memory or optimizer."""
    return _CLASSES.get(kind, "memory")


def roofline_ps(operator: Operator, gpu: Gpu, efficiencies: Efficiencies) -> float:
    """Picoseconds of an operator by mechanisms alone; 0 where there is nothing to do.

    Raises:
        WorkloadError: the GPU does not know the data type.
    """
    return _TIMES.get(class_of(operator.kind), streaming_ps)(operator, gpu, efficiencies)
