"""A binary heap of (key, number) rows with each number at most once; equal keys are ordered by number.

`places[number]` is the place of a number in the heap + 1, 0 if it is absent.
"""

from nadi.pdes.core.jit import inline


@inline
def is_before(key, number, entry):
    """Return whether a number with a key comes before an entry of a heap."""
    return key < entry.key or (key == entry.key and number < entry.number)


@inline
def put(heap, places, place, key, number):
    """Write an entry at a place of the heap.

    Args:
        heap: Rows of `KeyedEntry`: keys with their numbers, the smallest first.
        places: Place of each number in the heap plus 1; 0 = it is not in the heap.
        place: Place in the heap.
        key: Key of the number, a rate or a time in ps.
        number: The number: a link or a flow.
    """
    heap[place].key = key
    heap[place].number = number
    places[number] = place + 1


@inline
def sift(heap, places, size, place, key, number):
    """Put a number where it belongs in the heap.

    Args:
        heap: Rows of `KeyedEntry`: keys with their numbers, the smallest first.
        places: Place of each number in the heap plus 1; 0 = it is not in the heap.
        size: Number of entries of the heap.
        place: Place of an entry that is void, where the search begins.
        key: Key of the number, a rate or a time in ps.
        number: The number: a link or a flow.
    """
    # one of both loops does nothing: an entry moves up, or down, or stays
    while place > 0:
        parent = (place - 1) >> 1
        if not is_before(key, number, heap[parent]):
            break
        put(heap, places, place, heap[parent].key, heap[parent].number)
        place = parent
    # one that cannot move to the front may belong further behind
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and is_before(heap[child + 1].key, heap[child + 1].number, heap[child]):
            child += 1
        if is_before(key, number, heap[child]):
            break
        put(heap, places, place, heap[child].key, heap[child].number)
        place = child
    put(heap, places, place, key, number)


@inline
def remove(heap, places, size, number):
    """Remove a number from the heap.

    Args:
        heap: Rows of `KeyedEntry`: keys with their numbers, the smallest first.
        places: Place of each number in the heap plus 1; 0 = it is not in the heap.
        size: Number of entries of the heap.
        number: The number: a link or a flow.
    """
    place = places[number] - 1
    places[number] = 0
    last = heap[size - 1]
    # the last entry fills the gap, unless it is the one that goes
    if last.number != number:
        sift(heap, places, size - 1, place, last.key, last.number)
