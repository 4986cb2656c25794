"""Protobuf bytes read word by word: varints, numbers of attributes, ASCII text, and hash tables of texts.

The tables use open addressing with ENTRY words per entry: address of the bytes within the arena, number of bytes
(0 = free), and two words for the caller. Kernels read and write whole words, so padding must follow all bytes.
"""

from nadi.compiling.decorators import inline, load_unaligned, store_unaligned

ENTRY = 4  # words per entry of a table
HIGH_BITS = -0x7F7F7F7F7F7F7F80  # highest bit of each byte of a word
MAX_PROBES = 64  # maximum number of entries that a search visits
LOW31, MULTIPLIER = 0x7FFFFFFF, 0x5BD1E995  # mask of 31 bits, and the multiplier of MurmurHash2


@inline
def varint(address):
    """Return the value of the varint at an address, and its number of bytes; 0 bytes: it has more than nine."""
    word = load_unaligned(address)
    value = word & 0x7F
    size = 1
    while (word & 0x80) != 0:
        if size == 9:
            return 0, 0
        # the first eight bytes come with one load
        word = load_unaligned(address + 8) if size == 8 else word >> 8
        value |= (word & 0x7F) << (7 * size)
        size += 1
    return value, size


@inline
def is_ascii(begin_address, end_address):
    """Return whether all bytes from one address up to another are ASCII.

    Args:
        begin_address: Address of the first byte.
        end_address: Address behind the last byte.
    """
    # four words per branch: most strings are long
    while begin_address + 32 <= end_address:
        first = load_unaligned(begin_address) | load_unaligned(begin_address + 8)
        if ((first | load_unaligned(begin_address + 16) | load_unaligned(begin_address + 24)) & HIGH_BITS) != 0:
            return False
        begin_address += 32
    while begin_address + 8 <= end_address:
        if (load_unaligned(begin_address) & HIGH_BITS) != 0:
            return False
        begin_address += 8
    rest = end_address - begin_address
    return (load_unaligned(begin_address) & HIGH_BITS & ((1 << (8 * rest)) - 1)) == 0 if rest > 0 else True


@inline
def are_equal(address, other_address, size_bytes):
    """Return whether the bytes at two addresses are equal.

    Args:
        address: Address of the first byte.
        other_address: Address of the first byte to compare with.
        size_bytes: Number of bytes.
    """
    done = 0
    while done + 8 <= size_bytes:
        if load_unaligned(address + done) != load_unaligned(other_address + done):
            return False
        done += 8
    rest = size_bytes - done
    if rest == 0:
        return True
    # the rest in one comparison, without the bytes behind it
    return ((load_unaligned(address + done) ^ load_unaligned(other_address + done)) & ((1 << (8 * rest)) - 1)) == 0


@inline
def fold_to_31_bits(word):
    """Return the exclusive or of the lower 31 bits of a word and of the bits above."""
    return (word ^ (word >> 31)) & LOW31


@inline
def hash_bytes(address, size_bytes):
    """Return a hash of the bytes at an address; products stay below 2^63, so plain Python returns the same.

    Args:
        address: Address of the first byte.
        size_bytes: Number of bytes.
    """
    x = size_bytes
    y = 0
    end = address + size_bytes
    # two independent chains, so that their multiplications overlap
    while address + 16 <= end:
        x = ((x ^ fold_to_31_bits(load_unaligned(address))) * MULTIPLIER >> 17) & LOW31
        y = ((y ^ fold_to_31_bits(load_unaligned(address + 8))) * MULTIPLIER >> 17) & LOW31
        address += 16
    if address + 8 <= end:
        x = ((x ^ fold_to_31_bits(load_unaligned(address))) * MULTIPLIER >> 17) & LOW31
        address += 8
    if address < end:
        y = (
            (y ^ fold_to_31_bits(load_unaligned(address) & ((1 << (8 * (end - address))) - 1))) * MULTIPLIER >> 17
        ) & LOW31
    return ((x ^ (y >> 3) ^ (y << 5)) & LOW31) * MULTIPLIER >> 19


@inline
def find_entry(address, size_bytes, table, arena):
    """Return the entry of bytes in a table, and 1 = found, 0 = free entry, -1 = too full.

    Args:
        address: Address of the first byte.
        size_bytes: Number of bytes.
        table: Hash table of byte strings: ENTRY words each, offset in the arena and length first.
        arena: Address of the bytes of the table's entries.
    """
    mask = table.shape[0] // ENTRY - 1
    place = hash_bytes(address, size_bytes) & mask
    for _ in range(MAX_PROBES):
        # linear probing; entries are never removed
        bytes_there = table[ENTRY * place + 1]
        if bytes_there == 0:
            return place, 0
        if bytes_there == size_bytes and are_equal(arena + table[ENTRY * place], address, size_bytes):
            return place, 1
        place = (place + 1) & mask
    return 0, -1


@inline
def copy_bytes(address, size_bytes, target_address):
    """Copy so many bytes between two addresses; up to seven bytes behind them are copied too.

    Args:
        address: Address of the first byte.
        size_bytes: Number of bytes.
        target_address: Address to which to copy.
    """
    for done in range(0, size_bytes, 8):
        store_unaligned(target_address + done, load_unaligned(address + done))


@inline
def number_width(field_tag):
    """Return the number of bytes of an attribute's field tag (two bytes) if its value is a plain number, else 0.

    Args:
        field_tag: The two bytes of the field's tag.
    """
    low = field_tag & 0xFF
    if low == 0x38 or low == 0x48 or low == 0x58 or low == 0x68:
        return 1
    return 2 if field_tag == 0x1D8 else 0


@inline
def is_negative(field_tag, begin_address, end_address):
    """Return whether a field's value is a negative 64-bit number, whose ten bytes `varint` rejects.

    Args:
        field_tag: The two bytes of the field's tag.
        begin_address: Address of the first byte.
        end_address: Address behind the last byte.
    """
    low = field_tag & 0xFF
    if begin_address + 10 != end_address or (low != 0x48 and low != 0x68):
        return False
    return (load_unaligned(begin_address) & HIGH_BITS) == HIGH_BITS and (
        load_unaligned(begin_address + 8) & 0xFF80
    ) == 0x0180


@inline
def fits(field_tag, value):
    """Return whether a number fits the type of the field with this tag: int32, uint32 or bool.

    Args:
        field_tag: The two bytes of the field's tag.
        value: Number of the field.
    """
    low = field_tag & 0xFF
    if low == 0x38:
        return value < 1 << 31
    if low == 0x58:
        return value < 1 << 32
    return value <= 1 if low == 0xD8 else True
