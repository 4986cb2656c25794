"""One GPU's share of a model's activations and matrices under a parallel plan, and operators on it."""

from dataclasses import dataclass
from functools import cached_property

from workload.compute.operators import DTYPE_BYTES, Operator
from workload.generators.models.model import Experts, LatentAttention, Model
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.stages import padded_vocab

Operators = tuple[Operator, ...]


@dataclass(frozen=True)
class Shard:
    """One GPU's share of a model."""

    model: Model  # Model to train or serve
    plan: ParallelPlan  # Parallel plan of the model
    expert_rank: int = 0  # Rank of the GPU in its expert-parallel group

    @property
    def latent(self) -> LatentAttention:
        """The model's latent attention; only for models that have it."""
        assert self.model.latent is not None  # noqa: S101 - for the type checker: the caller checks it
        return self.model.latent

    @property
    def experts(self) -> Experts:
        """The model's experts; only for models that have them."""
        assert self.model.experts is not None  # noqa: S101 - for the type checker: the caller checks it
        return self.model.experts

    @cached_property
    def sequence(self) -> int:
        """s, number of tokens per sequence."""
        return self.plan.sequence or self.model.sequence

    @cached_property
    def tokens(self) -> int:
        """Number of tokens per micro-batch that pass through the GPU's matrices: b s / cp."""
        return self.plan.micro_batch * self.sequence // self.plan.cp

    @cached_property
    def rows(self) -> int:
        """Number of tokens that the GPU normalises: all, or 1 / tp of them with sequence parallelism."""
        return self.tokens // self.plan.tp if self.plan.sequence_parallel else self.tokens

    @cached_property
    def routed_rows(self) -> int:
        """Number of tokens that the GPU routes to experts: the tensor-parallel group shares the routing."""
        return -(-self.tokens // self.plan.tp)

    @cached_property
    def heads(self) -> int:
        """Number of query heads on the GPU."""
        return self.model.heads // self.plan.tp

    @cached_property
    def kv_heads(self) -> int:
        """Number of key and value heads on the GPU; several GPUs share one if there are fewer heads than GPUs."""
        if self.model.latent is not None:
            return self.heads
        return max(1, self.model.key_value_heads // self.plan.tp)

    @cached_property
    def activation_dtype(self) -> str:
        """Data type of activations outside products; FP8 is for products only."""
        return "bf16" if self.plan.dtype == "fp8" else self.plan.dtype

    @cached_property
    def value_bytes(self) -> int:
        """Bytes per activation in memory, and in a collective without quantisation (see `operand_bytes`)."""
        return int(DTYPE_BYTES[self.activation_dtype])

    @cached_property
    def operand_bytes(self) -> int:
        """Bytes per operand of a product in the plan's data type."""
        return int(DTYPE_BYTES[self.plan.dtype])

    @cached_property
    def vocabulary(self) -> int:
        """Number of the output matrix's columns on the GPU, padding included."""
        return padded_vocab(self.model, self.plan) // self.plan.tp

    def gemm(self, m: int, n: int, k: int) -> Operator:
        """Return a matrix product in the plan's data type."""
        return Operator("gemm", (m, n, k), self.plan.dtype)

    def operator(self, kind: str, *shape: int) -> Operator:
        """Return an operator in the data type of activations."""
        return Operator(kind, shape, self.activation_dtype)

    def residual(self) -> Operator:
        """Return the sum of a layer's input and output; dropout and bias are fused into it."""
        return self.operator("dropout" if self.model.dropout else "elementwise", self.rows * self.model.hidden, 2, 1)

    def residual_backward(self) -> Operator:
        """Return the sum of the gradients of a layer's input, along the residual and through the layer."""
        return self.operator("elementwise", self.rows * self.model.hidden, 2, 1)

    def leave_backward(self) -> Operators:
        """Return the backward operators between a layer's residual and its output matrix.

        The gradient passes through the dropout, and its sum over tokens is the gradient of the bias, which is fused
        into the residual.
        """
        values = self.rows * self.model.hidden
        dropout = (self.operator("dropout", values, 1, 1),) if self.model.dropout else ()
        return (*dropout, *self.bias_gradient(values))

    def bias_gradient(self, values: int) -> Operators:
        """Return the sum of `values` gradients over tokens: the gradient of a bias that is fused when forward."""
        return (self.operator("elementwise", values, 1, 0),) if self.model.bias else ()

    def activation(self, rows: int, width: int) -> Operator:
        """Return the activation function of an MLP's inner values; a gated one reads two matrices."""
        return self.operator("elementwise", rows * width, 2 if self.model.is_gated else 1, 1)

    def activation_backward(self, rows: int, width: int) -> Operator:
        """Return the gradient of `activation`."""
        gates = 2 if self.model.is_gated else 1
        return self.operator("elementwise", rows * width, gates + 1, gates)
