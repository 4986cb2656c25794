"""Traces of data-parallel training of a GPT-like transformer.

Every NPU holds the whole model and runs micro-batches of its own. An iteration is: embedding, forward through the
layers, head, backward through the layers in reverse, optimizer step. Gradients are summed over all NPUs in buckets, as
PyTorch's DistributedDataParallel does (Li et al., VLDB 2020): a bucket takes whole tensors in the order in which the
backward pass finishes them, is full when it has reached its size, and is sent as soon as its last layer is done, beside
the rest of the backward pass. All-reduces follow each other as on one communication stream.

Work and parameters are those of Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM" (arXiv 2104.04473, section 3 and appendix). Nodes say num_ops and tensor_size, for a roofline.
"""

import os
import shutil
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

_MOST = {"npus": MAX_NPUS, "layers": 10**5, "iterations": 10**6, "dtype_bytes": 64}
_LARGEST = 2**31 - 1
_MOST_OF_A_NODE = 2**63 - 1
_OPTIMIZER_STATE_BYTES = 24  # Adam reads and writes weight, momentum and variance, 4 bytes each


@dataclass(frozen=True)
class TransformerParams:
    """What is trained, and how.

    Attributes:
        npus: data-parallel copies.
        layers: l.
        hidden: h.
        heads: a, attention heads.
        vocab: V.
        seq: s, tokens of a sequence.
        micro_batch: b, sequences per NPU and iteration.
        dtype_bytes: of weights, activations and gradients.
        bucket_bytes: of gradients per all-reduce, 25 MiB as in PyTorch.
        iterations: optimizer steps.
        recompute: the backward pass does a layer's forward pass again, so that activations need not be kept.

    Raises:
        WorkloadError: a value below 1 or beyond _MOST, hidden not a multiple of heads, or nodes of more work or bytes
            than a trace can say.
    """

    npus: int = 8
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocab: int = 50_304
    seq: int = 1024
    micro_batch: int = 8
    dtype_bytes: int = 2
    bucket_bytes: int = 25 * MIB
    iterations: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = _MOST.get(field.name, _LARGEST)
            if field.name != "recompute" and not 1 <= value <= most:
                raise WorkloadError(f"transformer: {field.name} is {value}, expected 1 to {most}")
        if self.hidden % self.heads:
            raise WorkloadError(f"transformer: hidden is {self.hidden}, expected a multiple of heads ({self.heads})")
        optimizer_bytes = self.parameters() * (2 * self.dtype_bytes + _OPTIMIZER_STATE_BYTES)
        for what, most in (
            ("operations of a layer", 3 * self.layer_flops()),
            ("operations of the head", 2 * self.head_flops()),
            ("bytes of a layer", 3 * self.layer_bytes()),
            ("bytes of the head", 2 * _head_bytes(self)),
            ("bytes of the optimizer", optimizer_bytes),
        ):
            if most > _MOST_OF_A_NODE:
                raise WorkloadError(f"transformer: {most:.3g} {what}, expected less than 2^63")
        largest = max(bucket.bytes for bucket in buckets(self))
        if largest > MAX_BYTES:
            raise WorkloadError(f"transformer: an all-reduce of {largest} B, expected at most {MAX_BYTES}")

    def parameters(self) -> int:
        """P = 12 l h^2 (1 + 13/12h + (V + s)/12lh)."""
        return sum(tensor.parameters for tensor in _tensors(self))

    def flops(self) -> int:
        """Floating-point operations of an iteration on one NPU.

        96 b s l h^2 (1 + s/6h + V/16lh) with recomputation, 72 b s l h^2 (1 + s/6h + V/12lh) without.
        """
        passes = 4 if self.recompute else 3
        return passes * self.layers * self.layer_flops() + 3 * self.head_flops()

    def nodes(self) -> int:
        """Nodes of a trace."""
        return self.iterations * (2 * self.layers + 5 + len(buckets(self)))

    def layer_flops(self) -> int:
        """Forward pass of a layer: 24 b s h^2 + 4 b s^2 h."""
        return self.micro_batch * self.seq * self.hidden * (24 * self.hidden + 4 * self.seq)

    def head_flops(self) -> int:
        """Forward pass of the head, logits over the vocabulary: 2 b s h V."""
        return 2 * self.micro_batch * self.seq * self.hidden * self.vocab

    def layer_bytes(self) -> int:
        """Memory traffic of a layer's forward pass: its weights, and activations of b s h (17 + 5 a s/2h) values.

        Activations: Korthikanti et al., "Reducing activation recomputation in large transformer models"
        (arXiv 2205.05198, section 4.1), 34 + 5 a s/h bytes per token and hidden unit at 2 bytes a value.
        """
        tokens = self.micro_batch * self.seq
        activations = tokens * (34 * self.hidden + 5 * self.heads * self.seq) // 2
        return (self.hidden * (12 * self.hidden + 13) + activations) * self.dtype_bytes


