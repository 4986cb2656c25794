"""Memory of inference: weights, and keys and values of the tokens that are being served."""

from typing import NamedTuple

from workload.compute.operators import DTYPE_BYTES
from workload.generators.memory.activations import key_value_heads, layer_activations, value_bytes
from workload.generators.memory.estimate import COMMUNICATOR_BYTES, CONTEXT_BYTES
from workload.generators.models.model import Model
from workload.generators.training import rules
from workload.generators.training.held import held
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.stages import chunks, padded_vocab


class ServingMemory(NamedTuple):
    """Bytes on each GPU of a stage.

    Attributes:
        stage: from 0.
        weights: of the stage.
        kv_cache: of all tokens that are being served.
        activations: of one layer, and logits, for the tokens of one pass.
        framework: CUDA context and NCCL: an assumption.
    """

    stage: int
    weights: int
    kv_cache: int
    activations: int
    framework: int

    @property
    def total(self) -> int:
        """On the GPU."""
        return self.weights + self.kv_cache + self.activations + self.framework


def kv_cache_bytes_per_token(model: Model, plan: ParallelPlan | None = None, layers: int = 0) -> int:
    """Bytes that the cache holds for a token on one GPU.

    A layer has keys and values of the GPU's heads; with latent attention the compressed ones, which every GPU of a
    tensor-parallel group has whole (DeepSeek-V2, arXiv 2405.04434, section 2.1.4).

    Args:
        model: what is served.
        plan: with its tensor parallelism and data type; None = one GPU, bf16.
        layers: on the GPU, 0 = all.
    """
    own = plan or ParallelPlan()
    if model.latent is not None:
        values = model.latent.key_value_rank + model.latent.rope_dim
    else:
        values = key_value_heads(model, own) * (model.query_dim + model.value_dim)
    return (layers or model.layers) * values * int(DTYPE_BYTES[own.dtype])


def serving_estimate(
    model: Model, plan: ParallelPlan, cached_tokens: int, tokens_of_pass: int
) -> tuple[ServingMemory, ...]:
    """Memory of each stage, for one replica.

    Args:
        model: what is served.
        plan: with tp, pp, ep and etp.
        cached_tokens: of all sequences that are being served at a time.
        tokens_of_pass: in one forward pass: of a prompt (or a piece of it), or one for each sequence.

    Raises:
        WorkloadError: a plan that `rules.check` refuses.
    """
    rules.check(model, plan, "inference")
    settled = rules.settle(model, plan, "inference")
    one_pass = settled.model_copy(update={"micro_batch": 1, "sequence": tokens_of_pass, "cp": 1})
    return tuple(_stage(model, one_pass, stage, cached_tokens) for stage in range(plan.pp))


def _stage(model: Model, plan: ParallelPlan, stage: int, cached_tokens: int) -> ServingMemory:
    (chunk,) = chunks(model, plan)[stage]
    kinds = {model.has_experts(number) for number in chunk.layers}
    layer = max((layer_activations(model, plan, has_experts=kind).kept("none") for kind in kinds), default=0)
    logits = value_bytes(plan) * plan.sequence * padded_vocab(model, plan) // plan.tp if chunk.is_last else 0
    axes = [plan.tp, plan.pp, plan.ep]
    return ServingMemory(
        stage=stage,
        weights=held(model, plan, stage).total * int(DTYPE_BYTES[plan.dtype]),
        kv_cache=cached_tokens * kv_cache_bytes_per_token(model, plan, len(chunk.layers)) if chunk.layers else 0,
        activations=layer + logits,
        framework=CONTEXT_BYTES + COMMUNICATOR_BYTES * sum(size > 1 for size in axes),
    )
