"""Decoding of the nodes of a Chakra trace from bytes into columns.

The file is a sequence of protobuf messages, each preceded by its length. The kernel writes numbers into columns at
once. It looks up attribute names, and attributes that are not plain numbers, in two tables. If an entry is missing, the
kernel returns the bytes to the caller, which adds the entry and calls again. Bytes that protobuf would not write for a
valid node are DOUBTFUL: the caller then uses another reader, which reports what is wrong.

An entry of the tables (et/kernels/wire.py) holds a slot, and the largest value of a name or the
value of an attribute. A slot is a column of numbers, IGNORED, or WHOLE; with WHOLE, the kernel looks up the attribute
together with its value. RANKS means IGNORED, but defines a group if the node is METADATA.

The kernel writes decoded values to their final place. The caller fills the column of a slot with the default for nodes
without the attribute. `places` holds the addresses of lists that grow by a varying number of items per node, and their
capacities. The kernel can keep attributes that no column holds: it copies their fields unchanged, node by node.
"""

from nadi.compiling.decorators import inline, kernel, load_unaligned, store_unaligned
from nadi.et.kernels import wire

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
def find_name(address, size_bytes, name_table, follows, arena, state):
    """Return the entry of an attribute name (address, size_bytes) in name_table; 1 = found, 0 = free, -1 = full.

    First try the entry that followed the last name, state[LAST_NAME], in earlier nodes: follows is int64[entries + 1].
    `arena` is the address of the table's bytes; `address` that of the name.
    """
    last = state[LAST_NAME]
    place = follows[last]
    # nodes of a trace have their attributes in the same order, so this guess saves the hash
    if name_table[wire.ENTRY * place + 1] == size_bytes and wire.are_equal(
        arena + name_table[wire.ENTRY * place], address, size_bytes
    ):
        state[LAST_NAME] = place
        return place, 1
    place, found = wire.find_entry(address, size_bytes, name_table, arena)
    if found > 0:
        follows[last] = place
        state[LAST_NAME] = place
    return place, found


@inline
def request_bytes(state, address, size_bytes, table_entry):
    """Ask the caller, through `state`, to fill the table's entry `table_entry` for size_bytes bytes at an address."""
    state[ASKED_AT] = address
    state[ASKED_BYTES] = size_bytes
    state[ASKED_PLACE] = table_entry


@inline
def is_whole_io(begin_address, end_address):
    """Return whether the bytes of an IOInfo, begin_address to end_address, are known fields and ASCII text."""
    while begin_address < end_address:
        tag = load_unaligned(begin_address) & 0xFF
        size, used = wire.varint(begin_address + 1)
        # fields 1 to 3, each a string
        if (tag != 0x0A and tag != 0x12 and tag != 0x1A) or used == 0 or size > end_address - begin_address:
            return False
        if begin_address + 1 + used + size > end_address or not wire.is_ascii(
            begin_address + 1 + used, begin_address + 1 + used + size
        ):
            return False
        begin_address += 1 + used + size
    return True


@inline
def put(layout, slot, row, value):
    """Write the item `value` at `row` of the column of `slot`; layout: address, item size and mask of each column."""
    column = COLUMN_WORDS * (FIRST_SLOT + slot)
    at = layout[column] + row * layout[column + 1]
    # items are written as whole words, so the bits of the items behind are kept
    other_bits = layout[column + 2]
    store_unaligned(at, (load_unaligned(at) & other_bits) | (value & ~other_bits))


@inline
def put_next(layout, column, row, value):
    """Write `value` at `row` of a `column` (layout: address, item size); it may overwrite unused bytes behind."""
    store_unaligned(layout[COLUMN_WORDS * column] + row * layout[COLUMN_WORDS * column + 1], value)


