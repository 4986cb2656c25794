"""One GPU's share of a model's activations and matrices under a parallel plan, and operators on it."""

from nadi.workload.compute.operators import DTYPE_BYTES, Operator
from nadi.workload.generators.models.architecture import Experts, LatentAttention, Model
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import padded_vocab

Operators = tuple[Operator, ...]


class Shard:
    """One GPU's share of a model under a parallel plan, for training or serving."""

    def __init__(self, model: Model, plan: ParallelPlan, expert_rank: int = 0) -> None:
        """Compute the sizes of a GPU's share.

        Args:
            model: The architecture of the model.
            plan: The settled parallel plan.
            expert_rank: The rank of the GPU in its expert-parallel group.
        """
        self.model, self.plan = model, plan
        self.expert_rank = expert_rank  # Rank of the GPU in its expert-parallel group
        self.sequence = plan.sequence or model.sequence  # s, number of tokens per sequence
        # Number of tokens per micro-batch that pass through the GPU's matrices: b s / cp
        self.tokens = plan.micro_batch * self.sequence // plan.cp
        # Number of tokens that the GPU normalises: all, or 1 / tp of them with sequence parallelism
        self.rows = self.tokens // plan.tp if plan.sequence_parallel else self.tokens
        # Number of tokens that the GPU routes to experts: the tensor-parallel group shares the routing
        self.routed_rows = -(-self.tokens // plan.tp)
        self.heads = model.heads // plan.tp  # Number of query heads on the GPU
        # Number of key and value heads on the GPU; several GPUs share one if there are fewer heads than GPUs
        self.kv_heads = self.heads if model.latent is not None else max(1, model.key_value_heads // plan.tp)
        self.activation_dtype = plan.activation_dtype  # Data type of activations outside products
        # Bytes per activation in memory, and in a collective without quantisation (see `operand_bytes`)
        self.value_bytes = int(DTYPE_BYTES[self.activation_dtype])
        # Bytes per operand of a product in the plan's data type as it is gathered (FP4 as FP8: an assumption)
        self.operand_bytes = max(1, int(DTYPE_BYTES[plan.dtype]))
        # Number of the output matrix's columns on the GPU, padding included
        self.vocabulary = padded_vocab(model, plan) // plan.tp

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

    def gemm(self, m: int, n: int, k: int) -> Operator:
        """Return a product of an (m x k) and a (k x n) matrix in the plan's data type.

        Args:
            m: The number of rows of the result.
            n: The number of columns of the result.
            k: The length of the sums.
        """
        return Operator("gemm", (m, n, k), self.plan.dtype)

    def operator(self, kind: str, *shape: int) -> Operator:
        """Return an operator in the data type of activations.

        Args:
            kind: The kind of operator, a key of operators.KINDS.
            *shape: The entries of the operator's shape.
        """
        return Operator(kind, shape, self.activation_dtype)

    def residual(self) -> Operator:
        """Return the sum of a layer's input and output; dropout and bias are fused into it."""
        return self.operator("dropout" if self.model.dropout else "elementwise", self.rows * self.model.hidden, 2, 1)

    def residual_backward(self) -> Operator:
        """Return the sum of the gradients of a layer's input, along the residual and through the layer."""
        return self.operator("elementwise", self.rows * self.model.hidden, 2, 1)

    def leave_backward(self) -> Operators:
        """Return the backward operators between a layer's residual and its output matrix."""
        # The gradient passes through the dropout, and its sum over tokens is the gradient of the bias, which is fused
        # into the residual.
        values = self.rows * self.model.hidden
        dropout = (self.operator("dropout", values, 1, 1),) if self.model.dropout else ()
        return (*dropout, *self.bias_gradient(values))

    def bias_gradient(self, values: int) -> Operators:
        """Return the sum of gradients over tokens: the gradient of a bias that is fused in the forward pass.

        Args:
            values: The number of gradients.
        """
        return (self.operator("elementwise", values, 1, 0),) if self.model.bias and not self.plan.lora else ()

    def activation(self, rows: int, width: int) -> Operator:
        """Return the activation function of an MLP's inner values; a gated one reads two matrices.

        Args:
            rows: The number of tokens.
            width: The number of inner values per token.
        """
        return self.operator("elementwise", rows * width, 2 if self.model.is_gated else 1, 1)

    def activation_backward(self, rows: int, width: int) -> Operator:
        """Return the gradient of `activation`.

        Args:
            rows: The number of tokens.
            width: The number of inner values per token.
        """
        gates = 2 if self.model.is_gated else 1
        return self.operator("elementwise", rows * width, gates + 1, gates)
