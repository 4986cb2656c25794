"""Plain MLPs, forward and backward."""

from workload.generators.training.items import Compute, Items
from workload.generators.training.linear import enter, enter_backward, leave, waiting, weights_product
from workload.generators.training.shard import Operators, Shard


def forward(s: Shard) -> Items:
    """Return the forward pass of one micro-batch."""
    h = s.model.hidden
    return [
        Compute("mlp-norm", (s.operator("norm", s.rows, h),)),
        *matrices(s, "mlp", s.model.ffn_width // s.plan.tp),
        Compute("mlp-residual", (s.residual(),)),
    ]


def backward(s: Shard) -> Items:
    """Return the backward pass of one micro-batch."""
    h = s.model.hidden
    items, key = matrices_backward(s, "mlp", s.model.ffn_width // s.plan.tp)
    norm = (s.operator("norm-backward", s.rows, h), s.residual_backward())
    return [Compute("mlp-residual", s.leave_backward()), *items, Compute("mlp-norm", norm, waiting(key))]


def matrices(s: Shard, part: str, width: int) -> Items:
    """Return the products with the two or three matrices of an MLP; width: this GPU's part of the inner width."""
    h, m = s.model.hidden, s.tokens
    both = 2 * width if s.model.is_gated else width
    operators = (s.gemm(m, both, h), s.activation(m, width), s.gemm(m, h, width))
    return [*enter(s, part, h), Compute(part, operators), *leave(s, part, h)]


def matrices_backward(s: Shard, part: str, width: int) -> tuple[Items, str]:
    """Return the backward pass of `matrices`, and the key of the input gradient's reduction."""
    h, m = s.model.hidden, s.tokens
    both = 2 * width if s.model.is_gated else width
    second: Operators = (s.gemm(m, width, h),)
    second_weights: Operators = (s.gemm(h, width, m),)
    items, key = enter_backward(s, part, h, (s.gemm(m, h, both),), (s.gemm(both, h, m),))
    return [
        *enter(s, part, h),
        Compute(part, second),
        weights_product(s, part, second_weights),
        Compute(part, (s.activation_backward(m, width), *s.bias_gradient(m * both))),
        *items,
    ], key
