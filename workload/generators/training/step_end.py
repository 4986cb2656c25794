"""The end of a step (sums over groups, optimizer), and transfers to and from the host's memory.

ZeRO-Offload (arXiv 2101.06840) sends gradients to the host, which runs the optimizer's step and sends weights back.
ZeRO-Infinity (arXiv 2104.07857) loads a GPU's share of a layer's weights before the layer is gathered. Activations move
to the host after a layer's forward pass, overlapping the next layers, and return one layer ahead of the backward pass.
"""

from collections.abc import Sequence

from nadi.et import CollectiveCommType
from nadi.workload.compute.operators import DTYPE_BYTES, Operator
from nadi.workload.generators.memory.states import weight_bytes
from nadi.workload.generators.training import item_lists
from nadi.workload.generators.training.replicas import Replicas
from nadi.workload.generators.training.software import HostWork, profile
from nadi.workload.generators.training.stages import Shard, stage_size
from nadi.workload.generators.training.units import ModelUnit

_HOST_BYTES_PER_MICRO = 51_200
"""Host memory bandwidth per GPU in bytes per microsecond: a DGX A100 has 409.6 GB/s for 8 GPUs (two sockets with 8
channels of DDR4-3200 each)."""


def after_forward(shard: Shard, unit: ModelUnit) -> item_lists.Items:
    """Return the store of a layer's activations to the host after the layer's last unit.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        unit: The unit whose forward pass ends.
    """
    is_offloaded = unit.kept and "activations" in shard.plan.offload
    return [item_lists.Memory("memory:store", unit.kept, loads=False)] if is_offloaded else []


def before_backward(shard: Shard, units: Sequence[ModelUnit], unit_number: int) -> tuple[item_lists.Items, list[str]]:
    """Return the loads of activations that start before a unit's backward pass, and the keys that the unit waits for.

    A layer's activations start to load before the backward pass of the layer above; those of the last layer at once.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        units: The units of the chunk in the order of the forward pass.
        unit_number: The index of the unit in the chunk.
    """
    if not units[unit_number].kept or "activations" not in shard.plan.offload:
        return [], []
    layers = [i for i in reversed(range(len(units))) if units[i].kept]
    at = layers.index(unit_number)
    # The last layer starts its own load and that of the layer below; the others start one layer ahead
    begun = layers[at : at + 2] if at == 0 else layers[at + 1 : at + 2]
    items: item_lists.Items = [
        item_lists.Memory(f"{units[i].layer}/memory:load", units[i].kept, loads=True, key=_key(units[i])) for i in begun
    ]
    return items, [_key(units[unit_number])]


