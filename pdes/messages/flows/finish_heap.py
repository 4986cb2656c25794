"""A binary heap of the flows under way by the end of their current messages; each flow knows its place."""

from pdes.core.jit import inline


@inline
def is_before(flows, flow_a, flow_b):
    """Return whether flow a ends before flow b; equal ends are ordered by number."""
    at, other = flows.flow[flow_a].finish_ps, flows.flow[flow_b].finish_ps
    return at < other or (at == other and flow_a < flow_b)


@inline
def put(flows, place, flow_id):
    """Put a flow at a place of the heap."""
    flows.finish_heap[place] = flow_id
    flows.flow[flow_id].heap_place = place + 1


@inline
def sift(flows, place, flow_id):
    """Put a flow where it belongs in the heap, from a place whose entry is void."""
    while place > 0:
        parent = (place - 1) >> 1
        if not is_before(flows, flow_id, flows.finish_heap[parent]):
            break
        put(flows, place, flows.finish_heap[parent])
        place = parent
    while True:
        child = 2 * place + 1
        if child >= flows.state.active:
            break
        if child + 1 < flows.state.active and is_before(flows, flows.finish_heap[child + 1], flows.finish_heap[child]):
            child += 1
        if not is_before(flows, flows.finish_heap[child], flow_id):
            break
        put(flows, place, flows.finish_heap[child])
        place = child
    put(flows, place, flow_id)


@inline
def add_flow(flows, flow_id):
    """Add a flow, a row of `flow`, to the heap."""
    flows.state.active += 1
    sift(flows, flows.state.active - 1, flow_id)


@inline
def remove_flow(flows, flow_id):
    """Remove a flow from the heap."""
    i = flows.flow[flow_id].heap_place - 1
    flows.flow[flow_id].heap_place = 0
    flows.state.active -= 1
    last = flows.finish_heap[flows.state.active]
    if last != flow_id:
        sift(flows, i, last)
