"""Bytes as protobuf writes them, read by the word: varints, plain letters, and tables of texts that were met before.

The tables are open-addressed, ENTRY words an entry: where its bytes lie in the arena, how many (0 = free), and two
words for whoever looks there. Words are read and written whole, so that there must be room behind all bytes.
"""

from pdes.kernels import inline, load_unaligned, store_unaligned

ENTRY = 4
HIGH_BITS = -0x7F7F7F7F7F7F7F80
MOST_PROBES = 64
LOW31, MULTIPLIER = 0x7FFFFFFF, 0x5BD1E995


@inline
def varint(at):
    """The varint at an address and how many bytes it has; 0 bytes: it has more than nine."""
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
    """Whether all bytes from an address up to another are."""
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
    """Whether as many bytes at two addresses are the same."""
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
def folded(word):
    """31 bits of a word."""
    return (word ^ (word >> 31)) & LOW31


@inline
def place_of(at, size):
    """A hash of as many bytes at an address; products stay below 2^63, so plain Python agrees."""
    x = size
    y = 0
    end = at + size
    while at + 16 <= end:
        x = ((x ^ folded(load_unaligned(at))) * MULTIPLIER >> 17) & LOW31
        y = ((y ^ folded(load_unaligned(at + 8))) * MULTIPLIER >> 17) & LOW31
        at += 16
    if at + 8 <= end:
        x = ((x ^ folded(load_unaligned(at))) * MULTIPLIER >> 17) & LOW31
        at += 8
    if at < end:
        y = ((y ^ folded(load_unaligned(at) & ((1 << (8 * (end - at))) - 1))) * MULTIPLIER >> 17) & LOW31
    return ((x ^ (y >> 3) ^ (y << 5)) & LOW31) * MULTIPLIER >> 19


@inline
def looked_up(at, size, table, arena):
    """Where in a table some bytes stand: the entry, and 1 = found, 0 = it is free, -1 = the table is too full."""
    mask = table.shape[0] // ENTRY - 1
    place = place_of(at, size) & mask
    for _ in range(MOST_PROBES):
        bytes_there = table[ENTRY * place + 1]
        if bytes_there == 0:
            return place, 0
        if bytes_there == size and are_equal(arena + table[ENTRY * place], at, size):
            return place, 1
        place = (place + 1) & mask
    return 0, -1


@inline
def copy_bytes(at, size, target):
    """Copy bytes, and up to seven behind them."""
    for done in range(0, size, 8):
        store_unaligned(target + done, load_unaligned(at + done))
