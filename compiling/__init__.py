"""Kernels are compiled, kept and loaded here; nothing of simulation is known.

`compiler`, `primitives` and `records`: the one place that knows Numba: its compiler with our options, records and
primitives as it compiles them. `kernel_sources`: which files kernels are made of; `kernel_cache`: where what was
compiled lies; `machine_code`: loads it without Numba. Kernels come in by the decorators of pdes/core/jit.py.
"""

ENTRY_WORDS = 2
"""Of an array in the directory of a record (`records`): its address, and its number of items."""
