"""What comes after the last backward pass of a step: sums over groups, the gradients' norm, the optimizer.

In the order of Megatron-LM (core/distributed/finalize_model_grads.py, core/optimizer/optimizer.py).
"""

from collections.abc import Sequence

from et import CollectiveCommType
from workload.compute.operators import Operator
from workload.generators.training import offloaded
from workload.generators.training.items import Compute, GroupCollective, Items
from workload.generators.training.replicas import Replicas
from workload.generators.training.shard import Shard

_NUMBER_BYTES = 4
"""Of a norm or a loss."""
_STATE_BYTES = 28
"""The optimizer (Adam) reads a gradient, and reads and writes weight, momentum and variance, all in FP32."""


def items(
    s: Shard, stage: int, replicas: Sequence[Replicas], losses: Sequence[Replicas], *, is_at_an_end: bool
) -> Items:
    """The end of a step.

    Args:
        s: the GPU's share.
        stage: of the pipeline.
        replicas: of each chunk.
        losses: of the chunk that has the loss, if it is one of them.
        is_at_an_end: the stage has the embedding or the output layer.
    """
    own = sum(_own_parameters(each) for each in replicas)
    return [
        *_norms(s, replicas),
        *_tied_embedding(s, replicas, is_at_an_end=is_at_an_end),
        Compute("grad-norm", (Operator("elementwise", (own, 1, 0), "fp32"),)),
        *_grad_norm(s),
        *offloaded.step(s, stage, Compute("step", (Operator("optimizer", (own, _bytes(s)), s.plan.dtype),))),
        *(item for each in replicas if not each.gathers_beside for item in each.gathers(beside=False)),
        *(item for each in losses for item in _loss(each)),
    ]


def _own_parameters(replicas: Replicas) -> int:
    """Parameters that this GPU's optimizer works on."""
    count = {False: 0, True: 0}
    for unit in replicas.units:
        for tensor in unit.tensors:
            count[tensor.is_expert] += tensor.size
    if not replicas.plan.zero:
        return sum(count.values())
    return sum(-(-count[is_expert] // replicas.count(is_expert=is_expert)) for is_expert in (False, True))


def _bytes(s: Shard) -> int:
    """Of a parameter; those of the model are written too if they are not the FP32 ones."""
    return _STATE_BYTES + (0 if s.plan.dtype == "fp32" else 2)


def _norms(s: Shard, replicas: Sequence[Replicas]) -> Items:
    """With sequence parallelism each GPU of a tensor-parallel group has norms' gradients of its own tokens only."""
    if not s.plan.sequence_parallel or s.plan.tp == 1:
        return []
    count = sum(tensor.size for each in replicas for unit in each.units for tensor in unit.tensors if tensor.is_summed)
    if any(each.shares_parameters for each in replicas):
        count = -(-count // replicas[0].count(is_expert=False))
    size = count * replicas[0].gradient_bytes
    return [GroupCollective("norms/tp:all-reduce", CollectiveCommType.ALL_REDUCE, size, "tp")] if count else []


def _tied_embedding(s: Shard, replicas: Sequence[Replicas], *, is_at_an_end: bool) -> Items:
    """The first and the last stage have gradients of an embedding that both use; with DualPipe they have both ends."""
    plan = s.plan
    is_twice = s.model.tied_embeddings or s.model.mtp_layers
    if not is_at_an_end or not is_twice or plan.pp == 1 or plan.is_mirrored:
        return []
    size = s.vocabulary * s.model.hidden * replicas[0].gradient_bytes
    if replicas[0].shares_parameters:
        size = -(-size // replicas[0].count(is_expert=False))
    return [GroupCollective("embedding:all-reduce", CollectiveCommType.ALL_REDUCE, size, "embedding")]


def _grad_norm(s: Shard) -> Items:
    """Over all that have different parameters."""
    plan = s.plan
    family = "world" if plan.zero or plan.ep > 1 or plan.is_mirrored else "model"
    members = plan.gpus if family == "world" else plan.tp * plan.pp
    if members == 1:
        return []
    return [GroupCollective("grad-norm/world:all-reduce", CollectiveCommType.ALL_REDUCE, _NUMBER_BYTES, family)]


def _loss(replicas: Replicas) -> Items:
    if replicas.count(is_expert=False) == 1:
        return []
    family = replicas.family(is_expert=False)
    return [GroupCollective("loss/dp:all-reduce", CollectiveCommType.ALL_REDUCE, _NUMBER_BYTES, family)]
