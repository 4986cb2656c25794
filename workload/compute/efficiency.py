"""Efficiencies: shares of a GPU's peak that its libraries reach, one number per class of operators, defined only here.

They multiply the rate that the mechanisms of `gemm`, `attention` and `streaming` leave of the peak. The mechanisms
model losses to tiles, waves, exponentials and latency; the efficiencies cover the rest: clocks under the power limit,
pipelines that are not always full, and memory refreshes.

| class | efficiency | source |
| --- | --- | --- |
| gemm | 0.88 | A100's products in NVIDIA's tables [1]; 271.2 TFLOP/s on 1024x10240x5120 [2] are met within 5 % |
| attention | 0.88 | prompts on A100, H100 and B200 in NVIDIA's tables [1], with the numbers of `attention.ALGORITHMS` |
| memory | 0.87 | about 1.78 TB/s of A100's 2.04, BabelStream's triad (m) |
| optimizer | 0.80 | assumed: a fused Adam step reads and writes five arrays of two data types |

[1] aiconfigurator-core 0.12.0, half of the rows (scripts/kernel_tables.py compares the other half). [2] S. Bekman,
ml-engineering, table of maximum achievable matmul FLOPS.
(m): from memory.

Uncertainty of one operator: its mean error in NVIDIA's tables (docs/explanation/validation.md, kernel-tables): products
9 to 10 %, attention 3 to 11 %, experts 7 to 11 %; memory-bound operators 15 % above 16 MB and 50 % below, where L2 and
launches dominate.
"""

from dataclasses import dataclass, fields

from nadi.workload.compute.operators import PRODUCTS
from nadi.workload.errors import WorkloadError


@dataclass(frozen=True)
class Efficiencies:
    """One efficiency per class of operators, above 0 to 1.5; 1 is the rate that the mechanisms leave of the peak."""

    gemm: float = 0.88  # Efficiency of tensor cores in matrix products
    attention: float = 0.88  # Efficiency of tensor cores in the products of fused attention
    memory: float = 0.87  # Efficiency of HBM bandwidth in all other operators, including the reads of products
    optimizer: float = 0.80  # Efficiency of HBM bandwidth in the optimizer's step

    def __post_init__(self) -> None:
        """Check the values; WorkloadError if one is out of range."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value <= 1.5:
                raise WorkloadError(f"efficiency {field.name} is {value}; expected more than 0, at most 1.5")


@dataclass(frozen=True)
class SustainedShare:
    """Rates in a simulated workload as shares of the rates that operators reach alone in a benchmark.

    In a training step, a GPU runs at its power limit for seconds, there are gaps between operators, and memory-bound
    operators are less fused than they could be.

    Raises WorkloadError: a share is not above 0, or above 1.5.
    """

    products: float = 1.0  # Share of the rate of operators on tensor cores
    others: float = 1.0  # Share of the rate of all other operators
    in_a_row: bool = False  # Whether consecutive products slow down by `Gpu.in_a_row`, unless their time is measured

    def __post_init__(self) -> None:
        """Check the values; WorkloadError if one is out of range."""
        for name in ("products", "others"):
            value = getattr(self, name)
            if not 0 < value <= 1.5:
                raise WorkloadError(f"pace {name} is {value}; expected more than 0, at most 1.5")

    def of(self, kind: str) -> float:
        """Return the share for a kind of operator.

        Args:
            kind: The kind of operator, a key of operators.KINDS.
        """
        return self.products if kind in PRODUCTS else self.others


ALONE = SustainedShare()  # Rates of single operators in benchmarks
IN_SERVING = SustainedShare(in_a_row=True)
"""Rates of serving. Servers replay CUDA graphs, which leave no gaps between operators. Their other operators are the
fused ones of the measured tables (`workload/compute/tables`; scripts/validation.py compares the roofline with them), so
they run as fast as alone. Products of a prompt are consecutive as in a training step and slow down as they do there."""
IN_STEPS = SustainedShare(products=0.895, others=0.79, in_a_row=True)
"""Rates of training steps, fitted only to the ten rows of Megatron-LM on A100 (scripts/megatron_table.py)."""
