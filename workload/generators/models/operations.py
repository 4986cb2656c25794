"""How many floating-point operations a model takes, by its matrices and its attention.

Only products count, as in Narayanan et al. (arXiv 2104.04473, appendix): norms, softmax and element-wise operations do
not. A matrix takes two operations for each parameter and token, attention's core 2 (query_dim + value_dim) for each
head and pair of query and key, the backward pass twice the forward pass. For a GPT with s tokens this is

    F = 72 B s l h^2 (1 + s / 6h + V / 12 l h)

and with all layers worked out again 96 B s l h^2 (1 + s / 6h + V / 16 l h). There every query counts with every key;
`causal` counts those that it sees, (s + 1) / 2 on average.
"""

from typing import Literal

from workload.generators.models import weights
from workload.generators.models.model import Model

Recompute = Literal["none", "selective", "full"]


def layer_flops(model: Model, number: int, sequence: int, *, causal: bool = False) -> int:
    """Operations of a layer's forward pass over one sequence."""
    return sequence * _of_matrices(model, weights.layer(model, number)) + core_flops(model, sequence, causal=causal)


def core_flops(model: Model, sequence: int, *, causal: bool = False) -> int:
    """Operations of attention's core in one layer's forward pass over one sequence: scores, and values by scores."""
    pairs = sequence * (sequence + 1) // 2 if causal else sequence * sequence
    return 2 * model.heads * (model.query_dim + model.value_dim) * pairs


def output_flops(model: Model, sequence: int, vocab: int = 0) -> int:
    """Operations of the output layer's forward pass over one sequence; vocab: columns if padded, 0 = the model's."""
    return 2 * sequence * weights.output_matrix(model, vocab).size


def forward_flops(model: Model, sequence: int, *, causal: bool = False) -> int:
    """Operations of a forward pass over one sequence, without multi-token prediction."""
    return _all_layers(model, sequence, causal=causal) + output_flops(model, sequence)


def training_flops(
    model: Model, batch: int, sequence: int = 0, *, recompute: Recompute = "none", causal: bool = False
) -> int:
    """Operations of a training step, those of multi-token prediction among them.

    Args:
        model: what is trained.
        batch: sequences.
        sequence: tokens of each, 0 = the model's.
        recompute: what the backward pass works out again: operations that are done; with "none" those that are needed,
            of which a model's FLOP/s utilization (MFU) is made.
        causal: pairs of query and key that the mask leaves out do not count.
    """
    tokens = sequence or model.sequence
    layers = _all_layers(model, tokens, causal=causal) + _mtp_layers(model, tokens, causal=causal)
    cores = (model.layers + model.mtp_layers) * core_flops(model, tokens, causal=causal)
    outputs = (1 + model.mtp_layers) * output_flops(model, tokens)
    again = {"none": 0, "selective": cores, "full": layers}[recompute]
    return batch * (3 * (layers + outputs) + again)


def _all_layers(model: Model, sequence: int, *, causal: bool) -> int:
    return sum(layer_flops(model, number, sequence, causal=causal) for number in range(model.layers))


def _mtp_layers(model: Model, sequence: int, *, causal: bool) -> int:
    """Forward pass of all layers of multi-token prediction, without their output layers."""
    if not model.mtp_layers:
        return 0
    own = sequence * _of_matrices(model, weights.mtp_layer(model)) + core_flops(model, sequence, causal=causal)
    return model.mtp_layers * own


def _of_matrices(model: Model, some: tuple[weights.Weights, ...]) -> int:
    """Operations of one token."""
    return sum(2 * weights.active(model, each) for each in some if each.is_matrix)
