"""Decoding of the nodes of a Chakra trace from bytes into columns.

The file is a sequence of protobuf messages, each preceded by its length. The kernel writes numbers into columns at
once. It looks up attribute names, and attributes that are not plain numbers, in two tables. If an entry is missing, the
kernel returns the bytes to the caller, which adds the entry and calls again. Bytes that protobuf would not write for a
valid node are DOUBTFUL: the caller then uses another reader, which reports what is wrong.

An entry of the tables (nadi/simulation/trace_decoding/wire.py) holds a slot, and the largest value of a name or the
value of an attribute. A slot is a column of numbers, IGNORED, or WHOLE; with WHOLE, the kernel looks up the attribute
together with its value. RANKS means IGNORED, but defines a group if the node is METADATA.

The kernel writes decoded values to their final place. The caller fills the column of a slot with the default for nodes
without the attribute. `places` holds the addresses of lists that grow by a varying number of items per node, and their
capacities. The kernel can keep attributes that no column holds: it copies their fields unchanged, node by node.
"""

from nadi.simulation.trace_decoding.wire import ENTRY, HIGH_BITS, are_equal, copy_bytes, find_entry, is_ascii, varint
from pdes.kernels import inline, kernel, load_unaligned, store_unaligned

# lists of `places`: ids of data and control parents, bytes of names, and bytes of kept fields
DATA, CONTROL, NAME_BYTES, OTHER_BYTES = range(4)
LISTS = 4
# words of `state`, behind the number of items of each list
POSITION, ROWS, SPANS, ASKED_AT, ASKED_BYTES, ASKED_PLACE, WANTED_BYTES = range(LISTS, LISTS + 7)
# words of the current node: kept bytes, 1 + its type if it defines ranks, and the previous name
NODE_OTHER_BYTES, RANKS_KIND, LAST_NAME = range(LISTS + 7, LISTS + 10)
STATE_WORDS = 16
# return values of `decode_nodes`
DONE, FULL, NEW_NAME, NEW_ATTRIBUTE, DOUBTFUL = range(5)
# columns; those of slots follow
ID, TYPE, START, DURATION, NAME_LENGTH, DATA_COUNT, CONTROL_COUNT, OTHER_LENGTH, FIRST_SLOT = range(9)
COLUMN_WORDS = 3  # words of a column: its address, bytes per item, and the bits of a word that are not the item's
LIST_WORDS = 2  # words of a list: its address and its capacity in items
IGNORED, WHOLE, RANKS = -1, -2, -3
WORD_BYTES, ROW_BYTES = 8, 4
PADDING_BYTES = 32  # padding behind all bytes that the kernels read or write, because they access whole words

# first byte of a field of a node: 8 * field number + wire type, 0 (varint) or 2 (bytes preceded by their length)
ID_TAG, NAME_TAG, TYPE_TAG, CONTROL_DEP_TAG, CONTROL_DEPS_TAG, DATA_DEP_TAG, DATA_DEPS_TAG = 8, 18, 24, 32, 34, 40, 42
START_TAG, DURATION_TAG, INPUTS_TAG, OUTPUTS_TAG, ATTRIBUTE_TAG = 48, 56, 66, 74, 82
METADATA_NODE, LAST_NODE_TYPE = 1, 7
MAX_LENGTH_BYTES = 5
MAX_NAME_BYTES = 1 << 20
FINE, IS_OTHER, IS_RANKS = -1, -2, -3


@inline
def find_name(at, size, names, follows, arena, state):
    """Find the entry of an attribute name; first try the one that followed the last name in earlier nodes."""
    last = state[LAST_NAME]
    place = follows[last]
    if names[ENTRY * place + 1] == size and are_equal(arena + names[ENTRY * place], at, size):
        state[LAST_NAME] = place
        return place, 1
    place, found = find_entry(at, size, names, arena)
    if found > 0:
        follows[last] = place
        state[LAST_NAME] = place
    return place, found


