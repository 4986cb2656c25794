"""The text format of ASTRA-sim 1.0 and SimAI, a line per layer, and the place of an NPU in a pipeline of its layers.

    name reserved fwd_time fwd_comm fwd_size ig_time ig_comm ig_size wg_time wg_comm wg_size update_time [policy]

Source: ASTRA-sim, branch ASTRA-sim-1.0, and SimAI, workload/Workload.cc (initialize_workload).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.et.schema import CollectiveCommType

POLICIES = (
    "DATA",
    "MODEL",
    "MICRO",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_TRANSFORMER",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "HYBRID_CUSTOMIZED",
    "DISTRIBUTED_INFERENCE",
)
NUMBERS = ("model_parallel_NPU_group", "ep", "pp", "vpp", "ga", "all_gpus", "pp_comm", "DLRM_LAST_BOTTOM_LAYER")
LISTS = ("checkpoints", "checkpoint_initiates")
_KINDS = {
    "ALLREDUCE": CollectiveCommType.ALL_REDUCE,
    "ALLGATHER": CollectiveCommType.ALL_GATHER,
    "REDUCESCATTER": CollectiveCommType.REDUCE_SCATTER,
    "ALLTOALL": CollectiveCommType.ALL_TO_ALL,
}
_SUFFIXES = ("", "_EP", "_DP_EP")
_LEFT_OUT = ("BROADCAST",)
_MAX_LAYERS = 1_000_000
_MAX_INT64 = 2**63 - 1
_LAYER_COLUMNS = 12
_PHASES = (("fwd", 2), ("ig", 5), ("wg", 8))  # name and first column of each pass


class LayerPass(NamedTuple):
    """One of a layer's three passes."""

    nanos: int  # computation time in nanoseconds
    kind: CollectiveCommType | None  # kind of its collective, None = no collective
    size: int  # size of its collective in bytes, as written
    group: str  # group of its collective, "EP" or "DP_EP"; "" = the usual group of the pass


class Layer(NamedTuple):
    """A line of the file."""

    name: str  # name of the layer; several layers may share one
    # its passes
    forward: LayerPass
    input_gradient: LayerPass
    weight_gradient: LayerPass
    update_nanos: int  # time of the update after the collective of weight gradients, in nanoseconds
    policy: str  # policy of the layer in a HYBRID_CUSTOMIZED file, otherwise ""


class LayerFile(NamedTuple):
    """A file of layers."""

    path: Path  # path of the file
    policy: str  # one of POLICIES
    numbers: dict[str, int]  # numbers in the first line, by name; missing ones are left out
    lists: dict[str, tuple[int, ...]]  # lists of layers in the first line: checkpoints and checkpoint_initiates
    layers: tuple[Layer, ...]  # layers of the file
    left_out: dict[str, int]  # number of collectives that the originals ignore, by name


def read_layers(path: Path) -> LayerFile:
    """Read a file; raise TraceError if the file cannot be read, or a line has another form.

    Args:
        path: The file, which may be gzipped.
    """
    with inputs.refusing(path, "a workload of layers", TraceError, UnicodeDecodeError):
        text = b"".join(inputs.blocks(path)).decode("utf-8")
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if len(lines) < 2:
        raise TraceError(f"{path}: {len(lines)} lines, expected a policy, a number of layers and one line per layer")
    policy, numbers, lists = _head(path, lines[0][1])
    count = _integer(path, lines[1][0], "number of layers", lines[1][1][0], _MAX_LAYERS)
    if len(lines) - 2 < count or count == 0:
        raise TraceError(f"{path}: {len(lines) - 2} lines of layers, expected {max(count, 1)} by line 2")
    left_out: dict[str, int] = {}
    width = _LAYER_COLUMNS + (policy == "HYBRID_CUSTOMIZED")
    layers = tuple(_layer(path, number, words, width, left_out) for number, words in lines[2 : 2 + count])
    for name, places in lists.items():
        if any(layer >= count for layer in places):
            raise TraceError(f"{path}: line 1: {name} has layer {max(places)}, expected 0 to {count - 1}")
    return LayerFile(path, policy, numbers, lists, layers, left_out)


