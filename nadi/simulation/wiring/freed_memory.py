"""Return of freed memory to the operating system, before a run takes much more of it."""

import ctypes


def return_freed_memory() -> None:
    """Let the C library give back memory that it keeps for later use, where it is glibc.

    Plans of collectives are made of many small objects. Freed, these leave holes in the heap, which arrays of the
    engine do not use: 230 MB of 1.4 GB when two jobs of 8,192 GPUs are set up.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