@inline
def request_bytes(state, at, size, place):
    """Return bytes to the caller through `state`."""
    state[ASKED_AT] = at
    state[ASKED_BYTES] = size
    state[ASKED_PLACE] = place


@inline
def is_whole_io(at, end):
    """Return whether an IOInfo consists of known fields and ASCII text."""
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
    """Return the number of bytes of the tag if an attribute is a plain number, else 0."""
    low = tag & 0xFF
    if low == 0x38 or low == 0x48 or low == 0x58 or low == 0x68:
        return 1
    return 2 if tag == 0x1D8 else 0


@inline
def is_negative(tag, at, end):
    """Return whether the bytes from `at` up to `end` are a negative 64-bit number, whose ten bytes `varint` rejects."""
    low = tag & 0xFF
    if at + 10 != end or (low != 0x48 and low != 0x68):
        return False
    return (load_unaligned(at) & HIGH_BITS) == HIGH_BITS and (load_unaligned(at + 8) & 0xFF80) == 0x0180


@inline
def fits(tag, value):
    """Return whether a number fits its type: int32, uint32 or bool."""
    low = tag & 0xFF
    if low == 0x38:
        return value < 1 << 31
    if low == 0x58:
        return value < 1 << 32
    return value <= 1 if low == 0xD8 else True


@inline
def put(columns, slot, row, value):
    """Write an item of the column of a slot."""
    column = COLUMN_WORDS * (FIRST_SLOT + slot)
    at = columns[column] + row * columns[column + 1]
    other_bits = columns[column + 2]
    store_unaligned(at, (load_unaligned(at) & other_bits) | (value & ~other_bits))


@inline
def put_next(columns, column, row, value):
    """Write the next item of a column; it may overwrite what follows, which belongs to no node yet."""
    store_unaligned(columns[COLUMN_WORDS * column] + row * columns[COLUMN_WORDS * column + 1], value)


@inline
def take_attribute(at, end, names, follows, attributes, arena, columns, row, state):
    """Put an attribute into its column, and return FINE, that no column takes it, or why it cannot be decoded."""
    word = load_unaligned(at)
    name_bytes = (word >> 8) & 0xFF
    value_at = at + 2 + name_bytes
    if (word & 0xFF) == 0x0A and 0 < name_bytes < 0x80 and value_at < end:
        place, found = find_name(at + 2, name_bytes, names, follows, arena, state)
        if found <= 0:
            request_bytes(state, at + 2, name_bytes, place)
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
                    put(columns, slot, row, value)
                    return FINE
                return IS_OTHER
            if slot == IGNORED and is_negative(tag, value_at + width, end):
                return IS_OTHER
        elif slot == IGNORED and tag == 0x1EA:
            size, used = varint(value_at + 2)
            if used > 0 and size < end - at and value_at + 2 + used + size == end and is_ascii(end - size, end):
                return IS_OTHER
    if end == at:
        return DOUBTFUL
    place, found = find_entry(at, end - at, attributes, arena)
    if found <= 0:
        request_bytes(state, at, end - at, place)
        return NEW_ATTRIBUTE if found == 0 else DOUBTFUL
    slot = attributes[ENTRY * place + 2]
    if slot >= 0:
        put(columns, slot, row, attributes[ENTRY * place + 3])
        return FINE
    return IS_RANKS if slot == RANKS else IS_OTHER


@inline
def take_packed(at, end, deps, count):
    """Append packed ids to `count` parents at an address, and return the new count; -1 = they are not ids."""
    while at < end:
        value, used = varint(at)
        if used == 0:
            return -1
        at += used
        store_unaligned(deps + WORD_BYTES * count, value)
        count += 1
    return count if at == end else -1


