"""Factors between units. The engine imports nothing but `compiling`, so it has its own; all else takes inputs.units."""

PS_PER_S = 1e12
PS_PER_BYTE_AT_1_BPS = 8 * PS_PER_S
"""Picoseconds that a byte takes at 1 bit/s: divided by a rate in bit/s, the picoseconds per byte at that rate."""