def _head(path: Path, words: Sequence[str]) -> tuple[str, dict[str, int], dict[str, tuple[int, ...]]]:
    """Return policy, numbers and lists of the first line of a file, given as words."""
    place = f"{path}: line 1"
    if words[0] not in POLICIES:
        raise TraceError(f"{place}: policy {words[0][:60]!r}, expected one of {', '.join(POLICIES)}")
    numbers: dict[str, int] = {}
    lists: dict[str, tuple[int, ...]] = {}
    rest = list(words[1:])
    # DLRM's number stands without a name behind the policy
    if words[0].startswith("HYBRID_DLRM") and rest and rest[0].isdecimal():
        rest.insert(0, "DLRM_LAST_BOTTOM_LAYER")
    while rest:
        name = rest.pop(0).rstrip(":")
        if name not in (*NUMBERS, *LISTS) or not rest:
            known = ", ".join((*NUMBERS, *LISTS))
            raise TraceError(f"{place}: found {name[:60]!r}, expected {known}, each with its number")
        number = _integer(path, 1, name, rest.pop(0), _MAX_INT64)
        if name in NUMBERS:
            numbers[name] = number
        elif number > len(rest):
            raise TraceError(f"{place}: {name} has {len(rest)} layers, expected {number}")
        else:
            lists[name] = tuple(_integer(path, 1, name, word, _MAX_INT64) for word in rest[:number])
            del rest[:number]
    return words[0], numbers, lists


def _layer(path: Path, line_number: int, words: Sequence[str], num_columns: int, omitted: dict[str, int]) -> Layer:
    """Return the layer in a line; count in `omitted` the collectives that Chakra does not know, by name."""
    if len(words) != num_columns:
        raise TraceError(f"{path}: line {line_number}: {len(words)} columns, expected {num_columns}")
    passes = []
    for name, column in _PHASES:
        nanos = _integer(path, line_number, f"{name}_time", words[column], _MAX_INT64)
        kind, group = _collective(path, line_number, f"{name}_comm", words[column + 1], omitted)
        size = _integer(path, line_number, f"{name}_size", words[column + 2], _MAX_INT64)
        passes.append(LayerPass(nanos, kind, size, group))
    update = _integer(path, line_number, "update_time", words[11], _MAX_INT64)
    policy = words[_LAYER_COLUMNS] if num_columns > _LAYER_COLUMNS else ""
    if policy and policy not in POLICIES:
        raise TraceError(f"{path}: line {line_number}: policy {policy[:60]!r}, expected one of {', '.join(POLICIES)}")
    forward, input_gradient, weight_gradient = passes
    return Layer(words[0], forward, input_gradient, weight_gradient, update, policy)


def _collective(
    path: Path, line_number: int, column: str, word: str, omitted: dict[str, int]
) -> tuple[CollectiveCommType | None, str]:
    """Return kind and group of NONE, ALLREDUCE, ALLREDUCE_EP, ...; (None, "") and a count in `omitted` if unknown."""
    if word in _LEFT_OUT:
        omitted[word] = omitted.get(word, 0) + 1
        return None, ""
    if word == "NONE":
        return None, ""
    kind, _, group = word.partition("_")
    if kind not in _KINDS or word.removeprefix(kind) not in _SUFFIXES:
        known = f"NONE, {', '.join(_KINDS)}, these with _EP or _DP_EP, or {', '.join(_LEFT_OUT)}"
        raise TraceError(f"{path}: line {line_number}: {column} is {word[:60]!r}, expected {known}")
    return _KINDS[kind], group


def _integer(path: Path, line_number: int, field: str, word: str, maximum: int) -> int:
    """Return a word as an integer from 0 to `maximum`; raise TraceError if it is not."""
    if not (word.isascii() and word.isdecimal() and len(word) < 20 and int(word) <= maximum):
        raise TraceError(
            f"{path}: line {line_number}: {field} is {word[:60]!r}, expected an integer from 0 to {maximum}"
        )
    return int(word)