@inline
def keep_other(field, at, end, is_ranks, others, kind, state):
    """Keep a field whose attribute, from `at` to `end`, no column takes, in `others`; return FINE or DOUBTFUL.

    `field` is the address of its tag. An attribute that `is_ranks` defines a group if the node is METADATA, and is not
    kept then.
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
def take_other_field(tag, field, at, end, kind, names, follows, attributes, arena, columns, row, places, state):
    """Take an attribute, inputs or outputs between `at` and `end`, and return FINE or why they cannot be decoded."""
    if tag == ATTRIBUTE_TAG:
        outcome = take_attribute(at, end, names, follows, attributes, arena, columns, row, state)
        if outcome != IS_OTHER and outcome != IS_RANKS:
            return outcome
        others = places[LIST_WORDS * OTHER_BYTES]
        if others == 0:
            return FINE
        return keep_other(field, at, end, outcome == IS_RANKS, others, kind, state)
    return FINE if (tag == INPUTS_TAG or tag == OUTPUTS_TAG) and is_whole_io(at, end) else DOUBTFUL


@inline
def is_likely(kind, name_bytes, state):
    """Return whether the fields of a node are consistent."""
    if kind < METADATA_NODE or kind > LAST_NODE_TYPE or name_bytes > MAX_NAME_BYTES:
        return False
    return state[RANKS_KIND] == 0 or state[RANKS_KIND] == kind + 1


@inline
def keep_counts(name_bytes, parents, control, columns, row, state):
    """Write the number of a node's items in each list."""
    put_next(columns, NAME_LENGTH, row, name_bytes)
    put_next(columns, DATA_COUNT, row, parents - state[DATA])
    put_next(columns, CONTROL_COUNT, row, control - state[CONTROL])
    put_next(columns, OTHER_LENGTH, row, state[NODE_OTHER_BYTES])
    state[NAME_BYTES] += name_bytes
    state[DATA] = parents
    state[CONTROL] = control
    state[OTHER_BYTES] += state[NODE_OTHER_BYTES]


@inline
def decode_node(at, end, names, follows, attributes, arena, columns, row, places, state):
    """Decode the node between `at` and `end`, and return its type, or -1 minus the reason for a failure."""
    data_deps, control_deps = places[LIST_WORDS * DATA], places[LIST_WORDS * CONTROL]
    parents, control = state[DATA], state[CONTROL]
    node_id = kind = start = duration = name_bytes = 0
    name_at = at
    state[NODE_OTHER_BYTES] = 0
    state[RANKS_KIND] = 0
    state[LAST_NAME] = follows.shape[0] - 1
    while at < end:
        field = at
        tag = load_unaligned(at) & 0xFF
        value, used = varint(at + 1)
        if used == 0:
            return -1 - DOUBTFUL
        at += 1 + used
        if tag == DATA_DEP_TAG:
            store_unaligned(data_deps + WORD_BYTES * parents, value)
            parents += 1
        elif tag == ID_TAG:
            node_id = value
        elif tag == TYPE_TAG:
            kind = value
        elif tag == CONTROL_DEP_TAG:
            store_unaligned(control_deps + WORD_BYTES * control, value)
            control += 1
        elif tag == DURATION_TAG:
            duration = value
        elif tag == START_TAG:
            start = value
        elif value > end - at:
            return -1 - DOUBTFUL
        else:
            stop = at + value
            if tag == NAME_TAG:
                name_at = at
                name_bytes = value
            elif tag == DATA_DEPS_TAG:
                parents = take_packed(at, stop, data_deps, parents)
            elif tag == CONTROL_DEPS_TAG:
                control = take_packed(at, stop, control_deps, control)
            else:
                outcome = take_other_field(
                    tag, field, at, stop, kind, names, follows, attributes, arena, columns, row, places, state
                )
                if outcome != FINE:
                    return -1 - outcome
            if parents < 0 or control < 0:
                return -1 - DOUBTFUL
            at = stop
    if at != end or not is_likely(kind, name_bytes, state):
        return -1 - DOUBTFUL
    put_next(columns, ID, row, node_id)
    put_next(columns, TYPE, row, kind)
    put_next(columns, START, row, start)
    put_next(columns, DURATION, row, duration)
    copy_bytes(name_at, name_bytes, places[LIST_WORDS * NAME_BYTES] + state[NAME_BYTES])
    keep_counts(name_bytes, parents, control, columns, row, state)
    return kind


