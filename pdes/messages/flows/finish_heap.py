"""A binary heap of the flows under way by the end of their current messages; each flow knows its place."""

from pdes.core.jit import inline


@inline
def is_before(flows, a, b):
    """Return whether flow a ends before flow b; equal ends are ordered by number."""
    at, other = flows.flow[a].finish_ps, flows.flow[b].finish_ps
    return at < other or (at == other and a < b)


@inline
def put(flows, i, f):
    """Put a flow at place i."""
    flows.finish_heap[i] = f
    flows.flow[f].heap_place = i + 1


@inline
def sift(flows, i, f):
    """Put a flow where it belongs, from place i, whose entry is void."""
    while i > 0:
        parent = (i - 1) >> 1
        if not is_before(flows, f, flows.finish_heap[parent]):
            break
        put(flows, i, flows.finish_heap[parent])
        i = parent
    while True:
        child = 2 * i + 1
        if child >= flows.state.active:
            break
        if child + 1 < flows.state.active and is_before(flows, flows.finish_heap[child + 1], flows.finish_heap[child]):
            child += 1
        if not is_before(flows, flows.finish_heap[child], f):
            break
        put(flows, i, flows.finish_heap[child])
        i = child
    put(flows, i, f)


@inline
def add_flow(flows, f):
    """Add a flow."""
    flows.state.active += 1
    sift(flows, flows.state.active - 1, f)


@inline
def move_flow(flows, f):
    """Move a flow whose end has changed."""
    sift(flows, flows.flow[f].heap_place - 1, f)


@inline
def remove_flow(flows, f):
    """Remove a flow."""
    i = flows.flow[f].heap_place - 1
    flows.flow[f].heap_place = 0
    flows.state.active -= 1
    last = flows.finish_heap[flows.state.active]
    if last != f:
        sift(flows, i, last)
