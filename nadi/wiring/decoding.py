"""Traces are read by a kernel, compiled as those of the engine are."""

import importlib
from typing import Any

from et import decoder
from pdes.core.jit import jit_enabled


def use_compiled_decoder() -> None:
    """Have et.read_trace decode large traces by the kernel; as plain Python it would only be slow."""
    if jit_enabled():
        decoder.provide(_kernel)


def _kernel() -> Any:  # noqa: ANN401 - a module
    return importlib.import_module("pdes.decoding.nodes")
