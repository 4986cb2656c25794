"""Memory of inference: weights and activations of a stage, and bytes of the KV cache per token."""

from nadi.workload.compute.operators import DTYPE_BYTES
from nadi.workload.generators.memory.activations import layer_activations
from nadi.workload.generators.memory.estimate import StageMemory, framework_bytes
from nadi.workload.generators.models.model import Model
from nadi.workload.generators.training import rules
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.parameters import held
from nadi.workload.generators.training.shard import Shard
from nadi.workload.generators.training.stages import chunks


def kv_cache_bytes_per_token(model: Model, plan: ParallelPlan | None = None, layers: int = 0) -> int:
    """Return the bytes per token of the KV cache of `layers` layers (0 = all) on one GPU; plan None = one GPU, bf16."""
    # A layer caches the keys and values of the GPU's heads; with latent attention it caches the compressed ones, which
    # the GPUs of a tensor-parallel group do not split (DeepSeek-V2, arXiv 2405.04434, section 2.1.4).
    plan = plan or ParallelPlan()
    if model.latent is not None:
        values = model.latent.key_value_rank + model.latent.rope_dim
    else:
        values = Shard(model, plan).kv_heads * (model.query_dim + model.value_dim)
    return (layers or model.layers) * values * int(DTYPE_BYTES[plan.dtype])


def serving_estimate(model: Model, plan: ParallelPlan, tokens_of_pass: int) -> tuple[StageMemory, ...]:
    """Return the memory of each stage of one replica without its KV cache."""
    # `tokens_of_pass` counts the tokens of a forward pass: of prompts or their pieces, one per decoding sequence.
    rules.check(model, plan, "inference")
    settled = rules.settle(model, plan, "inference")
    one_pass = settled.model_copy(update={"micro_batch": 1, "sequence": tokens_of_pass, "cp": 1})
    return tuple(_stage(model, one_pass, stage) for stage in range(plan.pp))


def _stage(model: Model, plan: ParallelPlan, stage: int) -> StageMemory:
    """Return the memory of one stage in a settled plan of one pass, without its KV cache."""
    (chunk,) = chunks(model, plan)[stage]
    kinds = {model.has_experts(number) for number in chunk.layers}
    layer = max((layer_activations(model, plan, has_experts=kind).kept("none") for kind in kinds), default=0)
    shard = Shard(model, plan)
    logits = shard.value_bytes * shard.tokens * shard.vocabulary if chunk.is_last else 0
    return StageMemory(
        stage=stage,
        weights=held(model, plan, stage).total * int(DTYPE_BYTES[plan.dtype]),
        gradients=0,
        optimizer=0,
        activations=layer,
        loss=logits,
        buffers=0,
        framework=framework_bytes(plan.tp, plan.pp, plan.ep),
        host=0,
    )
