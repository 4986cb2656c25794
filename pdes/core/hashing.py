"""Deterministic randomness: hashes of keys, identical on any number of ranks.

All products stay below 2^63 (multipliers below 2^31, operands masked to 32 bits), so that compiled code and plain
Python agree. The additive constants only make the inputs of `mix` differ; any odd words would do.
"""

from pdes.core.jit import inline

MASK32 = 0xFFFFFFFF


@inline
def mix(x):
    """Return a 32-bit avalanche hash of the low 32 bits of x (two multiply-xorshift rounds)."""
    x = x & MASK32
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & MASK32
    x = x ^ (x >> 15)
    x = (x * 0x5BD1E995) & MASK32
    return x ^ (x >> 16)


@inline
def mix2(a, b):
    """Return a 32-bit hash of two integers of up to 63 bits each."""
    h = mix(a) ^ mix((a >> 32) + 0x165667B1)
    return mix(h * 5 + mix(b) + mix((b >> 32) + 0x27D4EB2F) * 3)


@inline
def mix3(a, b, c):
    """Return a 32-bit hash of three integers of up to 63 bits each."""
    return mix2(mix2(a, b) * 7 + 0x3C6EF372, c)
