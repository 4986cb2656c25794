"""Decoding the nodes of a Chakra trace from its bytes into columns.

The file is a sequence of protobuf messages behind their lengths. What a message says by numbers goes into columns at
once. Names of attributes, and attributes that are no plain number, are looked up in two tables of what was met before;
one that is new is handed to the caller, who says where it goes and calls again. What is not written as protobuf writes
a valid node is DOUBTFUL, and left to a reader that says what is wrong: this one says nothing that it is not sure of.

An entry of the tables (nadi/simulation/trace_decoding/wire.py) has a slot, and for a name the largest value, for an
attribute its value.
A slot is a column of numbers, IGNORED, or WHOLE: then the attribute is looked up with its value. RANKS is IGNORED, too,
but defines a group where the node is METADATA.

All that is decoded is written where it stays. A column of a slot holds what nodes have that lack the attribute, and is
written to where one has it. `places` says where the lists lie that grow by a number of items a node, and how many items
each has room for. Attributes that no column takes can be kept: their fields are copied as they are, node after node.
"""

from nadi.simulation.trace_decoding.wire import ENTRY, HIGH_BITS, are_equal, copy_bytes, is_ascii, looked_up, varint
from pdes.kernels import inline, kernel, load_unaligned, store_unaligned

# the lists of `places`: ids of parents, bytes of names and of fields that are kept
DATA, CONTROL, NAME_BYTES, OTHER_BYTES = range(4)
LISTS = 4
# words of `state`; before them, how many items each list has
POSITION, ROWS, SPANS, ASKED_AT, ASKED_BYTES, ASKED_PLACE, WANTED_BYTES = range(LISTS, LISTS + 7)
# and of the node that is being decoded: what is kept of it, 1 + its type where ranks were met, and the last name
NODE_OTHER_BYTES, RANKS_KIND, LAST_NAME = range(LISTS + 7, LISTS + 10)
STATE_WORDS = 16
# what `decode_nodes` returns
DONE, FULL, NEW_NAME, NEW_ATTRIBUTE, DOUBTFUL = range(5)
# columns; those of slots follow
ID, TYPE, START, DURATION, NAME_LENGTH, DATA_COUNT, CONTROL_COUNT, OTHER_LENGTH, FIRST_SLOT = range(9)
# words of a column: its address, bytes of an item, and the bits of a word that are not the item's
COLUMN_WORDS = 3
# words of a list: its address, and how many items it has room for
LIST_WORDS = 2
IGNORED, WHOLE, RANKS = -1, -2, -3
WORD_BYTES, ROW_BYTES = 8, 4
PADDING_BYTES = 32
"""Behind all bytes that are looked at or written: words are read and written whole."""

# the first byte of a field of a node: 8 * its number + 0 (a number) or 2 (bytes behind their length)
ID_TAG, NAME_TAG, TYPE_TAG, CONTROL_DEP_TAG, CONTROL_DEPS_TAG, DATA_DEP_TAG, DATA_DEPS_TAG = 8, 18, 24, 32, 34, 40, 42
START_TAG, DURATION_TAG, INPUTS_TAG, OUTPUTS_TAG, ATTRIBUTE_TAG = 48, 56, 66, 74, 82
METADATA_NODE, LAST_NODE_TYPE = 1, 7
MAX_LENGTH_BYTES = 5
LONGEST_NAME_BYTES = 1 << 20
FINE, IS_OTHER, IS_RANKS = -1, -2, -3


@inline
def name_looked_up(at, size, names, follows, arena, state):
    """As `looked_up` in the table of names; first where the one is that followed the last one before.

    Nodes of a kind have the same attributes in the same order.
    """
    last = state[LAST_NAME]
    place = follows[last]
    if names[ENTRY * place + 1] == size and are_equal(arena + names[ENTRY * place], at, size):
        state[LAST_NAME] = place
        return place, 1
    place, found = looked_up(at, size, names, arena)
    if found > 0:
        follows[last] = place
        state[LAST_NAME] = place
    return place, found


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
def is_negative(tag, at, end):
    """Whether a number of 64 bits from `at` up to `end` has the highest set: ten bytes, too many for `varint`."""
    low = tag & 0xFF
    if at + 10 != end or (low != 0x48 and low != 0x68):
        return False
    return (load_unaligned(at) & HIGH_BITS) == HIGH_BITS and (load_unaligned(at + 8) & 0xFF80) == 0x0180


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
def put(columns, slot, row, value):
    """Write an item of the column of a slot."""
    column = COLUMN_WORDS * (FIRST_SLOT + slot)
    at = columns[column] + row * columns[column + 1]
    beside = columns[column + 2]
    store_unaligned(at, (load_unaligned(at) & beside) | (value & ~beside))


@inline
def put_next(columns, column, row, value):
    """Write the next item of a column; what stands behind it is not of any node yet."""
    store_unaligned(columns[COLUMN_WORDS * column] + row * columns[COLUMN_WORDS * column + 1], value)


