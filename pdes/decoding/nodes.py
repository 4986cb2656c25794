"""Decoding the nodes of a Chakra trace from its bytes into columns.

The file is a sequence of protobuf messages behind their lengths. What a message says by numbers goes into columns at
once. Names of attributes, and attributes that are no plain number, are looked up in two tables of what was met before;
one that is new is handed to the caller, who says where it goes and calls again. What is not written as protobuf writes
a valid node is DOUBTFUL, and left to a reader that says what is wrong: this one says nothing that it is not sure of.

The tables are open-addressed, ENTRY words an entry: where its bytes lie in the arena, how many (0 = free), its slot,
and for a name the largest value, for an attribute its value. A slot is a column of numbers, IGNORED, or WHOLE: then
the attribute is looked up with its value. RANKS is IGNORED, too, but defines a group where the node is METADATA.

Attributes that no column takes can be kept: their fields are copied as they are, node after node.
"""

from pdes.core.jit import inline, kernel, load_unaligned, store_unaligned

# words of `state`
POSITION, ROWS, DATA, CONTROL, NAME_BYTES, SPANS, ASKED_AT, ASKED_BYTES, ASKED_PLACE, OTHER_BYTES = range(10)
STATE_WORDS = 16
# what `decode_nodes` returns
DONE, FULL, NEW_NAME, NEW_ATTRIBUTE, DOUBTFUL = range(5)
# columns of `rows`; those of slots follow
ID, TYPE, START, DURATION, NAME_LENGTH, DATA_COUNT, CONTROL_COUNT, OTHER_LENGTH, FIRST_SLOT = range(9)
IGNORED, WHOLE, RANKS = -1, -2, -3
ENTRY = 4
PADDING_BYTES = 32
"""Behind all bytes that are looked at: words are read whole."""

METADATA_NODE, LAST_NODE_TYPE = 1, 7
HIGH_BITS = -0x7F7F7F7F7F7F7F80
MOST_PROBES = 64
LONGEST_LENGTH_BYTES = 5
LONGEST_NAME_BYTES = 1 << 20
FINE, IS_OTHER, IS_RANKS = -1, -2, -3
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
def ask(state, at, size, place):
    """Hand bytes to the caller."""
    state[ASKED_AT] = at
    state[ASKED_BYTES] = size
    state[ASKED_PLACE] = place


@inline
def is_whole_io(at, end):
    """Whether an IOInfo is of known fields and plain letters."""
    while at < end:
        tag = load_unaligned(at) & 0xFF
        size, used = varint(at + 1)
        if (tag != 0x0A and tag != 0x12 and tag != 0x1A) or used == 0 or size > end - at:
            return False
        if at + 1 + used + size > end or not is_ascii(at + 1 + used, at + 1 + used + size):
            return False
        at += 1 + used + size
    return True


@inline
def number_width(tag):
    """Bytes of a tag of a plain number of an attribute, 0 = it is something else."""
    low = tag & 0xFF
    if low == 0x38 or low == 0x48 or low == 0x58 or low == 0x68:
        return 1
    return 2 if tag == 0x1D8 else 0


@inline
def fits(tag, value):
    """Whether a number is one that its type can hold: int32, uint32, bool."""
    low = tag & 0xFF
    if low == 0x38:
        return value < 1 << 31
    if low == 0x58:
        return value < 1 << 32
    return value <= 1 if low == 0xD8 else True


@inline
def take_attribute(at, end, names, attributes, arena, rows, stride, row, state):
    """Put an attribute into its column; gives FINE, that no column takes it, or why not."""
    word = load_unaligned(at)
    name_bytes = (word >> 8) & 0xFF
    value_at = at + 2 + name_bytes
    if (word & 0xFF) == 0x0A and 0 < name_bytes < 0x80 and value_at < end:
        place, found = looked_up(at + 2, name_bytes, names, arena)
        if found <= 0:
            ask(state, at + 2, name_bytes, place)
            return NEW_NAME if found == 0 else DOUBTFUL
        slot = names[ENTRY * place + 2]
        tag = load_unaligned(value_at) & 0xFFFF
        width = number_width(tag)
        if slot != WHOLE and width > 0:
            value, used = varint(value_at + width)
            if used > 0 and value_at + width + used == end and fits(tag, value):
                if slot >= 0:
                    if value > names[ENTRY * place + 3]:
                        return DOUBTFUL
                    rows[(FIRST_SLOT + slot) * stride + row] = value
                    return FINE
                return IS_OTHER
        elif slot == IGNORED and tag == 0x1EA:
            size, used = varint(value_at + 2)
            if used > 0 and size < end - at and value_at + 2 + used + size == end and is_ascii(end - size, end):
                return IS_OTHER
    if end == at:
        return DOUBTFUL
    place, found = looked_up(at, end - at, attributes, arena)
    if found <= 0:
        ask(state, at, end - at, place)
        return NEW_ATTRIBUTE if found == 0 else DOUBTFUL
    slot = attributes[ENTRY * place + 2]
    if slot >= 0:
        rows[(FIRST_SLOT + slot) * stride + row] = attributes[ENTRY * place + 3]
        return FINE
    return IS_RANKS if slot == RANKS else IS_OTHER