class Tensor(NamedTuple):
    """Parameters whose gradient is done after `backward`: a layer, or EMBEDDING."""

    backward: int
    parameters: int


class Bucket(NamedTuple):
    """Gradients that are summed together once the backward pass of `backward` is done."""

    backward: int
    bytes: int


EMBEDDING = -1


def buckets(params: TransformerParams) -> list[Bucket]:
    """The all-reduces of an iteration in order."""
    made: list[Bucket] = []
    size = 0
    tensors = _tensors(params)
    for i, tensor in enumerate(tensors):
        size += tensor.parameters * params.dtype_bytes
        if size >= params.bucket_bytes or i == len(tensors) - 1:
            made.append(Bucket(tensor.backward, size))
            size = 0
    return made


def generate(params: TransformerParams) -> list[Message]:
    """The nodes of one NPU's trace; all NPUs have the same."""
    trace = _Trace()
    last: list[int] = []
    for iteration in range(params.iterations):
        last = [_iteration(trace, params, f"it{iteration}/", last)]
    return trace.nodes


def write(params: TransformerParams, out_dir: str | os.PathLike[str], prefix: str = "transformer") -> Path:
    """Write the traces `<out_dir>/<prefix>.<npu>.et`, hard links of one file where the file system has them.

    Files get their names when all are complete.

    Returns:
        `<out_dir>/<prefix>`, as run files name it.

    Raises:
        WorkloadError: out_dir cannot be written, or holds traces of that prefix for NPUs from params.npus on.
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
                _link(files[0], file)
            for file in files:
                file.replace(out / file.name)
    except OSError as error:
        raise WorkloadError(f"{out}: {error.strerror or error}, expected a folder to write traces to") from error
    return out / prefix


class _Trace:
    """Nodes of a trace as they come, numbered from 0."""

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
    """Parameters in the order in which the backward pass finishes their gradients.

    A layer: MLP (two matrices and biases), its norm, attention's output, query-key-value, its norm. The head shares the
    word embedding, which so is finished last, with the positions.
    """
    h = params.hidden
    sizes = (4 * h * h + h, 4 * h * h + 4 * h, 2 * h, h * h + h, 3 * h * h + 3 * h, 2 * h)
    layers = [Tensor(layer, size) for layer in reversed(range(params.layers)) for size in sizes]
    return [*layers, Tensor(EMBEDDING, params.vocab * h), Tensor(EMBEDDING, params.seq * h)]


def _iteration(trace: _Trace, params: TransformerParams, name: str, after: list[int]) -> int:
    """Add an iteration; return its optimizer step."""
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
    """Add the backward pass; return the node of each layer and of EMBEDDING."""
    passes = 3 if params.recompute else 2
    last = trace.compute(f"{name}backward/head", 2 * params.head_flops(), 2 * _head_bytes(params), [after])
    step_of = {}
    for layer in reversed(range(params.layers)):
        work, traffic = passes * params.layer_flops(), passes * params.layer_bytes()
        last = step_of[layer] = trace.compute(f"{name}backward/layer{layer}", work, traffic, [last])
    step_of[EMBEDDING] = trace.compute(f"{name}backward/embedding", 0, _embedding_bytes(params), [last])
    return step_of


def _embedding_bytes(params: TransformerParams) -> int:
    """Rows of the table that are read, and the activations that they become."""
    return 2 * params.micro_batch * params.seq * params.hidden * params.dtype_bytes


def _head_bytes(params: TransformerParams) -> int:
    """Word embedding, activations and logits."""
    tokens = params.micro_batch * params.seq
    values = params.vocab * params.hidden + tokens * (params.hidden + params.vocab)
    return values * params.dtype_bytes


def _refuse_leftovers(out: Path, prefix: str, names: set[str]) -> None:
    """Traces of a larger run would be read as part of this one."""
    for file in sorted(out.glob(f"{prefix}.*.et*")):
        if file.name not in names:
            raise WorkloadError(f"{file}: of another run, expected a folder without other traces named {prefix}")


def _link(file: Path, name: Path) -> None:
    try:
        name.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, name)