@inline
def take_attribute(begin_address, end_address, name_table, follows, value_table, arena, layout, row, state):
    """Put a row's attribute into its column, and return FINE, IS_OTHER, IS_RANKS or why it cannot be decoded.

    begin_address, end_address: ends of the attribute. name_table, follows, value_table, arena, layout and state are
    those of decode_nodes: two tables of known bytes in `arena`, the name that followed each name, the layout of
    columns, and words. IS_OTHER: no column takes the attribute.
    """
    word = load_unaligned(begin_address)
    name_bytes = (word >> 8) & 0xFF
    value_at = begin_address + 2 + name_bytes
    if (word & 0xFF) == 0x0A and 0 < name_bytes < 0x80 and value_at < end_address:
        place, found = find_name(begin_address + 2, name_bytes, name_table, follows, arena, state)
        if found <= 0:
            request_bytes(state, begin_address + 2, name_bytes, place)
            return NEW_NAME if found == 0 else DOUBTFUL
        slot = name_table[wire.ENTRY * place + 2]
        tag = load_unaligned(value_at) & 0xFFFF
        width = wire.number_width(tag)
        if slot != WHOLE and width > 0:
            value, used = wire.varint(value_at + width)
            if used > 0 and value_at + width + used == end_address and wire.fits(tag, value):
                if slot >= 0:
                    if value > name_table[wire.ENTRY * place + 3]:
                        return DOUBTFUL
                    put(layout, slot, row, value)
                    return FINE
                return IS_OTHER
            if slot == IGNORED and wire.is_negative(tag, value_at + width, end_address):
                return IS_OTHER
        elif slot == IGNORED and tag == 0x1EA:
            size, used = wire.varint(value_at + 2)
            if (
                used > 0
                and size < end_address - begin_address
                and value_at + 2 + used + size == end_address
                and wire.is_ascii(end_address - size, end_address)
            ):
                return IS_OTHER
    if end_address == begin_address:
        return DOUBTFUL
    place, found = wire.find_entry(begin_address, end_address - begin_address, value_table, arena)
    if found <= 0:
        request_bytes(state, begin_address, end_address - begin_address, place)
        return NEW_ATTRIBUTE if found == 0 else DOUBTFUL
    slot = value_table[wire.ENTRY * place + 2]
    if slot >= 0:
        put(layout, slot, row, value_table[wire.ENTRY * place + 3])
        return FINE
    return IS_RANKS if slot == RANKS else IS_OTHER


@inline
def take_packed(begin_address, end_address, parents_address, num_parents):
    """Append packed ids, begin_address to end_address, to num_parents ids at parents_address; return their number.

    -1: the bytes are no ids.
    """
    while begin_address < end_address:
        value, used = wire.varint(begin_address)
        if used == 0:
            return -1
        begin_address += used
        store_unaligned(parents_address + WORD_BYTES * num_parents, value)
        num_parents += 1
    return num_parents if begin_address == end_address else -1


@inline
def keep_other(tag_address, begin_address, end_address, is_ranks, kept_address, node_type, state):
    """Keep a field, of which no column takes the attribute between two addresses; return FINE or DOUBTFUL.

    Its bytes from `tag_address` to `end_address`, with the attribute from `begin_address` on, go behind the kept ones
    at `kept_address`. An attribute that `is_ranks` defines a group if the node is METADATA (`node_type`), and is not
    kept then. `state` is that of decode_nodes.
    """
    if (
        begin_address - tag_address > 2
        and (end_address - begin_address) >> (7 * (begin_address - tag_address - 2)) == 0
    ):
        return DOUBTFUL
    if is_ranks:
        if state[RANKS_KIND] != 0 and state[RANKS_KIND] != node_type + 1:
            return DOUBTFUL
        state[RANKS_KIND] = node_type + 1
        if node_type == METADATA_NODE:
            return FINE
    wire.copy_bytes(tag_address, end_address - tag_address, kept_address + state[OTHER_BYTES] + state[NODE_OTHER_BYTES])
    state[NODE_OTHER_BYTES] += end_address - tag_address
    return FINE