@kernel
def decode_nodes(
    data, size, out, others, names, attributes, arena, absent, rows, data_deps, control_deps, spans, state
):
    """Decode whole messages, from where `state` says on, until the bytes or the room end or the caller is asked.

    Args:
        data: address of bytes that hold messages, PADDING_BYTES behind them.
        size: how many bytes.
        out: address of room for the bytes of all names, PADDING_BYTES more than `size`.
        others: the same for fields of attributes that no column takes; 0 = they are not kept.
        names: table of names of attributes.
        attributes: table of attributes.
        arena: address of the bytes of both.
        absent: int64[slots], what a slot holds in a node that lacks the attribute.
        rows: int64[(FIRST_SLOT + slots) * stride], column after column.
        data_deps: int64[size], ids of parents, node after node.
        control_deps: the same.
        spans: int64[3 * stride], row, begin and end of METADATA nodes.
        state: int64[STATE_WORDS]; what was decoded counts up to POSITION.

    Returns:
        DONE: less than a message is left; FULL: no row is left; NEW_NAME, NEW_ATTRIBUTE: see ASKED; DOUBTFUL.
    """
    slots = absent.shape[0]
    stride = rows.shape[0] // (FIRST_SLOT + slots)
    while state[POSITION] < size:
        row = state[ROWS]
        if row >= stride:
            return FULL
        begin = data + state[POSITION]
        length, used = varint(begin)
        if used == 0 or used > LONGEST_LENGTH_BYTES or length == 0:
            return DOUBTFUL
        if state[POSITION] + used + length > size:
            return DONE
        at = begin + used
        end = at + length
        for slot in range(slots):
            rows[(FIRST_SLOT + slot) * stride + row] = absent[slot]
        node_id = kind = start = duration = name_at = name_bytes = 0
        parents = state[DATA]
        control = state[CONTROL]
        other_bytes = ranks_of = 0
        while at < end:
            field = at
            tag = load_unaligned(at) & 0xFF
            value, used = varint(at + 1)
            if used == 0:
                return DOUBTFUL
            at += 1 + used
            if tag == 0x28:
                data_deps[parents] = value
                parents += 1
                continue
            if tag == 0x08:
                node_id = value
                continue
            if tag == 0x18:
                kind = value
                continue
            if tag == 0x20:
                control_deps[control] = value
                control += 1
                continue
            if tag == 0x38:
                duration = value
                continue
            if tag == 0x30:
                start = value
                continue
            if value > end - at:
                return DOUBTFUL
            stop = at + value
            if tag == 0x52:
                outcome = take_attribute(at, stop, names, attributes, arena, rows, stride, row, state)
                if outcome == IS_OTHER or outcome == IS_RANKS:
                    if others != 0:
                        if stop - value - field > 2 and value >> (7 * (stop - value - field - 2)) == 0:
                            return DOUBTFUL
                        if outcome == IS_RANKS and ranks_of != 0 and ranks_of != kind + 1:
                            return DOUBTFUL
                        if outcome == IS_RANKS:
                            ranks_of = kind + 1
                        if outcome == IS_OTHER or kind != METADATA_NODE:
                            target = others + state[OTHER_BYTES] + other_bytes
                            for done in range(0, stop - field, 8):
                                store_unaligned(target + done, load_unaligned(field + done))
                            other_bytes += stop - field
                elif outcome != FINE:
                    return outcome
            elif tag == 0x12:
                name_at = at
                name_bytes = value
            elif tag == 0x2A or tag == 0x22:
                while at < stop:
                    value, used = varint(at)
                    if used == 0:
                        return DOUBTFUL
                    at += used
                    if tag == 0x2A:
                        data_deps[parents] = value
                        parents += 1
                    else:
                        control_deps[control] = value
                        control += 1
                if at != stop:
                    return DOUBTFUL
            elif tag == 0x42 or tag == 0x4A:
                if not is_whole_io(at, stop):
                    return DOUBTFUL
            else:
                return DOUBTFUL
            at = stop
        if at != end or kind < METADATA_NODE or kind > LAST_NODE_TYPE or name_bytes > LONGEST_NAME_BYTES:
            return DOUBTFUL
        if ranks_of != 0 and ranks_of != kind + 1:
            return DOUBTFUL
        if kind == METADATA_NODE:
            span = 3 * state[SPANS]
            spans[span] = row
            spans[span + 1] = end - length - data
            spans[span + 2] = end - data
            state[SPANS] += 1
        target = out + state[NAME_BYTES]
        for done in range(0, name_bytes, 8):
            store_unaligned(target + done, load_unaligned(name_at + done))
        rows[ID * stride + row] = node_id
        rows[TYPE * stride + row] = kind
        rows[START * stride + row] = start
        rows[DURATION * stride + row] = duration
        rows[NAME_LENGTH * stride + row] = name_bytes
        rows[DATA_COUNT * stride + row] = parents - state[DATA]
        rows[CONTROL_COUNT * stride + row] = control - state[CONTROL]
        rows[OTHER_LENGTH * stride + row] = other_bytes
        state[OTHER_BYTES] += other_bytes
        state[DATA] = parents
        state[CONTROL] = control
        state[NAME_BYTES] += name_bytes
        state[ROWS] = row + 1
        state[POSITION] = end - data
    return DONE


@kernel
def without_cycle(dep_ptr, dep, children_left, ready):
    """How many of n nodes no cycle holds up, seen from the ends: all of them where there is no cycle.

    Args:
        dep_ptr: int64[n + 1], where the parents of each node begin in dep.
        dep: int64[m], parents.
        children_left: int64[n], how many children each has; used up.
        ready: int64[n + 1], room.
    """
    nodes = children_left.shape[0]
    waiting = 0
    for node in range(nodes):
        if children_left[node] == 0:
            ready[waiting] = node
            waiting += 1
    done = 0
    while waiting > 0:
        waiting -= 1
        node = ready[waiting]
        done += 1
        for i in range(dep_ptr[node], dep_ptr[node + 1]):
            parent = dep[i]
            left = children_left[parent] - 1
            children_left[parent] = left
            if left == 0:
                ready[waiting] = parent
                waiting += 1
    return done
