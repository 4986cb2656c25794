"""Traces of data-parallel training of a GPT-like transformer.

Every NPU holds the whole model and runs its own micro-batches. An iteration consists of the embedding, the forward pass
through the layers, the head, the backward pass in reverse order, and the optimizer step. All NPUs sum their gradients
in buckets, as PyTorch's DistributedDataParallel does (Li et al., VLDB 2020): a bucket collects tensors in the order of
the backward pass until it reaches its size, and its all-reduce starts when its last layer is done, overlapping the rest
of the backward pass. All-reduces run one at a time, as on one communication stream.

Operations and parameters are those of Narayanan et al., "Efficient large-scale language model training on GPU clusters
using Megatron-LM" (arXiv 2104.04473, section 3 and appendix). Nodes have num_ops and tensor_size for a roofline model.
"""

import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import Message

from et import CollectiveCommType, coll_node, comp_node, metadata, write_trace
from inputs.limits import MAX_NPUS
from inputs.units import MIB
from topologies.bounds import MAX_BYTES
from workload.errors import WorkloadError
from workload.trace_sets.folder import link

_MAX = {"npus": MAX_NPUS, "layers": 10**5, "iterations": 10**6, "dtype_bytes": 64}
_MAX_OTHERS = 2**31 - 1
_MAX_OF_NODE = 2**63 - 1  # num_ops and tensor_size are int64
_OPTIMIZER_STATE_BYTES = 24  # Adam reads and writes weight, momentum and variance, 4 bytes each


@dataclass(frozen=True)
class TransformerParams:
    """Parameters of a transformer and of its data-parallel training.

    Raises:
        WorkloadError: If a value is out of range, hidden is not a multiple of heads, or a node has more operations or
            bytes than a trace can hold.
    """

    npus: int = 8  # Number of data-parallel replicas
    layers: int = 12  # l, number of layers
    hidden: int = 768  # h, hidden size
    heads: int = 12  # a, number of attention heads
    vocab: int = 50_304  # V, vocabulary size
    seq: int = 1024  # s, number of tokens per sequence
    micro_batch: int = 8  # b, number of sequences per NPU and iteration
    dtype_bytes: int = 2  # Bytes per weight, activation and gradient
    bucket_bytes: int = 25 * MIB  # Bytes of gradients per all-reduce; 25 MiB is PyTorch's default
    iterations: int = 1  # Number of optimizer steps
    # Whether the backward pass recomputes each layer's forward pass instead of keeping activations
    recompute: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            maximum = _MAX.get(field.name, _MAX_OTHERS)
            if field.name != "recompute" and not 1 <= value <= maximum:
                raise WorkloadError(f"transformer: {field.name} is {value}, expected 1 to {maximum}")
        if self.hidden % self.heads:
            raise WorkloadError(f"transformer: hidden is {self.hidden}, expected a multiple of heads ({self.heads})")
        optimizer_bytes = self.parameters() * (2 * self.dtype_bytes + _OPTIMIZER_STATE_BYTES)
        for quantity, value in (
            ("operations of a layer", 3 * self.layer_flops()),
            ("operations of the head", 2 * self.head_flops()),
            ("bytes of a layer", 3 * self.layer_bytes()),
            ("bytes of the head", 2 * _head_bytes(self)),
            ("bytes of the optimizer", optimizer_bytes),
        ):
            if value > _MAX_OF_NODE:
                raise WorkloadError(f"transformer: {value:.3g} {quantity}, expected less than 2^63")
        largest = max(bucket.bytes for bucket in buckets(self))
        if largest > MAX_BYTES:
            raise WorkloadError(f"transformer: an all-reduce of {largest} B, expected at most {MAX_BYTES}")

    def parameters(self) -> int:
        """Return the number of parameters, P = 12 l h^2 (1 + 13/12h + (V + s)/12lh)."""
        return sum(tensor.parameters for tensor in _tensors(self))

    def flops(self) -> int:
        """Return the floating-point operations of an iteration on one NPU.

        They are 96 b s l h^2 (1 + s/6h + V/16lh) with recomputation and 72 b s l h^2 (1 + s/6h + V/12lh) without.
        """
        passes = 4 if self.recompute else 3
        return passes * self.layers * self.layer_flops() + 3 * self.head_flops()

    def nodes(self) -> int:
        """Return the number of nodes of a trace."""
        return self.iterations * (2 * self.layers + 5 + len(buckets(self)))

    def layer_flops(self) -> int:
        """Return the operations of a layer's forward pass, 24 b s h^2 + 4 b s^2 h."""
        return self.micro_batch * self.seq * self.hidden * (24 * self.hidden + 4 * self.seq)

    def head_flops(self) -> int:
        """Return the operations of the head's forward pass (logits over the vocabulary), 2 b s h V."""
        return 2 * self.micro_batch * self.seq * self.hidden * self.vocab

    def layer_bytes(self) -> int:
        """Return the memory traffic of a layer's forward pass: weights, and b s h (17 + 5 a s/2h) activations.

        The activations are those of Korthikanti et al., "Reducing activation recomputation in large transformer models"
        (arXiv 2205.05198, section 4.1): 34 + 5 a s/h bytes per token and hidden unit at 2 bytes per value.
        """
        tokens = self.micro_batch * self.seq
        activations = tokens * (34 * self.hidden + 5 * self.heads * self.seq) // 2
        return (self.hidden * (12 * self.hidden + 13) + activations) * self.dtype_bytes


