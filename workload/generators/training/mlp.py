"""Plain MLPs, forward and backward."""

from nadi.workload.generators.training.items import Compute, Items
from nadi.workload.generators.training.linear import enter, enter_backward, leave, waiting, weights_product
from nadi.workload.generators.training.shard import Operators, Shard


def forward(shard: Shard) -> Items:
    """Return the forward pass of an MLP with norm and residual for one micro-batch."""
    h = shard.model.hidden
    return [
        Compute("mlp-norm", (shard.operator("norm", shard.rows, h),)),
        *matrices(shard, "mlp", shard.model.ffn_width // shard.plan.tp),
        Compute("mlp-residual", (shard.residual(),)),
    ]


def backward(shard: Shard) -> Items:
    """Return the backward pass of an MLP with norm and residual for one micro-batch."""
    h = shard.model.hidden
    items, key = matrices_backward(shard, "mlp", shard.model.ffn_width // shard.plan.tp)
    norm = (shard.operator("norm-backward", shard.rows, h), shard.residual_backward())
    return [Compute("mlp-residual", shard.leave_backward()), *items, Compute("mlp-norm", norm, waiting(key))]


def matrices(shard: Shard, name: str, width: int) -> Items:
    """Return the products with an MLP's two or three matrices; width: this GPU's part of the inner width."""
    h, m = shard.model.hidden, shard.tokens
    both = 2 * width if shard.model.is_gated else width
    operators = (shard.gemm(m, both, h), shard.activation(m, width), shard.gemm(m, h, width))
    return [*enter(shard, name, h), Compute(name, operators), *leave(shard, name, h)]


def matrices_backward(shard: Shard, name: str, width: int) -> tuple[Items, str]:
    """Return the backward pass of `matrices`, and the key of the input gradient's reduction; arguments are the same."""
    h, m = shard.model.hidden, shard.tokens
    both = 2 * width if shard.model.is_gated else width
    second: Operators = (shard.gemm(m, width, h),)
    second_weights: Operators = (shard.gemm(h, width, m),)
    items, key = enter_backward(shard, name, h, (shard.gemm(m, h, both),), (shard.gemm(both, h, m),))
    return [
        *enter(shard, name, h),
        Compute(name, second),
        weights_product(shard, name, second_weights, gathered=True),
        Compute(name, (shard.activation_backward(m, width), *shard.bias_gradient(m * both))),
        *items,
    ], key
