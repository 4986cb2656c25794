"""Factors between units, one constant each. The engine, which does not import this folder, has pdes/core/state.py."""

PS_PER_NS = 10**3
PS_PER_US = 10**6
PS_PER_MS = 10**9
PS_PER_S = 10**12
US_PER_S = 10**6
NS_PER_S = 10**9
BITS_PER_BYTE = 8
# picoseconds that a byte takes at 1 bit/s: divided by a rate in bit/s, the picoseconds per byte at that rate. It is a
# float because products with int64 byte counts would overflow
PS_PER_BYTE_AT_1_BPS = float(BITS_PER_BYTE * PS_PER_S)
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
"""The unit in which Nadi shows GPU memory: HBM has binary sizes, so an "80 GB" A100 has 81,920 MiB in nvidia-smi."""
