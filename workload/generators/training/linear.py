"""Communication of tensor-parallel matrices, as in Megatron-LM.

Before a matrix that is split by columns and after one that is split by rows (Shoeybi et al., arXiv 1909.08053; with
sequence parallelism Korthikanti et al., arXiv 2205.05198):

| | forward | backward |
| --- | --- | --- |
| columns | nothing; sp: all-gather of the input | all-reduce; sp: reduce-scatter, and all-gather of the input again |
| rows | all-reduce; sp: reduce-scatter | nothing; sp: all-gather |

As in Megatron-LM (core/tensor_parallel/layers.py) the second gather hides behind the product for the input's gradient,
and the reduction of that behind the product for the weights'; before Megatron-LM 3.0 (`async_tp` false) neither does.

With FP8 all three gathers of sequence parallelism carry one byte per value, because Transformer Engine quantises before
it gathers (pytorch/module/layernorm_linear.py, linear.py, layernorm_mlp.py: the input of a matrix split by columns is
quantised, gathered, and gathered again from its FP8 copy in the backward pass; pytorch/module/base.py,
grad_output_preprocess: the gradient of the output of a matrix split by rows is quantised, then gathered). All sums stay
in BF16: the reduce-scatters carry results of products, whose data type is that of activations. (Userbuffers can send
the forward pass' reduce-scatter in FP8, too, where its configuration says `fp8_buf`; that is not modelled.)
"""

from et import CollectiveCommType
from workload.compute.operators import Operator
from workload.generators.training.items import Compute, GroupCollective, Items
from workload.generators.training.shard import Operators, Shard


def all_gather(
    s: Shard, part: str, values: int, *, key: str = "", weights: bool = False, quantised: bool = False
) -> Items:
    """Gather values over the tensor-parallel group.

    Args:
        s: the GPU's share.
        part: name of the part of the layer.
        values: number of values of the whole group.
        key: key of the collective, "" = what comes after waits for it.
        weights: whether it belongs to the gradients of weights.
        quantised: whether the values are operands of a product in the plan's data type, quantised before the gather.
    """
    if s.plan.tp == 1:
        return []
    size = -(-values * (s.operand_bytes if quantised else s.value_bytes) // s.plan.tp)
    name = f"{part}/tp:all-gather"
    return [GroupCollective(name, CollectiveCommType.ALL_GATHER, size, "tp", key, weights=weights)]


def reduction(s: Shard, part: str, values: int, *, key: str = "") -> Items:
    """Sum so many values over the group; with sequence parallelism each keeps its share."""
    if s.plan.tp == 1:
        return []
    if s.plan.sequence_parallel:
        kind, word = CollectiveCommType.REDUCE_SCATTER, "reduce-scatter"
    else:
        kind, word = CollectiveCommType.ALL_REDUCE, "all-reduce"
    return [GroupCollective(f"{part}/tp:{word}", kind, values * s.value_bytes, "tp", key)]


def enter(s: Shard, part: str, width: int, *, quantised: bool = True) -> Items:
    """Return the gather before a matrix split by columns, and backward before one split by rows.

    Args:
        s: the GPU's share.
        part: name of the part of the layer.
        width: values of a token.
        quantised: whether the matrix is multiplied in the plan's data type; false for both ends of the model.
    """
    return all_gather(s, part, s.tokens * width, quantised=quantised) if s.plan.sequence_parallel else []


def leave(s: Shard, part: str, width: int) -> Items:
    """After a matrix split by rows."""
    return reduction(s, part, s.tokens * width)


def enter_backward(
    s: Shard, part: str, width: int, data: Operators, weights: Operators, *, quantised: bool = True
) -> tuple[Items, str]:
    """Backward through matrices split by columns.

    Args:
        s: the GPU's share.
        part: of the layer.
        width: of the input, over all of the matrices' different inputs.
        data: operators for the gradient of the input.
        weights: operators for that of the weights.
        quantised: as of `enter`.

    Returns:
        The items, and the key that whoever needs the input's gradient waits for, "" = none.
    """
    if s.plan.tp == 1:
        return [Compute(part, data), weights_product(s, part, weights)], ""
    gathered, reduced = (f"{part} input", f"{part} gradient") if s.plan.async_tp else ("", "")
    needs: tuple[str, ...] = ()
    items: Items = []
    if s.plan.sequence_parallel:
        items += all_gather(s, part, s.tokens * width, key=gathered, weights=True, quantised=quantised)
        needs = waiting(gathered)
    items.append(Compute(part, data))
    items += reduction(s, part, s.tokens * width, key=reduced)
    items.append(weights_product(s, part, weights, needs))
    return items, reduced


def weights_product(s: Shard, part: str, products: Operators, needs: tuple[str, ...] = ()) -> Compute:
    """Products for gradients of weights; where these are summed up by operators of their own, those too."""
    sums: Operators = ()
    if not s.plan.fused_accumulation:
        values = sum(_weights_of(product) for product in products)
        sums = (Operator("elementwise", (values, 2, 1), s.plan.grad_dtype),)
    return Compute(f"{part}-weights", (*products, *sums), needs, weights=True)


def _weights_of(product: Operator) -> int:
    """How many weights a product gives gradients of; grouped ones have the shape of the forward pass."""
    if product.kind == "gemm":
        return product.shape[0] * product.shape[1]
    return product.shape[0] * product.shape[2] * product.shape[3] if product.kind == "grouped-gemm" else 0


def waiting(key: str) -> tuple[str, ...]:
    """The `needs` of whoever waits for a key, if there is one."""
    return (key,) if key else ()
