"""Compilation, caching and loading of kernels; independent of simulation.

`compiler` and `primitives` configure Numba's compiler and extend it with records and machine instructions.
`kernel_cache` is the folder of compiled kernels and lists the source files that name it, and `machine_code` writes,
loads and calls them. `decorators` has what code with kernels uses.
"""

import textwrap

ENTRY_WORDS = 2  # words of an array's entry in the directory of a record: its address, its number of items
_MAX_CHARACTERS = 400  # maximum length of the text of an unexpected error


def defect_text(error: BaseException) -> str:
    """Return the type of an unexpected error and the begin of its text in one line; Numba's compiler writes pages.

    Args:
        error: The unexpected error.
    """
    return textwrap.shorten(f"{type(error).__name__}: {error}", _MAX_CHARACTERS, placeholder=" ...")
