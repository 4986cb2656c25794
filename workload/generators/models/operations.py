"""Number of floating-point operations of a model: its matrices and its attention.

Only products count, as in Narayanan et al. (arXiv 2104.04473, appendix); norms, softmax and elementwise operations do
not. A matrix needs two operations per parameter and token, the core of attention 2 (query_dim + value_dim) per head and
pair of query and key, and a backward pass twice as many as the forward pass (as many for the matrices if they are
frozen). For a GPT with s tokens the sum is

    F = 72 B s l h^2 (1 + s / 6h + V / 12 l h)

or, with recomputation of all layers, 96 B s l h^2 (1 + s / 6h + V / 16 l h). These formulas count every key for every
query; with `causal`, only the keys that a query attends to count, (s + 1) / 2 on average.
"""

from typing import Literal

from nadi.workload.generators.models import weights
from nadi.workload.generators.models.model import Model

Recompute = Literal["none", "selective", "full"]


def layer_flops(model: Model, number: int, sequence: int, *, causal: bool = False) -> int:
    """Return the operations of a layer's forward pass over one sequence."""
    return sequence * _matrix_flops(model, weights.layer(model, number)) + core_flops(model, sequence, causal=causal)


def core_flops(model: Model, sequence: int, *, causal: bool = False) -> int:
    """Return the operations of one layer's attention core (scores, weighted values) over one sequence, forward."""
    pairs = sequence * (sequence + 1) // 2 if causal else sequence * sequence
    return 2 * model.heads * (model.query_dim + model.value_dim) * pairs


def output_flops(model: Model, sequence: int, vocab: int = 0) -> int:
    """Return the operations of the output layer's forward pass; vocab: padded vocabulary size, 0 = the model's."""
    return 2 * sequence * weights.output_matrix(model, vocab).size


def training_flops(
    model: Model, batch: int, sequence: int = 0, *, recompute: Recompute = "none", causal: bool = False, lora: int = 0
) -> int:
    """Return the operations of a training step on `batch` sequences, including those of multi-token prediction."""
    # A sequence has the model's number of tokens if `sequence` is 0. With recompute "none", the result counts the
    # necessary operations, the basis of model FLOP/s utilization (MFU). With `causal`, pairs of query and key that a
    # causal mask excludes do not count. `lora` is the rank of adapters beside attention's frozen matrices; frozen ones
    # have no gradients, so that their backward pass has as many operations as their forward pass.
    tokens = sequence or model.sequence
    core = core_flops(model, tokens, causal=causal)
    layers = sum(layer_flops(model, number, tokens, causal=causal) for number in range(model.layers))
    if model.mtp_layers:
        layers += model.mtp_layers * (tokens * _matrix_flops(model, weights.mtp_layer(model)) + core)
    cores = (model.layers + model.mtp_layers) * core
    outputs = (1 + model.mtp_layers) * output_flops(model, tokens)
    frozen = 0
    if lora:
        frozen = layers - cores + outputs
        layers += model.layers * tokens * _matrix_flops(model, weights.adapters(model, lora))
    recomputed = {"none": 0, "selective": cores, "full": layers}[recompute]
    return batch * (3 * (layers + outputs) - frozen + recomputed)


def _matrix_flops(model: Model, parts: tuple[weights.Weights, ...]) -> int:
    """Return the operations per token of the matrices among the given weights."""
    return sum(2 * weights.active(model, part) for part in parts if part.is_matrix)