@inline
def has_room(message_bytes, max_rows, spans, places, state):
    """Return whether a node of `message_bytes` bytes has room; a list gets at most one item per byte."""
    if state[ROWS] >= max_rows or 2 * state[SPANS] >= spans.shape[0]:
        return False
    for i in range(LISTS):  # noqa: SIM110 - kernels have no generators
        if places[LIST_WORDS * i + 1] - state[i] < message_bytes:
            return False
    return True


@kernel
def decode_nodes(data, size, names, follows, attributes, arena, columns, max_rows, spans, places, state):
    """Decode messages from the position in `state` until the bytes or the room end, or an entry is missing.

    Args:
        data: Address of the bytes, with PADDING_BYTES behind them.
        size: Number of bytes.
        names: Table of attribute names.
        follows: int64[entries of names + 1], entry of the name that followed each name; the last item is the first name
            of a node.
        attributes: Table of attributes.
        arena: Address of the bytes of both tables.
        columns: int64[COLUMN_WORDS * (FIRST_SLOT + slots)], addresses of the columns, with PADDING_BYTES behind each.
        max_rows: Number of rows of the columns; columns of slots hold the default for nodes without the attribute.
        spans: int64[2 * nodes], begin and end of METADATA nodes.
        places: int64[LIST_WORDS * LISTS], addresses and capacities of the lists, with PADDING_BYTES behind each;
            address 0 of the kept fields = they are not kept.
        state: int64[STATE_WORDS]; POSITION counts the decoded bytes of `data`, lists and rows count from the file's
            first node.

    Returns:
        DONE: less than a message is left. FULL: there is no room for a row, a span or the WANTED_BYTES of a message.
        NEW_NAME, NEW_ATTRIBUTE: the entry of the bytes at ASKED_AT is missing. DOUBTFUL: see the module.
    """
    while state[POSITION] < size:
        length, used = varint(data + state[POSITION])
        if used == 0 or used > MAX_LENGTH_BYTES or length == 0:
            return DOUBTFUL
        begin = state[POSITION] + used
        end = begin + length
        if end > size:
            return DONE
        if not has_room(length, max_rows, spans, places, state):
            state[WANTED_BYTES] = length
            return FULL
        kind = decode_node(
            data + begin, data + end, names, follows, attributes, arena, columns, state[ROWS], places, state
        )
        if kind < 0:
            return -1 - kind
        if kind == METADATA_NODE:
            spans[2 * state[SPANS]] = begin
            spans[2 * state[SPANS] + 1] = end
            state[SPANS] += 1
        state[ROWS] += 1
        state[POSITION] = end
    return DONE


@kernel
def link_in_order(ids, parents, counts, dep_ptr, dep):
    """Convert int64[m] parents of the nodes, int64[n] `counts` each, from ids to rows, and return 1.

    Return 0 if ids do not ascend by 1, a parent is missing, or the parents of a node do not ascend. The results are
    int64[n + 1] dep_ptr, the index of the first parent of each node, and int32[m], with PADDING_BYTES behind, at `dep`.
    """
    nodes = ids.shape[0]
    first = ids[0] if nodes > 0 else 0
    at = 0
    for row in range(nodes):
        if ids[row] != first + row:
            return 0
        dep_ptr[row] = at
        last = -1
        for _ in range(counts[row]):
            parent = parents[at] - first
            if parent <= last or parent >= nodes:
                return 0
            store_unaligned(dep + ROW_BYTES * at, parent)
            last = parent
            at += 1
    dep_ptr[nodes] = at
    return 1


@kernel
def without_cycle(dep_ptr, dep, children_left, ready):
    """Return the number of nodes that are neither on a cycle nor before one; it equals n if there is no cycle.

    The kernel uses up `children_left`, int64[n], the number of children of each node; ready: int64[n + 1], scratch.
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