# The micro-batches of a file of layers, and the place of one NPU in a pipeline that runs them.
#
# AICB writes the layers of one pipeline stage for each micro-batch of a step: `ga` blocks, where each block begins with
# the embedding. Every stage runs all lines of the file. Two stages are neighbours, and the last stage is followed by
# the first: with `vpp` above 1 a stage holds that many parts of the model (chunks), and a micro-batch passes all stages
# once per chunk. As in Megatron's interleaved schedule, a stage runs a chunk for as many micro-batches as there are
# stages before the next chunk.
#
# Source: AICB, SimAI_training_workload_generator.py (workload_generate_aiob); Narayanan et al., "Efficient Large-Scale
# Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2.


_FIRST_LAYER = "embedding_layer"  # AICB's name of the first layer of a micro-batch
_AFTER_LAST = ("cross_entropy", "optimizer")  # how the names of layers behind the last micro-batch begin


class Slot(NamedTuple):
    """Consecutive layers that a stage runs without messages of the pipeline in between."""

    layers: range  # numbers of the layers
    micro_batch: int = -1  # number of the micro-batch, -1 = none: layers before and behind the micro-batches
    chunk: int = 0  # number of the stage's chunk of the model


class PipelineStage(NamedTuple):
    """The place of an NPU in its pipeline."""

    number: int  # number of its stage
    stages: int  # number of stages
    first_npu: int  # NPU whose trace this is
    stride: int  # difference between the NPUs of equal place in two consecutive stages

    def next_of(self, chunk: int, chunks: int, *, backward: bool) -> tuple[int, int] | None:
        """Return the next NPU and chunk of a micro-batch after a chunk of this stage; None at the end.

        Args:
            chunk: The chunk of this stage that the micro-batch has just passed.
            chunks: The number of chunks in every stage.
            backward: Whether the micro-batch passes the stages from the last to the first.
        """
        last, step = (0, -1) if backward else (self.stages - 1, 1)
        if self.number != last:
            return self.first_npu + step * self.stride, chunk
        if not 0 <= chunk + step < chunks:
            return None
        return self.first_npu - step * (self.stages - 1) * self.stride, chunk + step


def slots_of(file: LayerFile, stages: int) -> list[Slot]:
    """Return the layers of a file as slots in the order of the forward pass; one slot for a pipeline of one stage.

    A file whose blocks are not those of AICB is one micro-batch of one chunk.

    Args:
        file: The layers of all micro-batches in one list.
        stages: The number of stages of the pipeline.
    """
    whole = range(len(file.layers))
    if stages == 1:
        return [Slot(whole)]
    blocks = _blocks(file)
    if not blocks:
        return [Slot(whole, micro_batch=0)]
    chunks_of_blocks = [_chunks(file, block) for block in blocks]
    slots = [
        Slot(chunks[chunk], micro_batch, chunk)
        for first in range(0, len(blocks), stages)
        for chunk in range(len(chunks_of_blocks[0]))
        for micro_batch, chunks in enumerate(chunks_of_blocks[first : first + stages], first)
    ]
    return [Slot(range(blocks[0].start)), *slots, Slot(range(blocks[-1].stop, len(file.layers)))]


def _blocks(file: LayerFile) -> list[range]:
    """Return the layers of each micro-batch, equally many; [] if the file does not have `ga` such blocks."""
    names = [layer.name for layer in file.layers]
    first = [i for i, name in enumerate(names) if name == _FIRST_LAYER]
    if not first or len(first) != file.numbers.get("ga", 1):
        return []
    end = next((i for i in range(first[-1], len(names)) if names[i].startswith(_AFTER_LAST)), len(names))
    blocks = [range(*ends) for ends in zip(first, [*first[1:], end], strict=True)]
    return blocks if len({tuple(names[i] for i in block) for block in blocks}) == 1 else []


def _chunks(file: LayerFile, block: range) -> Sequence[range]:
    """Return the layers of each of a micro-batch's `vpp` chunks, which hold equally many layers of the model.

    A layer of the model begins with the name that follows the embedding. One chunk if their number is no multiple.
    """
    chunks = max(file.numbers.get("vpp", 1), 1)
    begins = [i for i in block[1:] if file.layers[i].name == file.layers[block[0] + 1].name] if len(block) > 1 else []
    if not begins or len(begins) % chunks:
        return [block]
    first = [block.start, *begins[len(begins) // chunks :: len(begins) // chunks]]
    return [range(*ends) for ends in zip(first, [*first[1:], block.stop], strict=True)]
