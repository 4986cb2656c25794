"""Kernels that decode the bytes of traces into columns, for `et`, which does not depend on a compiler (et/decoder.py).

`wire` and `nodes` are the kernels, which work on bytes only; this module compiles them and provides them to `et`.
"""

import importlib
import time
from typing import Any

import numpy as np

from nadi.et import decoder
from nadi.pdes import jit_enabled
from nadi.pdes.kernels import compile_for


def use_compiled_decoder() -> None:
    """Make et.read_trace decode large traces by the kernels, if the compiler is on; plain Python would be slow."""
    if jit_enabled():
        decoder.provide(_kernels)


def compile_decoder() -> float:
    """Compile the kernels or load them from the cache, and return the seconds that this took."""
    begun = time.perf_counter()
    nodes, words = _kernels(), np.zeros(1, np.int64)
    compile_for(nodes.decode_nodes, 0, 0, words, words, words, 0, words, 0, words, words, words)
    compile_for(nodes.link_in_order, words, words, words, words, 0)
    compile_for(nodes.without_cycle, words, words, words, words)
    return time.perf_counter() - begun


def _kernels() -> Any:  # noqa: ANN401 - a module
    return importlib.import_module("nadi.simulation.trace_decoding.nodes")
