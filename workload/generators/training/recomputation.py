"""Forward operators and collectives that the backward pass of a layer repeats, by the plan's key `recompute`.

| word | what a layer's backward pass repeats, and when | source |
| --- | --- | --- |
| full | all of the layer, before its backward pass | |
| core_attn | attention's core, before its backward pass | Megatron-Core, core/transformer/attention.py |
| mla_up_proj | norms and products from compressed to whole queries, keys and values, rotary positions: before the core's | multi_latent_attention.py |
| layernorm | the norm before latent attention, and the norm before experts; Transformer Engine fuses all other norms with the matrix after them, and keeps their outputs | transformer_layer.py, core/models/gpt/gpt_layer_specs.py |
| mlp | a plain MLP with its norm and its communication, before its backward pass | transformer_layer.py |
| moe | router, shared and routed experts and all their communication, before their backward pass | moe/moe_layer.py |
| shared_experts | shared experts with their communication, before their backward pass | moe/moe_layer.py |
| moe_act | the activation between the matrices of routed experts, before the gradient of the second matrix | moe/experts.py |
| per-op | see `_every_second` | torchtitan, torchtitan/distributed/activation_checkpoint.py (SelectiveAC) |

Megatron-Core discards only the output of layernorm, mla_up_proj and moe_act, and repeats them when the gradient of the
operation that uses this output is known (CheckpointWithoutOutput of core/tensor_parallel/random.py). The others are
checkpoints that keep their input. A module inside another one, for example moe_act in moe, is repeated once for each.
"""  # noqa: E501 - a table

from collections.abc import Iterator, Sequence
from functools import lru_cache

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.models import operations
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import attention, experts, linear
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Item, Items
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import Shard

_MATRICES = ("attention-compression", "attention", "mlp", "shared-experts")
"""Names of the computations whose products "per-op" counts; those of routers and routed experts are all repeated."""
_SAVED_COLLECTIVES = (CollectiveCommType.REDUCE_SCATTER, CollectiveCommType.ALL_TO_ALL)


def complaint(model: Model, plan: ParallelPlan, framework: str) -> str:
    """Return why a model or framework does not have what a plan recomputes; "" if it does.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        framework: The framework: "megatron", "deepspeed", "fsdp", or "inference" for serving.
    """
    modules = operations.modules_of(plan.recompute)
    actual, others = f"recompute is {plan.recompute} with {framework}", "expected none, selective or full"
    if plan.recompute == operations.PER_OP and framework != "fsdp":
        return f"{actual}, {others} (per-op is torchtitan's, with fsdp)"
    if modules - {operations.CORE} and framework != "megatron":
        return f"{actual}, {others} (modules are Megatron-Core's)"
    lacking = _lacking(model)
    wrong = next((module for module in sorted(modules) if lacking[module]), "")
    return f"recompute is {plan.recompute}, expected it without {wrong}, as {lacking[wrong]}" if wrong else ""


@lru_cache(maxsize=64)
def _lacking(model: Model) -> dict[str, str]:
    """Return for each module why a model does not have it; "" if it does."""
    layers = [model.has_experts(number) for number in range(model.layers)]
    has_shared = model.experts is not None and model.experts.shared_width > 0
    return {
        operations.CORE: "",
        "moe_act": "" if any(layers) else "the model has no experts",
        "moe": "" if any(layers) else "the model has no experts",
        "shared_experts": "" if has_shared else "the model has no shared experts",
        "mla_up_proj": "" if model.latent is not None else "the model has no latent attention",
        "mlp": "the model has no plain MLP" if all(layers) else "",
        "layernorm": "" if any(layers) or model.latent is not None else "norms of this model are fused with matrices",
    }


def recompute_options(model: Model, framework: str) -> tuple[str, ...]:
    """Return the values of `recompute` that a framework offers a model, the one that takes the least time first.

    Args:
        model: The architecture of the model.
        framework: The training framework: "megatron", "deepspeed" or "fsdp".
    """
    lacking = _lacking(model)
    discarded = [module for module in ("moe_act", "layernorm", "mla_up_proj") if not lacking[module]]
    modules = ("+".join(discarded),) if framework == "megatron" and discarded else ()
    return (
        operations.NONE,
        *modules,
        operations.SELECTIVE,
        *((operations.PER_OP,) if framework == "fsdp" else ()),
        operations.FULL,
    )


def repeats_exchange(recompute: str) -> bool:
    """Return whether a backward pass repeats the exchange of tokens between experts.

    Args:
        recompute: The value of a plan's key `recompute`.
    """
    return recompute == operations.FULL or "moe" in operations.modules_of(recompute)


def attention_backward(shard: Shard) -> Items:
    """Return attention's backward pass of one micro-batch with what it recomputes.

    Args:
        shard: A GPU's share of the model under the parallel plan.
    """
    modules = operations.modules_of(shard.plan.recompute)
    norm: Items = []
    if "layernorm" in modules and shard.model.latent is not None:
        norm.append(Compute("attention-norm", (shard.operator("norm", shard.rows, shard.model.hidden),)))
    before_core = attention.expansion(shard) if "mla_up_proj" in modules else []
    before_core += attention.core(shard) if operations.CORE in modules else []
    return [*_renamed(norm), *attention.backward(shard, _renamed(before_core))]


