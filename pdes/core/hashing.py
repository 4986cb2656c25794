"""Deterministic randomness: hashes of keys, identical on any number of ranks; and hash maps.

Maps have open addressing and linear probing: int64 keys and values, power-of-two size, at most half full. Rows that
have a word `key` may form the map themselves, which costs one cache line per access in place of three. All products
stay below 2^63 (multipliers below 2^31, operands masked to 32 bits), so that compiled code and plain
Python agree. The additive constants only make the inputs of `mix` differ; any odd words would do.
"""

import numpy as np

from nadi.pdes.core.jit import inline, kernel

MASK32 = 0xFFFFFFFF


@inline
def mix(x):
    """Return a 32-bit avalanche hash of the low 32 bits of x (two multiply-xorshift rounds)."""
    x = x & MASK32
    x = x ^ (x >> 16)
    # 0x7FEB352D is of lowbias32, 0x5BD1E995 of MurmurHash2: both are below 2^31, as products must stay below 2^63
    x = (x * 0x7FEB352D) & MASK32
    x = x ^ (x >> 15)
    x = (x * 0x5BD1E995) & MASK32
    return x ^ (x >> 16)


@inline
def mix2(a, b):
    """Return a 32-bit hash of two integers of up to 63 bits each.

    Args:
        a: Integer of up to 63 bits.
        b: Integer of up to 63 bits.
    """
    # both halves of each number go in, with constants and factors that make the order of the arguments matter
    h = mix(a) ^ mix((a >> 32) + 0x165667B1)
    return mix(h * 5 + mix(b) + mix((b >> 32) + 0x27D4EB2F) * 3)


@inline
def mix3(a, b, c):
    """Return a 32-bit hash of three integers of up to 63 bits each.

    Args:
        a: Integer of up to 63 bits.
        b: Integer of up to 63 bits.
        c: Integer of up to 63 bits.
    """
    return mix2(mix2(a, b) * 7 + 0x3C6EF372, c)


FREE = -1  # key of a free place


@inline
def home(table, key):
    """Return the place of the hash table where the search for `key` begins: even, as two rows share a cache line."""
    return mix2(key, 0x51ED27) & (table.shape[0] - 2)


@inline
def find(keys, key):
    """Return the place of `key` in the array `keys` of a map, or the free place where it belongs."""
    mask = keys.shape[0] - 1
    at = np.int64(home(keys, key))
    # at most half of the places are taken, so a free one ends the search
    while keys[at] != FREE and keys[at] != key:
        at = (at + 1) & mask
    return at


@inline
def find_row(rows, key):
    """Return the place of the row whose word `key` is `key`, or the free place where it belongs.

    Args:
        rows: Rows with a word `key`, a power of two long; FREE marks a free row.
        key: Key of the row that is sought.
    """
    mask = rows.shape[0] - 1
    at = np.int64(home(rows, key))
    while rows[at].key != FREE and rows[at].key != key:
        at = (at + 1) & mask
    return at


@inline
def remove(keys, values, key):
    """Remove `key` from the map of parallel arrays, and close the gap (Knuth, volume 3, algorithm R).

    Args:
        keys: int64[power of two], keys of the map, FREE at free places.
        values: int64, values of the map at the places of their keys.
        key: Key to remove.
    """
    mask = keys.shape[0] - 1
    gap = find(keys, key)
    if keys[gap] != FREE:
        at = gap
        while True:
            at = (at + 1) & mask
            if keys[at] == FREE:
                break
            # the entry at `at` may move into the gap unless its home lies behind the gap, counted cyclically: a search
            # for it would begin behind the place where it then was
            if ((at - home(keys, keys[at])) & mask) >= ((at - gap) & mask):
                keys[gap] = keys[at]
                values[gap] = values[at]
                gap = at
        keys[gap] = FREE


@kernel
def rehash(keys, values, new_keys, new_values):
    """Copy all pairs of a map into a larger, empty one (new_keys, new_values).

    Args:
        keys: int64[power of two], keys of the map, FREE at free places.
        values: int64, values of the map at the places of their keys.
        new_keys: Keys of the larger map, all FREE.
        new_values: Values of the larger map.
    """
    for i in range(keys.shape[0]):
        if keys[i] != FREE:
            at = find(new_keys, keys[i])
            new_keys[at] = keys[i]
            new_values[at] = values[i]
