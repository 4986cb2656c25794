"""Parameters on each GPU of a parallel plan, before ZeRO shards them over the replicas.

All GPUs of a stage hold the same number.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from workload.generators.models import weights
from workload.generators.models.model import Model
from workload.generators.models.weights import Weights
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.stages import Chunk, chunks, padded_vocab


class HeldParameters(NamedTuple):
    """Numbers of parameters of one GPU."""

    dense: int  # Parameters outside routed experts; dp * cp GPUs hold the same ones
    experts: int  # Parameters of routed experts; tp * cp * dp / (ep * etp) GPUs hold the same ones
    embedding: int  # Dense parameters that belong to the word embedding and the output layer

    @property
    def total(self) -> int:
        """Number of all parameters."""
        return self.dense + self.experts


class ParameterTensor(NamedTuple):
    """One or several parameter tensors on a GPU."""

    size: int  # Number of parameters on this GPU
    is_expert: bool = False  # Whether the parameters are those of experts, which have fewer replicas than others
    # Whether the tensor-parallel group must sum the gradients with sequence parallelism, because each of its GPUs
    # computes them for its own tokens
    is_summed: bool = False
    pieces: int = 1  # Number of the framework's equal tensors that this one represents


Tensors = list[ParameterTensor]


def tensors(model: Model, plan: ParallelPlan, parts: Iterable[Weights]) -> Tensors:
    """Return the tensors of the given parts on one GPU, in the same order."""
    return [
        ParameterTensor(
            _share(model, plan, part),
            is_expert=part.split == "experts",
            is_summed=part.split == "whole" and part.part != "positions",
            pieces=part.pieces // plan.ep if part.split == "experts" else part.pieces,
        )
        for part in parts
    ]


def _share(model: Model, plan: ParallelPlan, part: Weights) -> int:
    """Return the number of a part's parameters on each GPU of a stage that has the part."""
    if part.split == "tp":
        return part.size // plan.tp
    if part.split == "qkv":
        key_value_heads = max(1, model.key_value_heads // plan.tp)
        heads = model.heads // plan.tp + 2 * key_value_heads
        return part.size // (model.heads + 2 * model.key_value_heads) * heads
    if part.split == "experts":
        return part.size // (plan.ep * plan.etp)
    return part.size


def chunk_weights(model: Model, plan: ParallelPlan, chunk: Chunk) -> Iterator[Weights]:
    """Yield the weights that a chunk uses, with a padded vocabulary and the output layer as a separate matrix."""
    vocab = padded_vocab(model, plan)
    if chunk.is_first:
        yield from weights.embedding(model, vocab)
    for number in chunk.layers:
        yield from weights.layer(model, number)
    if chunk.is_last:
        yield weights.norm(model)
        for _ in range(model.mtp_layers):
            yield from weights.mtp_layer(model)
        yield weights.output_matrix(model, vocab)


def stage_weights(model: Model, plan: ParallelPlan, stage: int) -> Iterator[Weights]:
    """Yield the weights of a stage; an output layer that is tied to the stage's own embedding does not count again.

    Layers of multi-token prediction share the embedding and the output layer with the model (DeepSeek-V3, section 2.2),
    so that a last stage without an embedding holds a copy.
    """
    stage_chunks = chunks(model, plan)[stage]
    has_embedding = any(chunk.is_first for chunk in stage_chunks)
    for chunk in stage_chunks:
        for part in chunk_weights(model, plan, chunk):
            if part.part != "output" or not (model.tied_embeddings and has_embedding):
                yield part
    has_end = any(chunk.is_last for chunk in stage_chunks)
    if model.mtp_layers and has_end and not has_embedding and not model.tied_embeddings:
        yield weights.embedding(model, padded_vocab(model, plan))[0]


def held(model: Model, plan: ParallelPlan, stage: int) -> HeldParameters:
    """Return the numbers of parameters of each GPU of a stage, for a plan that `rules.check` accepts."""
    return count(model, plan, stage_weights(model, plan, stage))


def count(model: Model, plan: ParallelPlan, parts: Iterable[Weights]) -> HeldParameters:
    """Return the numbers of parameters of the given parts on one GPU."""
    dense = experts = embedding = 0
    for part in parts:
        size = _share(model, plan, part)
        if part.split == "experts":
            experts += size
        else:
            dense += size
        if part.part in {"embedding", "output"}:
            embedding += size
    return HeldParameters(dense, experts, embedding)
