"""Items after the last backward pass of a step: sums over groups, the norm of the gradients, the optimizer.

The order is that of Megatron-LM (core/distributed/finalize_model_grads.py, core/optimizer/optimizer.py).
"""

from collections.abc import Sequence

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import Operator
from nadi.workload.generators.training import offloaded
from nadi.workload.generators.training.items import Compute, GroupCollective, Items
from nadi.workload.generators.training.replicas import Replicas
from nadi.workload.generators.training.shard import Shard

_NUMBER_BYTES = 4  # Bytes of a norm or a loss (FP32)
_STATE_BYTES = 28
"""Bytes per parameter that Adam reads (gradient) and reads and writes (weight, momentum, variance), all in FP32."""


def items(shard: Shard, replicas: Sequence[Replicas], losses: Sequence[Replicas], *, is_at_an_end: bool) -> Items:
    """Return the items at the end of a step."""
    # `losses` are those of the stage's `replicas` whose chunk has a loss: at most one; `is_at_an_end`: the stage has
    # the embedding or the output layer.
    own = sum(_own_parameters(each) for each in replicas)
    return [
        *_norms(shard, replicas),
        *_tied_embedding(shard, replicas, is_at_an_end=is_at_an_end),
        *([] if "optimizer" in shard.plan.without else _update(shard, own)),
        *([Compute("host", (), on_host_micros=1000 * shard.plan.host_ms)] if shard.plan.host_ms else []),
        *(item for each in replicas if not each.gathers_beside for item in each.gathers(is_overlapped=False)),
        *(
            GroupCollective(
                "loss/dp:all-reduce", CollectiveCommType.ALL_REDUCE, _NUMBER_BYTES, each.family(is_expert=False)
            )
            for each in losses
            if each.count(is_expert=False) > 1
        ),
    ]


def _update(shard: Shard, own: int) -> Items:
    """Return the norm of the gradients and the optimizer's step on the GPU's `own` parameters."""
    bytes_each = _STATE_BYTES + (0 if shard.plan.dtype == "fp32" else 2)  # with the model's 16-bit copy if there is one
    return [
        Compute("grad-norm", (Operator("elementwise", (own, 1, 0), "fp32"),)),
        *_grad_norm(shard),
        *offloaded.step(shard, own, Compute("step", (Operator("optimizer", (own, bytes_each), shard.plan.dtype),))),
    ]


def _own_parameters(replicas: Replicas) -> int:
    """Return the number of parameters that this GPU's optimizer updates."""
    count = {False: 0, True: 0}
    for unit in replicas.units:
        for tensor in unit.tensors:
            count[tensor.is_expert] += tensor.size
    if not replicas.plan.zero:
        return sum(count.values())
    return sum(-(-count[is_expert] // replicas.count(is_expert=is_expert)) for is_expert in (False, True))


def _norms(shard: Shard, replicas: Sequence[Replicas]) -> Items:
    """Return the sum of the norms' gradients, which sequence parallelism computes per GPU for its own tokens."""
    if not shard.plan.sequence_parallel or shard.plan.tp == 1:
        return []
    count = sum(tensor.size for each in replicas for unit in each.units for tensor in unit.tensors if tensor.is_summed)
    if any(each.shares_parameters for each in replicas):
        count = -(-count // replicas[0].count(is_expert=False))
    size = count * replicas[0].gradient_bytes
    return [GroupCollective("norms/tp:all-reduce", CollectiveCommType.ALL_REDUCE, size, "tp")] if count else []


def _tied_embedding(shard: Shard, replicas: Sequence[Replicas], *, is_at_an_end: bool) -> Items:
    """Return the sum of the gradients of an embedding that the first and the last stage share."""
    # With DualPipe each of these stages has both ends of the model, so that no collective is needed.
    plan = shard.plan
    is_shared = shard.model.tied_embeddings or shard.model.mtp_layers
    if plan.lora or not is_at_an_end or not is_shared or plan.pp == 1 or plan.is_mirrored:
        return []
    size = shard.vocabulary * shard.model.hidden * replicas[0].gradient_bytes
    if replicas[0].shares_parameters:
        size = -(-size // replicas[0].count(is_expert=False))
    return [GroupCollective("embedding:all-reduce", CollectiveCommType.ALL_REDUCE, size, "embedding")]


def _grad_norm(shard: Shard) -> Items:
    """Return the sum of the squared norm over all GPUs with different parameters."""
    plan = shard.plan
    family = "world" if plan.zero or plan.ep > 1 or plan.is_mirrored else "model"
    members = plan.gpus if family == "world" else plan.tp * plan.pp
    if members == 1:
        return []
    return [GroupCollective("grad-norm/world:all-reduce", CollectiveCommType.ALL_REDUCE, _NUMBER_BYTES, family)]
