"""Serving software: the host's work per request, iteration and kernel, CUDA graphs, and limits of an iteration.

A TOML file of this folder is a profile, named by its file, with the source of its numbers. A user names one, and may
replace its numbers: `vllm-v1:iteration_us=500`.

- Before the scheduler has a request, the replica's front end parses and tokenises it, one request at a time.
- Between two iterations, the GPU waits for the scheduler, for input tensors and for the handling of results, unless
  the host does all this beside the GPU's previous iteration (`is_overlapped`).
- A pass without a CUDA graph is eager: the host launches its kernels one by one, so that it takes as long as the
  launches or as the kernels, whichever is longer, and kernels follow one another as in a training step.
- A graph has a fixed number of tokens: a pass takes the next larger graph, and computes padding.
"""

import functools
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from nadi import inputs
from nadi.inputs.documents import checked
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.inference.scheduler import Batch

_FOLDER = Path(__file__).parent
CURRENT = "vllm-v1"  # Profile where the user names none
NONE = "none"  # Profile of a host that takes no time
_MAX_US = 10**7
_GRAPH_STEP = 8
"""Graphs are captured for 1, 2, 4 and multiples of 8 tokens (vLLM, config/vllm.py, cudagraph_capture_sizes; SGLang,
model_executor/cuda_graph_runner.py)."""

_Micros = Annotated[int, Field(ge=0, le=_MAX_US, strict=True)]
_Tokens = Annotated[int, Field(ge=0, le=1 << 24, strict=True)]


class ServingSoftware(BaseModel):
    """A version of a serving framework."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    summary: str = ""  # Description in one line
    source: str = ""  # Publications or source code that show the numbers
    request_us: _Micros = 0  # Host time of a request before the scheduler has it; requests are handled one by one
    iteration_us: _Micros = 0  # Host time of an iteration: scheduling, input tensors, results
    sequence_us: _Micros = 0  # Further host time of an iteration per sequence in it
    prompt_us: _Micros = 0  # Further host time of an iteration with prompts
    gap_us: _Micros = 0  # Time between two iterations that the GPU waits even if the host works ahead
    launch_ns: _Micros = 0  # Host time per kernel of an eager pass in nanoseconds; 0 = launches take no time
    is_overlapped: bool = False  # Whether the host's time of an iteration runs beside the GPU's previous iteration
    graph_tokens: _Tokens = 0  # Maximum number of tokens of a pass with a CUDA graph; 0 = no graphs
    has_prompt_graphs: bool = False  # Whether passes with prompts have graphs too
    logits_kernels: Annotated[int, Field(ge=0, le=64, strict=True)] = 0  # Kernels of sampling on logits in fp32
    cache_percent: Annotated[int, Field(ge=1, le=100, strict=True)] = 100  # Most of the GPU's memory for the cache
    chunk: _Tokens = 0  # Default tokens of an iteration with chunked prefill; 0 = prompts run unsplit
    prompt_tokens: Annotated[int, Field(ge=1, le=1 << 24, strict=True)] = 8192  # Default maximum of unsplit prompts

    def has_graph(self, batch: Batch) -> bool:
        """Return whether a CUDA graph runs the pass.

        Args:
            batch: The batch of an iteration.
        """
        return batch.tokens <= self.graph_tokens and (self.has_prompt_graphs or not batch.prompts)

    def is_eager(self, batch: Batch) -> bool:
        """Return whether the host launches the kernels of the pass one by one.

        Args:
            batch: The batch of an iteration.
        """
        return bool(self.launch_ns) and not self.has_graph(batch)

    def rows(self, batch: Batch) -> int:
        """Return the number of tokens that pass through the matrices, with the padding of a CUDA graph.

        Args:
            batch: The batch of an iteration.
        """
        if not self.has_graph(batch) or not batch.tokens:
            return batch.tokens
        if batch.tokens <= _GRAPH_STEP:
            return min(1 << (batch.tokens - 1).bit_length(), self.graph_tokens)
        return min(-(-batch.tokens // _GRAPH_STEP) * _GRAPH_STEP, self.graph_tokens)

    def _host_us(self, batch: Batch) -> int:
        """Return the host's time of an iteration."""
        sequences = batch.decodes + sum(piece.sequences for piece in batch.prompts)
        return self.iteration_us + sequences * self.sequence_us + bool(batch.prompts) * self.prompt_us

    def waited_us(self, batch: Batch) -> int:
        """Return the microseconds that the GPU waits for the host before the pass.

        Args:
            batch: The batch of an iteration.
        """
        return self.gap_us + (0 if self.is_overlapped else self._host_us(batch))

    def beside_us(self, batch: Batch) -> int:
        """Return the microseconds of the host's work for the pass beside the GPU's previous iteration.

        Args:
            batch: The batch of an iteration.
        """
        return self._host_us(batch) if self.is_overlapped else 0

    def launches_us(self, batch: Batch, kernels: int) -> int:
        """Return the microseconds in which the host launches the kernels of the pass; 0 if a graph runs it.

        Args:
            batch: The batch of an iteration.
            kernels: The number of operators and collectives of the pass.
        """
        return -(-kernels * self.launch_ns // 1000) if self.is_eager(batch) else 0


def software_names() -> tuple[str, ...]:
    """Return the names of all profiles."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@functools.cache
def serving_software(text: str) -> ServingSoftware:
    """Return a profile. Raises WorkloadError: the name, a key or a value is wrong.

    Args:
        text: The name of a profile, optionally with other numbers: vllm-v1:iteration_us=500,chunk=2048.
    """
    name, colon, changes = text.partition(":")
    if name not in software_names():
        raise WorkloadError(f"serving software: {name!r}, expected one of {', '.join(software_names())}")
    path = _FOLDER / f"{name}.toml"
    values: dict[str, Any] = inputs.parse_toml(inputs.read_text(path))
    for change in changes.split(",") if colon else ():
        key, _, value = change.partition("=")
        if key in {"summary", "source"} or key not in ServingSoftware.model_fields:
            known = [key for key in ServingSoftware.model_fields if key not in {"summary", "source"}]
            raise WorkloadError(f"serving software {name}: {key!r}, expected one of {', '.join(known)}")
        values[key] = _value(name, key, value)
    return checked(ServingSoftware, values, f"serving software {text}", WorkloadError)


def _value(name: str, key: str, text: str) -> int | bool:
    """Return the number or truth of a user's text; WorkloadError for other texts."""
    if text in {"true", "false"}:
        return text == "true"
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise WorkloadError(f"serving software {name}: {key} is {text!r}, expected a whole number, true or false")
    return int(text)