def step(shard: Shard, parameters: int, update: item_lists.Compute) -> item_lists.Items:
    """Return the optimizer's step; if it is offloaded, it runs on the host between its transfers.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        parameters: The number of parameters that the GPU updates.
        update: The computation of the step.
    """
    # With ZeRO, a GPU updates its share of dense parameters and of experts; the GPUs gather the weights later.
    if "optimizer" not in shard.plan.offload:
        return [update]
    micros = -(-sum(operator.bytes for operator in update.operators) // _HOST_BYTES_PER_MICRO)
    sent = "optimizer gradients"
    return [
        item_lists.Memory("memory:store", parameters * int(DTYPE_BYTES[shard.plan.grad_dtype]), loads=False, key=sent),
        update._replace(needs=(sent,), on_host_micros=micros),
        item_lists.Memory("memory:load", parameters * weight_bytes(shard.plan), loads=True),
    ]


def _key(unit: ModelUnit) -> str:
    return f"activations {unit.layer}"


# Items after the last backward pass of a step: sums over groups, the norm of the gradients, the optimizer.
#
# The order is that of Megatron-LM (core/distributed/finalize_model_grads.py, core/optimizer/optimizer.py).


_NUMBER_BYTES = 4  # Bytes of a norm or a loss (FP32)
_COPIES = "copies"  # Key of the host's launches after the optimizer's
_STATE_BYTES = 28
"""Bytes per parameter that Adam reads (gradient) and reads and writes (weight, momentum, variance), all in FP32."""


def items(
    shard: Shard, replicas: Sequence[Replicas], losses: Sequence[Replicas], *, is_at_an_end: bool
) -> item_lists.Items:
    """Return the items at the end of a step.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        replicas: The collectives between replicas of each chunk of the stage.
        losses: The entries of `replicas` whose chunk has a loss, at most one.
        is_at_an_end: Whether the stage has the embedding or the output layer.
    """
    own = sum(_own_parameters(each) for each in replicas)
    return [
        *_norms(shard, replicas),
        *_tied_embedding(shard, replicas, is_at_an_end=is_at_an_end),
        *_expert_biases(shard, replicas),
        *([] if "optimizer" in shard.plan.without else _update(shard, replicas, own)),
        *_loop(shard, replicas),
        *(item for each in replicas if not each.gathers_beside for item in each.gathers(is_overlapped=False)),
        *(item for each in losses if shard.plan.report_loss == "step" for item in _loss(each)),
    ]


def after_loss(shard: Shard, replicas: Replicas) -> item_lists.Items:
    """Return how the loss of a micro-batch is reported, unless the step reports that of all micro-batches at its end.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        replicas: The collectives between replicas of the chunk with the loss.
    """
    if shard.plan.report_loss == "step":
        return []
    is_read = shard.plan.report_loss == "checked"
    return [
        *_loss(replicas),
        *(item_lists.reads_number(shard.plan, "loss/host", item_lists.RESTART_MICROS) if is_read else []),
    ]


def _loss(replicas: Replicas) -> item_lists.Items:
    """Return the sum of a loss over the replicas."""
    if replicas.count(is_expert=False) == 1:
        return []
    family = replicas.family(is_expert=False)
    return [item_lists.GroupCollective("loss/dp:all-reduce", CollectiveCommType.ALL_REDUCE, _NUMBER_BYTES, family)]


def beginning(shard: Shard, replicas: Sequence[Replicas]) -> item_lists.Items:
    """Return the items before the first forward pass of a step: Megatron-LM sets its buffers of gradients to 0.

    The gathers of parameters come after them: the first one is launched by the first module's forward pass, and
    PyTorch lets a collective wait for the stream of computation.

    Args:
        shard: A GPU's share of the model under the parallel plan.
        replicas: The collectives between replicas of each chunk of the stage.
    """
    if replicas[0].framework != "megatron" or "optimizer" in shard.plan.without:
        return []
    count = sum(tensor.size for each in replicas for unit in each.units for tensor in unit.tensors)
    zeros = Operator("elementwise", (count, 0, 1), shard.plan.grad_dtype)
    return [item_lists.Compute("zero-gradients", (zeros,))] if count else []


def _host(shard: Shard, replicas: Sequence[Replicas]) -> HostWork:
    """Return the host's work of the plan's software profile."""
    known = profile(shard.plan.software, replicas[0].framework)
    return HostWork() if known is None else known.host


def _update(shard: Shard, replicas: Sequence[Replicas], own: int) -> item_lists.Items:
    """Return the norm of the gradients and the optimizer's step on the GPU's `own` parameters."""
    plan, host = shard.plan, _host(shard, replicas)
    bytes_each = _STATE_BYTES + (0 if plan.dtype == "fp32" else 2)  # with the model's 16-bit copy if there is one
    tensors = sum(tensor.pieces for each in replicas for unit in each.units for tensor in unit.tensors)
    launch_micros, copies_micros = tensors * host.optimizer_ns // 1000, tensors * host.copies_ns // 1000
    has_copies = copies_micros and "host" not in plan.without
    return [
        item_lists.Compute("grad-norm", (Operator("elementwise", (own, 1, 0), "fp32"),)),
        *_grad_norm(shard),
        *(item_lists.reads_number(plan, "grad-norm/host", launch_micros) if host.reads_norm else []),
        *([item_lists.Compute("copies/host", (), on_host_micros=copies_micros, key=_COPIES)] if has_copies else []),
        *step(shard, own, item_lists.Compute("step", (Operator("optimizer", (own, bytes_each), plan.dtype),))),
        *_statistics(shard, host.statistics),
    ]


def _statistics(shard: Shard, count: int) -> item_lists.Items:
    """Return the numbers that the host reads after the step: whether it succeeded, and the largest norm."""
    # Megatron-LM's train_step: logical_and_across_model_parallel_group and reduce_max_stat_across_model_parallel_group
    plan, kind = shard.plan, CollectiveCommType.ALL_REDUCE
    return [
        item
        for number in range(count if plan.tp * plan.pp > 1 else 0)
        for item in (
            item_lists.GroupCollective(
                f"statistics{number}/world:all-reduce", kind, _NUMBER_BYTES, "model", needs=(_COPIES,)
            ),
            *item_lists.reads_number(plan, f"statistics{number}/host"),
        )
    ]


def _loop(shard: Shard, replicas: Sequence[Replicas]) -> item_lists.Items:
    """Return the host's time until the next step: its training loop, and what the plan adds."""
    micros = _host(shard, replicas).loop_us + round(1000 * shard.plan.host_ms)
    return item_lists.reads_number(shard.plan, "host", micros, (_COPIES,)) if micros else []


def _own_parameters(replicas: Replicas) -> int:
    """Return the number of parameters that this GPU's optimizer updates."""
    count = {False: 0, True: 0}
    for unit in replicas.units:
        for tensor in unit.tensors:
            count[tensor.is_expert] += tensor.size
    if not replicas.plan.zero:
        return sum(count.values())
    return sum(-(-count[is_expert] // replicas.shards(is_expert=is_expert)) for is_expert in (False, True))


def _norms(shard: Shard, replicas: Sequence[Replicas]) -> item_lists.Items:
    """Return the sum of the norms' gradients, which sequence parallelism computes per GPU for its own tokens."""
    if not shard.plan.sequence_parallel or shard.plan.tp == 1:
        return []
    count = sum(tensor.size for each in replicas for unit in each.units for tensor in unit.tensors if tensor.is_summed)
    if any(each.shares_parameters for each in replicas):
        count = -(-count // replicas[0].shards(is_expert=False))
    size = count * replicas[0].gradient_bytes
    return (
        [item_lists.GroupCollective("norms/tp:all-reduce", CollectiveCommType.ALL_REDUCE, size, "tp")] if count else []
    )


def _tied_embedding(shard: Shard, replicas: Sequence[Replicas], *, is_at_an_end: bool) -> item_lists.Items:
    """Return the sum of the gradients of an embedding that the first and the last stage share."""
    # With DualPipe each of these stages has both ends of the model, so that no collective is needed.
    plan = shard.plan
    is_shared = shard.model.tied_embeddings or shard.model.mtp_layers
    if plan.lora or not is_at_an_end or not is_shared or plan.pp == 1 or plan.is_mirrored:
        return []
    size = shard.vocabulary * shard.model.hidden * replicas[0].gradient_bytes
    if replicas[0].shares_parameters:
        size = -(-size // replicas[0].shards(is_expert=False))
    return [item_lists.GroupCollective("embedding:all-reduce", CollectiveCommType.ALL_REDUCE, size, "embedding")]


def _expert_biases(shard: Shard, replicas: Sequence[Replicas]) -> item_lists.Items:
    """Return the sum of the tokens of each expert over the stage's GPUs, and the update of the experts' biases."""
    # Megatron-Core, _update_router_expert_bias of core/distributed/finalize_model_grads.py
    if shard.model.experts is None or not shard.model.experts.expert_bias:
        return []
    layers = sum(any(tensor.is_expert for tensor in unit.tensors) for each in replicas for unit in each.units)
    count = layers * shard.experts.count
    if not count:
        return []
    size, kind = count * _NUMBER_BYTES, CollectiveCommType.ALL_REDUCE
    is_alone = stage_size(shard.plan) == 1 and not shard.plan.is_mirrored
    counts = [] if is_alone else [item_lists.GroupCollective("expert-bias/world:all-reduce", kind, size, "stage")]
    return [*counts, item_lists.Compute("expert-bias", (Operator("elementwise", (count, 2, 1), "fp32"),))]


def _grad_norm(shard: Shard) -> item_lists.Items:
    """Return the sum of the squared norm over all GPUs with different parameters."""
    plan = shard.plan
    family = "world" if plan.zero or plan.ep > 1 or plan.is_mirrored else "model"
    members = plan.gpus if family == "world" else plan.tp * plan.pp
    if members == 1:
        return []
    return [
        item_lists.GroupCollective("grad-norm/world:all-reduce", CollectiveCommType.ALL_REDUCE, _NUMBER_BYTES, family)
    ]