@inline
def take_attribute(at, end, names, follows, attributes, arena, columns, row, state):
    """Put an attribute into its column; gives FINE, that no column takes it, or why not."""
    word = load_unaligned(at)
    name_bytes = (word >> 8) & 0xFF
    value_at = at + 2 + name_bytes
    if (word & 0xFF) == 0x0A and 0 < name_bytes < 0x80 and value_at < end:
        place, found = name_looked_up(at + 2, name_bytes, names, follows, arena, state)
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
    place, found = looked_up(at, end - at, attributes, arena)
    if found <= 0:
        ask(state, at, end - at, place)
        return NEW_ATTRIBUTE if found == 0 else DOUBTFUL
    slot = attributes[ENTRY * place + 2]
    if slot >= 0:
        put(columns, slot, row, attributes[ENTRY * place + 3])
        return FINE
    return IS_RANKS if slot == RANKS else IS_OTHER


@inline
def take_packed(at, end, deps, count):
    """Put packed ids behind as many parents at an address; gives how many those are now, -1 = they are no ids."""
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
def take_other_field(tag, field, at, end, kind, names, follows, attributes, arena, columns, row, places, state):
    """Take an attribute, inputs or outputs, which lie from `at` up to `end`; gives FINE or why not."""
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
    """Whether the fields of a node go together."""
    if kind < METADATA_NODE or kind > LAST_NODE_TYPE or name_bytes > LONGEST_NAME_BYTES:
        return False
    return state[RANKS_KIND] == 0 or state[RANKS_KIND] == kind + 1


@inline
def put_numbers(node_id, kind, start, duration, columns, row):
    """Write what every node says by numbers."""
    put_next(columns, ID, row, node_id)
    put_next(columns, TYPE, row, kind)
    put_next(columns, START, row, start)
    put_next(columns, DURATION, row, duration)


@inline
def keep_counts(name_bytes, parents, control, columns, row, state):
    """Note how many items of each list are a node's."""
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
    """Decode a node, whose fields are all bytes from `at` up to `end`; gives its type, or -1 - why not."""
    data_deps = places[LIST_WORDS * DATA]
    control_deps = places[LIST_WORDS * CONTROL]
    parents = state[DATA]
    control = state[CONTROL]
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
    put_numbers(node_id, kind, start, duration, columns, row)
    copy_bytes(name_at, name_bytes, places[LIST_WORDS * NAME_BYTES] + state[NAME_BYTES])
    keep_counts(name_bytes, parents, control, columns, row, state)
    return kind


@inline
def has_room(wanted, most_rows, spans, places, state):
    """Whether there is room for a node of so many bytes: that many items of a list are the most it can have."""
    if state[ROWS] >= most_rows or 2 * state[SPANS] >= spans.shape[0]:
        return False
    for i in range(LISTS):  # noqa: SIM110 - kernels have no generators
        if places[LIST_WORDS * i + 1] - state[i] < wanted:
            return False
    return True


@kernel
def decode_nodes(data, size, names, follows, attributes, arena, columns, most_rows, spans, places, state):
    """Decode whole messages, from where `state` says on, until the bytes or the room end or the caller is asked.

    Args:
        data: address of bytes that hold messages, PADDING_BYTES behind them.
        size: how many bytes.
        names: table of names of attributes.
        follows: int64[entries of names + 1], entry of the name that followed each one, and that a node began with.
        attributes: table of attributes.
        arena: address of the bytes of both.
        columns: int64[COLUMN_WORDS * (FIRST_SLOT + slots)], where the columns lie, PADDING_BYTES behind each.
        most_rows: how many rows they have room for; those of slots hold what a node has that lacks the attribute.
        spans: int64[2 * nodes], begin and end of METADATA nodes.
        places: int64[LIST_WORDS * LISTS], where the lists lie, PADDING_BYTES behind each; address 0 of the fields that
            are kept = they are not.
        state: int64[STATE_WORDS]; what was decoded counts up to POSITION, what is in lists and rows from the file's
            first node on.

    Returns:
        DONE: less than a message is left; FULL: there is no room for a row, a span or the WANTED_BYTES of a message;
        NEW_NAME, NEW_ATTRIBUTE: see ASKED; DOUBTFUL.
    """
    while state[POSITION] < size:
        length, used = varint(data + state[POSITION])
        if used == 0 or used > MAX_LENGTH_BYTES or length == 0:
            return DOUBTFUL
        begin = state[POSITION] + used
        end = begin + length
        if end > size:
            return DONE
        if not has_room(length, most_rows, spans, places, state):
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
    """Turn parents given by id into rows, where ids are numbered on from the first; else say 0.

    Args:
        ids: int64[n], ids of the nodes.
        parents: int64[m], ids of the parents, node after node.
        counts: int64[n], how many each node has.
        dep_ptr: int64[n + 1], gets where the parents of each node begin.
        dep: address of int32[m], gets their rows, PADDING_BYTES behind it.

    Returns:
        1, or 0 where ids are numbered otherwise, a parent is not there, or those of a node do not ascend.
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