@inline
def take_other_field(
    field_tag,
    tag_address,
    begin_address,
    end_address,
    node_type,
    name_table,
    follows,
    value_table,
    arena,
    layout,
    row,
    lists,
    state,
):
    """Take an attribute, inputs or outputs (field_tag) of a node; return FINE or what is wrong.

    tag_address, begin_address, end_address: the field, and the ends of its value; the others are those of decode_node.
    """
    if field_tag == ATTRIBUTE_TAG:
        outcome = take_attribute(
            begin_address, end_address, name_table, follows, value_table, arena, layout, row, state
        )
        if outcome != IS_OTHER and outcome != IS_RANKS:
            return outcome
        others = lists[LIST_WORDS * OTHER_BYTES]
        # the caller does not keep other fields
        if others == 0:
            return FINE
        return keep_other(tag_address, begin_address, end_address, outcome == IS_RANKS, others, node_type, state)
    return (
        FINE
        if (field_tag == INPUTS_TAG or field_tag == OUTPUTS_TAG) and is_whole_io(begin_address, end_address)
        else DOUBTFUL
    )


@inline
def is_likely(node_type, name_bytes, state):
    """Return whether a node's node_type, the length of its name, name_bytes, and ranks in `state` are consistent."""
    if node_type < METADATA_NODE or node_type > LAST_NODE_TYPE or name_bytes > MAX_NAME_BYTES:
        return False
    return state[RANKS_KIND] == 0 or state[RANKS_KIND] == node_type + 1


@inline
def keep_counts(name_bytes, data_end, control_end, layout, row, state):
    """Write a node's number of items in each list; data_end, control_end: the file's parents up to this node.

    name_bytes: length of its name; layout, row, state: those of decode_nodes.
    """
    put_next(layout, NAME_LENGTH, row, name_bytes)
    put_next(layout, DATA_COUNT, row, data_end - state[DATA])
    put_next(layout, CONTROL_COUNT, row, control_end - state[CONTROL])
    put_next(layout, OTHER_LENGTH, row, state[NODE_OTHER_BYTES])
    # only now is the node complete: a failure before leaves the lists as they were
    state[NAME_BYTES] += name_bytes
    state[DATA] = data_end
    state[CONTROL] = control_end
    state[OTHER_BYTES] += state[NODE_OTHER_BYTES]


@inline
def decode_node(address, end_address, name_table, follows, value_table, arena, layout, row, lists, state):
    """Decode the node from `address` to `end_address` into a `row`, as decode_nodes; return its type, or -1 - error."""
    data_deps, control_deps = lists[LIST_WORDS * DATA], lists[LIST_WORDS * CONTROL]
    parents, control = state[DATA], state[CONTROL]
    node_id = kind = start = duration = name_bytes = 0
    name_at = address
    state[NODE_OTHER_BYTES] = 0
    state[RANKS_KIND] = 0
    # the last entry of `follows` names the first attribute of a node
    state[LAST_NAME] = follows.shape[0] - 1
    while address < end_address:
        field = address
        tag = load_unaligned(address) & 0xFF
        value, used = wire.varint(address + 1)
        if used == 0:
            return -1 - DOUBTFUL
        address += 1 + used
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
        elif value > end_address - address:
            return -1 - DOUBTFUL
        else:
            stop = address + value
            if tag == NAME_TAG:
                name_at = address
                name_bytes = value
            elif tag == DATA_DEPS_TAG:
                parents = take_packed(address, stop, data_deps, parents)
            elif tag == CONTROL_DEPS_TAG:
                control = take_packed(address, stop, control_deps, control)
            else:
                outcome = take_other_field(
                    tag, field, address, stop, kind, name_table, follows, value_table, arena, layout, row, lists, state
                )
                if outcome != FINE:
                    return -1 - outcome
            if parents < 0 or control < 0:
                return -1 - DOUBTFUL
            address = stop
    if address != end_address or not is_likely(kind, name_bytes, state):
        return -1 - DOUBTFUL
    put_next(layout, ID, row, node_id)
    put_next(layout, TYPE, row, kind)
    put_next(layout, START, row, start)
    put_next(layout, DURATION, row, duration)
    wire.copy_bytes(name_at, name_bytes, lists[LIST_WORDS * NAME_BYTES] + state[NAME_BYTES])
    keep_counts(name_bytes, parents, control, layout, row, state)
    return kind


@inline
def has_room(message_bytes, max_rows, spans, lists, state):
    """Return whether a node of message_bytes fits into max_rows, `spans` and `lists`, with `state` of decode_nodes."""
    if state[ROWS] >= max_rows or 2 * state[SPANS] >= spans.shape[0]:
        return False
    for i in range(LISTS):  # noqa: SIM110 - kernels have no generators
        if lists[LIST_WORDS * i + 1] - state[i] < message_bytes:
            return False
    return True


