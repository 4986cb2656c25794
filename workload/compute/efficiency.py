"""Shares of what a GPU can do that its libraries reach: one number for each class of operators, here and nowhere else.

They multiply what the mechanisms of `gemm`, `attention` and `streaming` leave of the peak: those say what is lost to
tiles, waves, exponentials and latency; what is left over is clocks under power, pipelines that are not always full, and
refreshes of memory.

| class | efficiency | how it was got |
| --- | --- | --- |
| gemm | 0.87 | 271.2 TFLOP/s of A100's 312 on 1024x10240x5120, over 0.99 of its waves, less a hundredth [1] |
| attention | 0.90 | some 225 TFLOP/s of A100's 312, heads of 128, after its exponentials [2] |
| memory | 0.87 | some 1.78 TB/s of A100's 2.04, BabelStream's triad (m) |
| optimizer | 0.80 | assumed: a fused Adam step reads and writes five arrays of two data types |

[1] S. Bekman, ml-engineering, table of maximum achievable matmul FLOPS; a hundredth off, as that is the best of many
shapes. [2] FlashAttention-2, forward, 16k tokens, no mask (arXiv 2307.08691, figure 5; m).
(m): from memory.

Uncertainty of one operator: products of thousands in each dimension 10 %, others 25 %; attention 10 % from 2,048 tokens
on, 20 % at 1,024 and up to 40 % too fast at 512; what memory bounds 15 % beyond 16 MB and 50 % below, where L2 and
launches decide.
"""

from dataclasses import dataclass, fields

from workload.compute.operators import PRODUCTS
from workload.errors import WorkloadError


@dataclass(frozen=True)
class Efficiencies:
    """One efficiency for each class of operators; 1 is what the mechanisms leave of the peak.

    Attributes:
        gemm: of the rate of tensor cores, in products.
        attention: of the same, in the products of fused attention.
        memory: of the bandwidth of HBM, in all operators but products and the optimizer; and in the reads of products.
        optimizer: of the bandwidth of HBM, in the optimizer's step.

    Raises:
        WorkloadError: one that is not above 0, or above 1.5.
    """

    gemm: float = 0.87
    attention: float = 0.90
    memory: float = 0.87
    optimizer: float = 0.80

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value <= 1.5:
                raise WorkloadError(f"efficiency {field.name} is {value}; expected more than 0, at most 1.5")


@dataclass(frozen=True)
class SustainedShare:
    """Share of the rate that operators reach alone, in a benchmark, which they reach in what is simulated.

    In a training step a GPU runs for seconds at its limit of power, operators follow each other with gaps, and those
    that memory bounds are less fused than they might be.

    Attributes:
        products: of operators that tensor cores do.
        others: of all others.
        in_a_row: products of matrices are also slowed by what is left of them one after another on their GPU
            (`Gpu.in_a_row`), unless their time was measured.

    Raises:
        WorkloadError: one that is not above 0, or above 1.5.
    """

    products: float = 1.0
    others: float = 1.0
    in_a_row: bool = False

    def __post_init__(self) -> None:
        for name in ("products", "others"):
            value = getattr(self, name)
            if not 0 < value <= 1.5:
                raise WorkloadError(f"pace {name} is {value}; expected more than 0, at most 1.5")

    def of(self, kind: str) -> float:
        """That of a kind of operator."""
        return self.products if kind in PRODUCTS else self.others


ALONE = SustainedShare()
IN_SERVING = SustainedShare(in_a_row=True)
"""Pace of serving. Servers replay CUDA graphs, so no gap between operators is left, and their other operators are the
fused ones that the measured tables hold (`workload/compute/tables`; scripts/validation.py compares the roofline with
them): these take their time alone. Products of a prompt follow each other as in a step and slow down as they do there.
"""
IN_STEPS = SustainedShare(products=0.895, others=0.645, in_a_row=True)
"""Pace of training steps, fitted to the ten rows of Megatron-LM on A100 (scripts/megatron_table.py) and to nothing
else."""
