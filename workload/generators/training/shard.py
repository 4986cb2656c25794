"""What one GPU has of a model's activations and matrices under a plan, and operators on it."""

from dataclasses import dataclass
from functools import cached_property

from workload.compute.operators import DTYPE_BYTES, Operator
from workload.generators.models.model import Experts, LatentAttention, Model
from workload.generators.training.parallel_plan import ParallelPlan

Operators = tuple[Operator, ...]


@dataclass(frozen=True)
class Shard:
    """A GPU's share.

    Attributes:
        model: the model.
        plan: how it is spread.
        expert_rank: of the GPU among those that share the experts.
    """

    model: Model
    plan: ParallelPlan
    expert_rank: int = 0

    @property
    def latent(self) -> LatentAttention:
        """The model's latent attention, which it has."""
        assert self.model.latent is not None  # noqa: S101 - for the type checker: the caller has asked
        return self.model.latent

    @property
    def experts(self) -> Experts:
        """The model's experts, which it has."""
        assert self.model.experts is not None  # noqa: S101 - for the type checker: the caller has asked
        return self.model.experts

    @cached_property
    def sequence(self) -> int:
        """s, tokens of a sequence."""
        return self.plan.sequence or self.model.sequence

    @cached_property
    def tokens(self) -> int:
        """Of a micro-batch that go through the GPU's matrices: b s / cp."""
        return self.plan.micro_batch * self.sequence // self.plan.cp

    @cached_property
    def rows(self) -> int:
        """Of these the tokens that it normalises: with sequence parallelism 1 / tp of them."""
        return self.tokens // self.plan.tp if self.plan.sequence_parallel else self.tokens

    @cached_property
    def routed_rows(self) -> int:
        """Of these the tokens that it routes to experts: where all of a group have the same, each routes a share."""
        return -(-self.tokens // self.plan.tp)

    @cached_property
    def heads(self) -> int:
        """Query heads."""
        return self.model.heads // self.plan.tp

    @cached_property
    def kv_heads(self) -> int:
        """Heads of keys and values; where there are fewer than GPUs, several have the same one."""
        if self.model.latent is not None:
            return self.heads
        return max(1, self.model.key_value_heads // self.plan.tp)

    @cached_property
    def activation_dtype(self) -> str:
        """Of what is not multiplied: FP8 is for products only."""
        return "bf16" if self.plan.dtype == "fp8" else self.plan.dtype

    @cached_property
    def value_bytes(self) -> int:
        """Bytes of an activation in memory, and on the wire unless it is quantised before (`operand_bytes`)."""
        return int(DTYPE_BYTES[self.activation_dtype])

    @cached_property
    def operand_bytes(self) -> int:
        """Bytes of a value that a product in the plan's data type takes."""
        return int(DTYPE_BYTES[self.plan.dtype])

    @cached_property
    def vocabulary(self) -> int:
        """Columns of the output matrix: Megatron pads the vocabulary to a multiple of 128 tp."""
        unit = 128 * self.plan.tp
        return -(-self.model.vocab // unit) * unit // self.plan.tp

    def gemm(self, m: int, n: int, k: int) -> Operator:
        """A product in the plan's data type."""
        return Operator("gemm", (m, n, k), self.plan.dtype)

    def operator(self, kind: str, *shape: int) -> Operator:
        """Another operator, in the data type of activations."""
        return Operator(kind, shape, self.activation_dtype)

    def residual(self) -> Operator:
        """Return the sum of a layer's input and output; dropout and bias are fused into it."""
        return self.operator("dropout" if self.model.dropout else "elementwise", self.rows * self.model.hidden, 2, 1)

    def residual_backward(self) -> Operator:
        """Return the sum of the gradients of a layer's input, along the residual and through the layer."""
        return self.operator("elementwise", self.rows * self.model.hidden, 2, 1)

    def leave_backward(self) -> Operators:
        """Return what comes backward between a layer's residual and its output matrix.

        The gradient passes the dropout, and is summed over tokens for the bias that is fused into the residual.
        """
        values = self.rows * self.model.hidden
        dropout = (self.operator("dropout", values, 1, 1),) if self.model.dropout else ()
        return (*dropout, *self.bias_gradient(values))

    def bias_gradient(self, values: int) -> Operators:
        """Return the sum over tokens that is the gradient of a bias which is fused into another operator.

        Args:
            values: number of gradients that the sum reads.
        """
        return (self.operator("elementwise", values, 1, 0),) if self.model.bias else ()

    def activation(self, rows: int, width: int) -> Operator:
        """Of an MLP's inner values; gated ones read two matrices."""
        return self.operator("elementwise", rows * width, 2 if self.model.is_gated else 1, 1)

    def activation_backward(self, rows: int, width: int) -> Operator:
        """Gradient of `activation`."""
        gates = 2 if self.model.is_gated else 1
        return self.operator("elementwise", rows * width, gates + 1, gates)
