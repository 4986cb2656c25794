"""The micro-batches of a file of layers, and the place of one NPU in a pipeline that runs them.

AICB writes the layers of one pipeline stage for each micro-batch of a step: `ga` blocks, where each block begins with
the embedding. Every stage runs all lines of the file. Two stages are neighbours, and the last stage is followed by the
first: with `vpp` above 1 a stage holds that many parts of the model (chunks), and a micro-batch passes all stages once
per chunk. As in Megatron's interleaved schedule, a stage runs a chunk for as many micro-batches as there are stages
before the next chunk.

Source: AICB, SimAI_training_workload_generator.py (workload_generate_aiob); Narayanan et al., "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nadi.et.layers.file import LayerFile

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
