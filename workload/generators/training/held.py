"""What a GPU of a parallel plan holds of a model's parameters, before ZeRO shares them among replicas.

All GPUs of a stage hold equally many.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from workload.generators.models import weights
from workload.generators.models.model import Model
from workload.generators.models.weights import Weights
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.stages import Chunk, chunks, padded_vocab


class HeldParameters(NamedTuple):
    """Parameters of one GPU.

    Attributes:
        dense: that all replicas have: dp * cp GPUs hold the same.
        experts: of routed experts: tp * cp * dp / (ep * etp) GPUs hold the same.
        embedding: of dense: the word embedding and the output layer, as far as they are here.
    """

    dense: int
    experts: int
    embedding: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.experts


def share(model: Model, plan: ParallelPlan, part: Weights) -> int:
    """How many parameters of a part one GPU has, if its stage has the part."""
    if part.split == "tp":
        return part.size // plan.tp
    if part.split == "kv":
        heads = model.key_value_heads
        return part.size // heads * max(1, heads // plan.tp)
    if part.split == "experts":
        return part.size // (plan.ep * plan.etp)
    return part.size


def chunk_weights(model: Model, plan: ParallelPlan, chunk: Chunk) -> Iterator[Weights]:
    """What a chunk needs, with the output layer as a matrix of its own; vocabulary padded."""
    vocab = padded_vocab(model, plan)
    if chunk.is_first:
        yield from weights.embedding(model, vocab)
    for number in chunk.layers:
        yield from weights.layer(model, number)
    if chunk.is_last:
        yield from weights.final_norm(model)
        for _ in range(model.mtp_layers):
            yield from weights.mtp_layer(model)
        yield weights.output_matrix(model, vocab)


def stage_weights(model: Model, plan: ParallelPlan, stage: int) -> Iterator[Weights]:
    """What the GPUs of a stage have. An output layer that is tied to an embedding on the same stage is this embedding.

    Layers of multi-token prediction share embedding and output layer with the model (DeepSeek-V3, section 2.2), which
    costs a copy of the embedding where the last stage has none.
    """
    own = chunks(model, plan)[stage]
    has_embedding = any(chunk.is_first for chunk in own)
    for chunk in own:
        for part in chunk_weights(model, plan, chunk):
            if part.part != "output" or not (model.tied_embeddings and has_embedding):
                yield part
    if model.mtp_layers and any(chunk.is_last for chunk in own) and not has_embedding and not model.tied_embeddings:
        yield weights.embedding(model, padded_vocab(model, plan))[0]


def held(model: Model, plan: ParallelPlan, stage: int) -> HeldParameters:
    """What each GPU of a stage has, for a plan that `rules.check` has passed."""
    return count(model, plan, stage_weights(model, plan, stage))


def count(model: Model, plan: ParallelPlan, parts: Iterable[Weights]) -> HeldParameters:
    """How many parameters of some parts one GPU has."""
    dense = experts = words = 0
    for part in parts:
        own = share(model, plan, part)
        if part.split == "experts":
            experts += own
        else:
            dense += own
        if part.part in {"embedding", "output"}:
            words += own
    return HeldParameters(dense, experts, words)