@kernel
def decode_nodes(address, size_bytes, name_table, follows, value_table, arena, layout, max_rows, spans, lists, state):
    """Decode messages from the position in `state` until the bytes or the room end, or an entry is missing.

    `address`: Address of the bytes, with PADDING_BYTES behind them.
    `size_bytes`: Number of bytes.
    `name_table`: Table of attribute names.
    `follows`: int64[entries of names + 1], entry of the name that followed each name; the last item is the first name
    of a node.
    `value_table`: Table of attributes.
    `arena`: Address of the bytes of both tables.
    `layout`: int64[COLUMN_WORDS * (FIRST_SLOT + slots)], addresses of the columns, each with PADDING_BYTES.
    `max_rows`: Number of rows of the columns; columns of slots hold the default for nodes without the attribute.
    `spans`: int64[2 * nodes], begin and end of METADATA nodes.
    `lists`: int64[LIST_WORDS * LISTS], addresses and capacities of the lists, with PADDING_BYTES behind each; address 0
    of the kept fields = they are not kept.
    `state`: int64[STATE_WORDS]; POSITION counts the decoded bytes of `address`, lists and rows count from the file's
    first node.

    Returns:
        DONE: less than a message is left. FULL: there is no room for a row, a span or the WANTED_BYTES of a message.
        NEW_NAME, NEW_ATTRIBUTE: the entry of the bytes at ASKED_AT is missing. DOUBTFUL: see the module.
    """
    while state[POSITION] < size_bytes:
        length, used = wire.varint(address + state[POSITION])
        if used == 0 or used > MAX_LENGTH_BYTES or length == 0:
            return DOUBTFUL
        begin = state[POSITION] + used
        end = begin + length
        if end > size_bytes:
            return DONE
        if not has_room(length, max_rows, spans, lists, state):
            state[WANTED_BYTES] = length
            return FULL
        kind = decode_node(
            address + begin, address + end, name_table, follows, value_table, arena, layout, state[ROWS], lists, state
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
def link_in_order(node_ids, parents, num_parents, dep_ptr, dep_address):
    """Convert int64[m] parents of n nodes from ids to rows, and return 1; 0 if that would need a search.

    That is so if ids do not ascend by 1, a parent is missing, or the parents of a node do not ascend. `node_ids` and
    `num_parents` are int64[n]. The results are int64[n + 1] dep_ptr, the index of the first parent of each node, and
    int32[m], with PADDING_BYTES behind, at `dep_address`.
    """
    nodes = node_ids.shape[0]
    first = node_ids[0] if nodes > 0 else 0
    at = 0
    for row in range(nodes):
        if node_ids[row] != first + row:
            return 0
        dep_ptr[row] = at
        last = -1
        for _ in range(num_parents[row]):
            parent = parents[at] - first
            # parents must ascend, and be rows of this file
            if parent <= last or parent >= nodes:
                return 0
            store_unaligned(dep_address + ROW_BYTES * at, parent)
            last = parent
            at += 1
    dep_ptr[nodes] = at
    return 1


@kernel
def without_cycle(dep_ptr, parents, children_left, scratch):
    """Return the number of nodes that are neither on a cycle nor before one; it equals n if there is no cycle.

    The parents of a node are the rows parents[dep_ptr[node]:dep_ptr[node + 1]]. The kernel uses up `children_left`,
    int64[n], the number of children of each node; scratch: int64[n + 1].
    """
    nodes = children_left.shape[0]
    waiting = 0
    for node in range(nodes):
        if children_left[node] == 0:
            scratch[waiting] = node
            waiting += 1
    done = 0
    while waiting > 0:
        waiting -= 1
        node = scratch[waiting]
        done += 1
        for i in range(dep_ptr[node], dep_ptr[node + 1]):
            parent = parents[i]
            left = children_left[parent] - 1
            children_left[parent] = left
            if left == 0:
                scratch[waiting] = parent
                waiting += 1
    return done
