"""Compilation, caching and loading of kernels; independent of simulation.

`compiler`, `primitives` and `records` configure Numba's compiler and extend it with records and machine instructions.
`kernel_sources` lists the source files of kernels, `kernel_cache` is the folder of compiled kernels, and `machine_code`
writes, loads and calls them. `decorators` has what code with kernels uses.
"""

ENTRY_WORDS = 2  # words of an array's entry in the directory of a record (`records`): its address, its number of items
