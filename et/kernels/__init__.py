"""Kernels that decode the bytes of traces into columns, and find cycles in large ones.

They work on bytes and int64 arrays only; `et.decoder` and `et.order` call them.
"""

import time

import numpy as np

from nadi.compiling.decorators import compile_for
from nadi.et.kernels import nodes


def compile_decoder() -> float:
    """Compile the kernels or load them from the cache, and return the seconds that this took."""
    begun = time.perf_counter()
    words = np.zeros(1, np.int64)
    compile_for(nodes.decode_nodes, 0, 0, words, words, words, 0, words, 0, words, words, words)
    compile_for(nodes.link_in_order, words, words, words, words, 0)
    compile_for(nodes.without_cycle, words, words, words, words)
    return time.perf_counter() - begun