def mlp_backward(shard: Shard, layer_number: int, forward: Items, *, has_experts: bool) -> Items:
    """Return the backward pass of a layer's MLP or experts for one micro-batch with what it recomputes.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        layer_number: The number of the layer, from 0.
        forward: The items of its forward pass, from the norm to the residual.
        has_experts: Whether the layer has experts instead of a plain MLP.
    """
    modules = operations.modules_of(shard.plan.recompute)
    norm, *inner, residual = forward
    if not has_experts:
        return [*_renamed([norm, *inner] if "mlp" in modules else []), *linear.backward(shard)]
    items = experts.backward(shard, layer_number)
    if "shared_experts" in modules:
        begin = next(number for number, item in enumerate(items) if item.name.startswith("shared-experts"))
        shared = linear.matrices(shard, "shared-experts", shard.experts.shared_width // shard.plan.tp)
        items[begin:begin] = _renamed(shared)
    if "moe_act" in modules:
        rows = experts.flow(shard, layer_number).received * shard.plan.etp
        items = [
            item._replace(operators=(*experts.activation(shard, rows), *item.operators))
            if isinstance(item, Compute) and item.name == "experts"
            else item
            for item in items
        ]
    before = [norm] if "layernorm" in modules else []
    if "moe" in modules:
        before += inner
        items[0] = items[0]._replace(needs=(*items[0].needs, *residual.needs))
    return [*_renamed(before), *items]


def whole_layer(shard: Shard, items_before: Sequence[Item], first: Items, second: Items, *, has_experts: bool) -> Items:
    """Return what "full" and "per-op" repeat before the backward pass of a layer; empty for other words.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        items_before: The items between the layer before and this one.
        first: The items of attention's forward pass.
        second: The items of the forward pass of its MLP or experts.
        has_experts: Whether the layer has experts instead of a plain MLP.
    """
    if shard.plan.recompute == operations.FULL:
        return _renamed([*items_before, *first, *second])
    if shard.plan.recompute == operations.PER_OP:
        return _renamed(_every_second(shard, [*first, *second], has_experts=has_experts))
    return []


def _renamed(items: Items) -> Items:
    return [item._replace(name=f"recompute/{item.name}") for item in items]


def products(shard: Shard, *, has_experts: bool) -> list[dict[str, Operator]]:
    """Return the products of a layer with torchtitan's matrices by their names, each with those that Nadi joins.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        has_experts: Whether the layer has experts instead of a plain MLP.
    """
    h, m, plan = shard.model.hidden, shard.tokens, shard.plan
    queries, keys = shard.heads * shard.model.query_dim, shard.kv_heads * shard.model.query_dim
    values, outputs = shard.kv_heads * shard.model.value_dim, shard.heads * shard.model.value_dim
    if shard.model.latent is not None:
        names = ("q_a", "kv_a") if shard.latent.query_rank else ("kv_a",)
        down = zip(names, attention.compressing(shard), strict=True)
        up = zip(("q_b", "kv_b"), attention.expanding(shard), strict=True)
        found = [{name: shard.gemm(shard.rows, columns, h)} for name, columns in down]
        found += [{name: shard.gemm(m, columns, k)} for name, (columns, k) in up]
    else:
        found = [{"q": shard.gemm(m, queries, h), "k": shard.gemm(m, keys, h), "v": shard.gemm(m, values, h)}]
    found.append({"o": shard.gemm(m, h, outputs)})
    width = (shard.experts.shared_width if has_experts else shard.model.ffn_width) // plan.tp
    if width:
        gate = {"w3": shard.gemm(m, width, h)} if shard.model.is_gated else {}
        found += [{"w1": shard.gemm(m, width, h), **gate}, {"w2": shard.gemm(m, h, width)}]
    return found


def _every_second(shard: Shard, items: Items, *, has_experts: bool) -> Items:
    """Return what torchtitan's policy repeats of a layer's forward pass.

    It saves attention's core, every other product with a matrix, and what reduce-scatters and all-to-alls bring; it
    repeats the remaining products, those of routers and routed experts (torch._grouped_mm is not among the saved
    operators), norms, elementwise operators, all-gathers and all-reduces.
    """
    again = operations.recomputed_matrices(shard.model, shard.plan.dtype, has_experts=has_experts)
    joined = iter(products(shard, has_experts=has_experts))
    repeated: Items = []
    for item in items:
        if isinstance(item, Compute):
            repeated.append(item._replace(operators=tuple(_repeated(item, joined, again)), needs=()))
        elif isinstance(item, GroupCollective) and item.kind not in _SAVED_COLLECTIVES and item.family != "cp":
            repeated.append(item)
    return repeated


def _repeated(item: Compute, joined: Iterator[dict[str, Operator]], again: frozenset[str]) -> Iterator[Operator]:
    """Yield the operators of a computation that are repeated; joined: separate products for each joined product."""
    is_core = item.name == attention.NAME and any(
        "attention" in operator.kind or operator.kind == "batched-gemm" for operator in item.operators
    )
    for operator in item.operators:
        if operator.kind == "gemm" and item.name in _MATRICES:
            yield from (product for name, product in next(joined).items() if name in again)
        elif not is_core:
            yield operator
