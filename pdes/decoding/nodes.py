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
# and of the node that is being decoded: where its name lies, what is kept of it, and 1 + its type where ranks were met
NAME_AT, NODE_OTHER_BYTES, RANKS_KIND = range(10, 13)
STATE_WORDS = 16
# what `decode_nodes` returns
DONE, FULL, NEW_NAME, NEW_ATTRIBUTE, DOUBTFUL = range(5)
# columns of `rows`; those of slots follow
ID, TYPE, START, DURATION, NAME_LENGTH, DATA_COUNT, CONTROL_COUNT, OTHER_LENGTH, FIRST_SLOT = range(9)
IGNORED, WHOLE, RANKS = -1, -2, -3
ENTRY = 4
PADDING_BYTES = 32
"""Behind all bytes that are looked at: words are read whole."""

# the first byte of a field of a node: 8 * its number + 0 (a number) or 2 (bytes behind their length)
ID_TAG, NAME_TAG, TYPE_TAG, CONTROL_DEP_TAG, CONTROL_DEPS_TAG, DATA_DEP_TAG, DATA_DEPS_TAG = 8, 18, 24, 32, 34, 40, 42
START_TAG, DURATION_TAG, INPUTS_TAG, OUTPUTS_TAG, ATTRIBUTE_TAG = 48, 56, 66, 74, 82
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


@inline
def take_packed(at, end, deps, count):
    """Put packed ids behind as many parents; gives how many those are now, -1 = their bytes are no ids."""
    while at < end:
        value, used = varint(at)
        if used == 0:
            return -1
        at += used
        deps[count] = value
        count += 1
    return count if at == end else -1


@inline
def copy_bytes(at, size, target):
    """Copy bytes, and up to seven behind them."""
    for done in range(0, size, 8):
        store_unaligned(target + done, load_unaligned(at + done))


@inline
def keep_other(field, at, end, is_ranks, others, kind, state):
    """Keep a field of an attribute that no column takes; gives FINE or DOUBTFUL.

    Args:
        field: where its tag lies, whose length is before `at`.
        at: where the attribute begins.
        end: where it ends.
        is_ranks: whether it defines a group where the node is METADATA: then it is not kept.
        others: address of room.
        kind: type of the node, as far as that was met.
        state: see `decode_nodes`.
    """
    if at - field > 2 and (end - at) >> (7 * (at - field - 2)) == 0:
        return DOUBTFUL
    if is_ranks:
        if state[RANKS_KIND] != 0 and state[RANKS_KIND] != kind + 1:
            return DOUBTFUL
        state[RANKS_KIND] = kind + 1
        if kind == METADATA_NODE:
            return FINE
    copy_bytes(field, end - field, others + state[OTHER_BYTES] + state[NODE_OTHER_BYTES])
    state[NODE_OTHER_BYTES] += end - field
    return FINE


@inline
def take_field(tag, field, at, end, others, names, attributes, arena, rows, stride, row, state):
    """Take an attribute, a name, inputs or outputs, which lie from `at` up to `end`; gives FINE or why not."""
    if tag == ATTRIBUTE_TAG:
        outcome = take_attribute(at, end, names, attributes, arena, rows, stride, row, state)
        if outcome != IS_OTHER and outcome != IS_RANKS:
            return outcome
        if others == 0:
            return FINE
        return keep_other(field, at, end, outcome == IS_RANKS, others, rows[TYPE * stride + row], state)
    if tag == NAME_TAG:
        state[NAME_AT] = at
        rows[NAME_LENGTH * stride + row] = end - at
        return FINE
    return FINE if (tag == INPUTS_TAG or tag == OUTPUTS_TAG) and is_whole_io(at, end) else DOUBTFUL


@inline
def begin_node(absent, rows, stride, row, state):
    """What a node holds that says nothing."""
    for column in range(DATA_COUNT):
        rows[column * stride + row] = 0
    for slot in range(absent.shape[0]):
        rows[(FIRST_SLOT + slot) * stride + row] = absent[slot]
    state[NODE_OTHER_BYTES] = 0
    state[RANKS_KIND] = 0


