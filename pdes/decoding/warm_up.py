"""Compiling the kernels that read traces before a run needs them."""

import time

import numpy as np

from pdes.core.jit import compile_for
from pdes.decoding.nodes import decode_nodes, link_in_order, without_cycle


def compile_decoder() -> float:
    """Compile the kernels, or load them; seconds that it took."""
    begun = time.perf_counter()
    words = np.zeros(1, np.int64)
    compile_for(decode_nodes, 0, 0, words, words, words, 0, words, 0, words, words, words)
    compile_for(link_in_order, words, words, words, words, 0)
    compile_for(without_cycle, words, words, words, words)
    return time.perf_counter() - begun
