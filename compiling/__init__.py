"""Kernels are compiled, kept and loaded here; nothing of simulation is known.

`compiler`, `primitives` and `records` are Numba's compiler with our options, and records and primitives as it compiles
them. `kernel_sources` lists the files that kernels are made of, `kernel_cache` is the folder of compiled kernels, and
`machine_code` writes, loads and calls them. Kernels come in by the decorators of pdes/core/jit.py.
"""

ENTRY_WORDS = 2
"""Of an array in the directory of a record (`records`): its address, and its number of items."""