class Tensor(NamedTuple):
    """Number of parameters, and the layer (or EMBEDDING) whose backward pass completes their gradient."""

    backward: int
    parameters: int


class Bucket(NamedTuple):
    """Bytes of gradients of one all-reduce, which starts after the backward pass of layer `backward` (or EMBEDDING)."""

    backward: int
    bytes: int


EMBEDDING = -1  # Value of `backward` for the embedding


def buckets(params: TransformerParams) -> list[Bucket]:
    """Return the all-reduces of an iteration in order."""
    full: list[Bucket] = []
    size = 0
    tensors = _tensors(params)
    for i, tensor in enumerate(tensors):
        size += tensor.parameters * params.dtype_bytes
        if size >= params.bucket_bytes or i == len(tensors) - 1:
            full.append(Bucket(tensor.backward, size))
            size = 0
    return full


def generate(params: TransformerParams) -> list[Message]:
    """Return the nodes of the trace that all NPUs share."""
    trace = _Trace()
    last: list[int] = []
    for iteration in range(params.iterations):
        last = [_iteration(trace, params, f"it{iteration}/", last)]
    return trace.nodes


def write(params: TransformerParams, out_dir: str | os.PathLike[str], prefix: str = "transformer") -> Path:
    """Write the traces `<out_dir>/<prefix>.<npu>.et` as hard links of one file, or copies where links do not work.

    Files get their names when all are complete.

    Returns:
        `<out_dir>/<prefix>`, the value for `[workload] traces` of run files.

    Raises:
        WorkloadError: If out_dir is not writable, or holds traces with the prefix for NPUs from params.npus on.
    """
    out = Path(out_dir)
    names = [f"{prefix}.{npu}.et" for npu in range(params.npus)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        _refuse_leftovers(out, prefix, set(names))
        with tempfile.TemporaryDirectory(dir=out, prefix=".writing-") as staging:
            files = [Path(staging) / name for name in names]
            write_trace(files[0], metadata(), generate(params))
            for file in files[1:]:
                link(files[0], file)
            for file in files:
                file.replace(out / file.name)
    except OSError as error:
        raise WorkloadError(f"{out}: {error.strerror or error}, expected a folder to write traces to") from error
    return out / prefix


class _Trace:
    """The growing list of a trace's nodes, numbered from 0."""

    def __init__(self) -> None:
        self.nodes: list[Message] = []

    def compute(self, name: str, num_ops: int, tensor_size: int, deps: list[int]) -> int:
        node_id = len(self.nodes)
        self.nodes.append(comp_node(node_id, name, num_ops=num_ops, tensor_size=tensor_size, deps=deps))
        return node_id

    def all_reduce(self, name: str, size: int, deps: list[int]) -> int:
        node_id = len(self.nodes)
        self.nodes.append(coll_node(node_id, name, CollectiveCommType.ALL_REDUCE, size, deps=deps))
        return node_id


def _tensors(params: TransformerParams) -> list[Tensor]:
    """Return the parameter tensors in the order in which the backward pass completes their gradients.

    A layer has the MLP (two matrices with biases), its norm, attention's output matrix, the query-key-value matrix, and
    its norm. The head shares the word embedding, whose gradient is therefore complete last, with that of the positions.
    """
    h = params.hidden
    sizes = (4 * h * h + h, 4 * h * h + 4 * h, 2 * h, h * h + h, 3 * h * h + 3 * h, 2 * h)
    layers = [Tensor(layer, size) for layer in reversed(range(params.layers)) for size in sizes]
    return [*layers, Tensor(EMBEDDING, params.vocab * h), Tensor(EMBEDDING, params.seq * h)]


def _iteration(trace: _Trace, params: TransformerParams, name: str, after: list[int]) -> int:
    """Add an iteration, and return the node of its optimizer step."""
    head = _forward(trace, params, name, after)
    step_of = _backward(trace, params, name, head)
    sums: list[int] = []
    for i, bucket in enumerate(buckets(params)):
        deps = [step_of[bucket.backward], *sums[-1:]]
        sums.append(trace.all_reduce(f"{name}allreduce/bucket{i}", bucket.bytes, deps))
    traffic = params.parameters() * (2 * params.dtype_bytes + _OPTIMIZER_STATE_BYTES)
    return trace.compute(f"{name}optimizer", 0, traffic, [step_of[EMBEDDING], *sums])


def _forward(trace: _Trace, params: TransformerParams, name: str, after: list[int]) -> int:
    last = trace.compute(f"{name}forward/embedding", 0, _embedding_bytes(params), after)
    for layer in range(params.layers):
        last = trace.compute(f"{name}forward/layer{layer}", params.layer_flops(), params.layer_bytes(), [last])
    return trace.compute(f"{name}forward/head", params.head_flops(), _head_bytes(params), [last])


def _backward(trace: _Trace, params: TransformerParams, name: str, after: int) -> dict[int, int]:
    """Add the backward pass, and return the node of each layer and of EMBEDDING."""
    passes = 3 if params.recompute else 2
    last = trace.compute(f"{name}backward/head", 2 * params.head_flops(), 2 * _head_bytes(params), [after])
    step_of = {}
    for layer in reversed(range(params.layers)):
        work, traffic = passes * params.layer_flops(), passes * params.layer_bytes()
        last = step_of[layer] = trace.compute(f"{name}backward/layer{layer}", work, traffic, [last])
    step_of[EMBEDDING] = trace.compute(f"{name}backward/embedding", 0, _embedding_bytes(params), [last])
    return step_of


def _embedding_bytes(params: TransformerParams) -> int:
    """Return the bytes of the table's rows that are read, and of the activations that are written."""
    return 2 * params.micro_batch * params.seq * params.hidden * params.dtype_bytes


def _head_bytes(params: TransformerParams) -> int:
    """Return the bytes of word embedding, activations and logits."""
    tokens = params.micro_batch * params.seq
    values = params.vocab * params.hidden + tokens * (params.hidden + params.vocab)
    return values * params.dtype_bytes


def _refuse_leftovers(out: Path, prefix: str, names: set[str]) -> None:
    """Refuse a folder with traces of a larger run, which would be read as part of this one."""
    for file in sorted(out.glob(f"{prefix}.*.et*")):
        if file.name not in names:
            raise WorkloadError(f"{file}: of another run, expected a folder without other traces named {prefix}")
