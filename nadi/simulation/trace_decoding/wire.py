"""Protobuf bytes read word by word: varints, ASCII text, and hash tables of texts.

The tables use open addressing with ENTRY words per entry: address of the bytes within the arena, number of bytes
(0 = free), and two words for the caller. Kernels read and write whole words, so padding must follow all bytes.
"""

from pdes.kernels import inline, load_unaligned, store_unaligned

ENTRY = 4  # words per entry of a table
HIGH_BITS = -0x7F7F7F7F7F7F7F80  # highest bit of each byte of a word
MAX_PROBES = 64  # maximum number of entries that a search visits
LOW31, MULTIPLIER = 0x7FFFFFFF, 0x5BD1E995  # mask of 31 bits, and the multiplier of MurmurHash2


@inline
def varint(at):
    """Return the varint at an address and its number of bytes; 0 bytes: the varint has more than nine."""
    word = load_unaligned(at)
    value = word & 0x7F
    size = 1
    while (word & 0x80) != 0:
        if size == 9:
            return 0, 0
        word = load_unaligned(at + 8) if size == 8 else word >> 8
        value |= (word & 0x7F) << (7 * size)
        size += 1
    return value, size


@inline
def is_ascii(at, end):
    """Return whether all bytes from `at` up to `end` are ASCII."""
    while at + 32 <= end:
        first = load_unaligned(at) | load_unaligned(at + 8)
        if ((first | load_unaligned(at + 16) | load_unaligned(at + 24)) & HIGH_BITS) != 0:
            return False
        at += 32
    while at + 8 <= end:
        if (load_unaligned(at) & HIGH_BITS) != 0:
            return False
        at += 8
    rest = end - at
    return (load_unaligned(at) & HIGH_BITS & ((1 << (8 * rest)) - 1)) == 0 if rest > 0 else True


@inline
def are_equal(a, b, size):
    """Return whether `size` bytes at two addresses are equal."""
    done = 0
    while done + 8 <= size:
        if load_unaligned(a + done) != load_unaligned(b + done):
            return False
        done += 8
    rest = size - done
    if rest == 0:
        return True
    return ((load_unaligned(a + done) ^ load_unaligned(b + done)) & ((1 << (8 * rest)) - 1)) == 0


@inline
def fold_to_31_bits(word):
    """Return the exclusive or of the lower 31 bits of a word and of the bits above."""
    return (word ^ (word >> 31)) & LOW31


@inline
def hash_bytes(at, size):
    """Return a hash of `size` bytes at an address; products stay below 2^63, so plain Python returns the same."""
    x = size
    y = 0
    end = at + size
    while at + 16 <= end:
        x = ((x ^ fold_to_31_bits(load_unaligned(at))) * MULTIPLIER >> 17) & LOW31
        y = ((y ^ fold_to_31_bits(load_unaligned(at + 8))) * MULTIPLIER >> 17) & LOW31
        at += 16
    if at + 8 <= end:
        x = ((x ^ fold_to_31_bits(load_unaligned(at))) * MULTIPLIER >> 17) & LOW31
        at += 8
    if at < end:
        y = ((y ^ fold_to_31_bits(load_unaligned(at) & ((1 << (8 * (end - at))) - 1))) * MULTIPLIER >> 17) & LOW31
    return ((x ^ (y >> 3) ^ (y << 5)) & LOW31) * MULTIPLIER >> 19


@inline
def find_entry(at, size, table, arena):
    """Return the entry of some bytes in a table, and 1 = found, 0 = the entry is free, -1 = the table is too full."""
    mask = table.shape[0] // ENTRY - 1
    place = hash_bytes(at, size) & mask
    for _ in range(MAX_PROBES):
        bytes_there = table[ENTRY * place + 1]
        if bytes_there == 0:
            return place, 0
        if bytes_there == size and are_equal(arena + table[ENTRY * place], at, size):
            return place, 1
        place = (place + 1) & mask
    return 0, -1


@inline
def copy_bytes(at, size, target):
    """Copy bytes; up to seven bytes behind them are copied too."""
    for done in range(0, size, 8):
        store_unaligned(target + done, load_unaligned(at + done))