@inline
def decode_fields(at, end, others, names, attributes, arena, rows, stride, row, data_deps, control_deps, state):
    """Decode the fields of a node, which are all bytes from `at` up to `end`; gives FINE or why not."""
    parents = state[DATA]
    control = state[CONTROL]
    while at < end:
        field = at
        tag = load_unaligned(at) & 0xFF
        value, used = varint(at + 1)
        if used == 0:
            return DOUBTFUL
        at += 1 + used
        if tag == DATA_DEP_TAG:
            data_deps[parents] = value
            parents += 1
        elif tag == ID_TAG:
            rows[ID * stride + row] = value
        elif tag == TYPE_TAG:
            rows[TYPE * stride + row] = value
        elif tag == CONTROL_DEP_TAG:
            control_deps[control] = value
            control += 1
        elif tag == DURATION_TAG:
            rows[DURATION * stride + row] = value
        elif tag == START_TAG:
            rows[START * stride + row] = value
        elif value > end - at:
            return DOUBTFUL
        else:
            stop = at + value
            if tag == DATA_DEPS_TAG:
                parents = take_packed(at, stop, data_deps, parents)
            elif tag == CONTROL_DEPS_TAG:
                control = take_packed(at, stop, control_deps, control)
            else:
                outcome = take_field(tag, field, at, stop, others, names, attributes, arena, rows, stride, row, state)
                if outcome != FINE:
                    return outcome
            if parents < 0 or control < 0:
                return DOUBTFUL
            at = stop
    rows[DATA_COUNT * stride + row] = parents - state[DATA]
    rows[CONTROL_COUNT * stride + row] = control - state[CONTROL]
    return FINE if at == end else DOUBTFUL


@inline
def is_likely(rows, stride, row, state):
    """Whether the fields of a node go together."""
    kind = rows[TYPE * stride + row]
    if kind < METADATA_NODE or kind > LAST_NODE_TYPE or rows[NAME_LENGTH * stride + row] > LONGEST_NAME_BYTES:
        return False
    return state[RANKS_KIND] == 0 or state[RANKS_KIND] == kind + 1


@inline
def finish_node(begin, end, out, rows, stride, row, spans, state):
    """Count a decoded node, whose message lies from one offset up to another, and keep its name."""
    if rows[TYPE * stride + row] == METADATA_NODE:
        span = 3 * state[SPANS]
        spans[span] = row
        spans[span + 1] = begin
        spans[span + 2] = end
        state[SPANS] += 1
    name_bytes = rows[NAME_LENGTH * stride + row]
    copy_bytes(state[NAME_AT], name_bytes, out + state[NAME_BYTES])
    rows[OTHER_LENGTH * stride + row] = state[NODE_OTHER_BYTES]
    state[OTHER_BYTES] += state[NODE_OTHER_BYTES]
    state[DATA] += rows[DATA_COUNT * stride + row]
    state[CONTROL] += rows[CONTROL_COUNT * stride + row]
    state[NAME_BYTES] += name_bytes
    state[ROWS] = row + 1
    state[POSITION] = end


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
    stride = rows.shape[0] // (FIRST_SLOT + absent.shape[0])
    while state[POSITION] < size:
        row = state[ROWS]
        if row >= stride:
            return FULL
        length, used = varint(data + state[POSITION])
        if used == 0 or used > LONGEST_LENGTH_BYTES or length == 0:
            return DOUBTFUL
        begin = state[POSITION] + used
        end = begin + length
        if end > size:
            return DONE
        begin_node(absent, rows, stride, row, state)
        outcome = decode_fields(
            data + begin,
            data + end,
            others,
            names,
            attributes,
            arena,
            rows,
            stride,
            row,
            data_deps,
            control_deps,
            state,
        )
        if outcome != FINE:
            return outcome
        if not is_likely(rows, stride, row, state):
            return DOUBTFUL
        finish_node(begin, end, out, rows, stride, row, spans, state)
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
