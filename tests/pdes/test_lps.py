"""What a logical process holds of the fabric, its mail, its place in the queue, and its memory."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import partition
from nadi.pdes import RunError, Settings, build_world, run, workers
from nadi.pdes.construction.layout import Outboxes, share
from nadi.pdes.core import state as s
from nadi.pdes.core.jit import Directory
from nadi.pdes.core.packet import FAR_WINDOWS, HEADER_WORDS
from nadi.pdes.core.rows.network import PacketRecord
from nadi.pdes.core.rows.run import LINE_WORDS, LpTurn, TeamState, Worker
from nadi.pdes.parallel import Layout, shares
from nadi.pdes.workers import team as tm
from nadi.pdes.workers.batches import no_batches
from nadi.topologies import build
from nadi.workload import collective_program, pairs_program, permutation
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.parallel.random_runs import divided
from tests.pdes import worker_kernels
from tests.pdes.cases import Traces

quick = bounded(60)


def laid_out(drawn):
    graph, _, settings, owner = drawn.parts()
    layout = Layout(graph, settings, owner)
    return graph, layout, [layout.part(number) for number in range(layout.lps)]


@quick
@given(divided())
def test_both_sides_of_a_cut_see_the_same_links(drawn):
    graph, layout, parts = laid_out(drawn)
    seen = []
    for part in nonempty(parts):
        for other, out, room in zip(part.neighbours, part.links_out, part.rooms, strict=True):
            far_side = parts[other]
            back = far_side.neighbours.index(part.number)
            assert far_side.links_in[back].tolist() == out.tolist() == sorted(out.tolist())
            assert far_side.rooms_in[back] == room
            assert set(layout.owner[graph.link_src[out]]) == {part.number}
            assert set(layout.owner[graph.link_dst[out]]) == {other}
            seen += out.tolist()
    cut = np.flatnonzero(layout.owner[graph.link_src] != layout.owner[graph.link_dst])
    assert sorted(seen) == cut.tolist()
    assert (layout.fabric.reach_ps[cut] >= layout.lookahead_ps).all()


@quick
@given(divided())
def test_nodes_and_links_are_numbered_as_others_expect(drawn):
    graph, layout, parts = laid_out(drawn)
    assert sorted(node for part in parts for node in part.nodes.tolist()) == list(range(graph.nodes))
    assert sorted(link for part in parts for link in part.links.tolist()) == list(range(graph.links))
    tables = [part.tx_rows(graph, layout.fabric, layout.owner).meta for part in parts]
    for part, table in nonempty(zip(parts, tables, strict=True)):
        own = len(part.links)
        assert ((table[:own] >> 22) & 0xFFFFFF).tolist() == part.links.tolist()
        assert (part.nodes[: part.npus] < graph.npus).all()
        assert (part.nodes[part.npus :] >= graph.npus).all()
        for node in nonempty(range(len(part.nodes))):
            links = part.links[part.out_ptr[node] : part.out_ptr[node + 1]]
            assert links.tolist() == graph.out_links(part.nodes[node]).tolist()
        far = part.far(graph)
        for other, links in zip(part.neighbours, part.links_out, strict=True):
            ghost = parts[other].ghost()[parts[other].neighbours.index(part.number)]
            for link in links.tolist():
                # what the sender writes beside a packet leads the receiver to the row of the same link
                row = tables[other][ghost + far[part.links.tolist().index(link)]]
                assert (row >> 22) & 0xFFFFFF == link
                assert parts[other].nodes[row & ((1 << 22) - 1)] == graph.link_dst[link]


@quick
@given(divided())
def test_mail_is_found_where_it_is_put(drawn):
    _, _, parts = laid_out(drawn)
    post = Outboxes(parts)
    assert [len(post.outbox[part.number]) for part in parts] == [max(1, part.outbox_at()[-1]) for part in parts]
    number = 0
    written = {}
    for part in nonempty(parts):
        at = part.outbox_at()
        for index, other in enumerate(part.neighbours):
            for half in range(2):
                number += 1
                begin, end = at[2 * index + half : 2 * index + half + 2]
                assert end - begin >= HEADER_WORDS + 5 * part.rooms[index]
                post.outbox[part.number][begin:end] = number
                written[part.number, other, half] = number, end - begin
    for (sender, receiver, half), (number, length) in written.items():
        found = (ctypes.c_int64 * int(length)).from_address(post.address(sender, receiver, half))
        assert set(found) == {number}


@quick
@given(st.integers(1, 40), st.integers(1, 12))
def test_shares_are_neighbours_by_number_and_about_equal(lps, workers):
    all_shares = [share(lps, workers, worker) for worker in range(workers)]
    assert [lp for own in all_shares for lp in own] == list(range(lps))
    assert max(map(len, all_shares)) - min(map(len, all_shares)) <= 1
    owner = np.arange(lps).repeat(2)
    assert shares(owner, workers).tolist() == [w for w, own in enumerate(all_shares) for _ in range(2 * len(own))]


@quick
@given(st.integers(1, 40).flatmap(lambda lps: st.permutations(range(lps))), st.integers(0, 3), st.data())
def test_the_most_costly_come_first(order, number, data):
    lps = len(order)
    costs = data.draw(st.lists(st.integers(0, 9), min_size=lps, max_size=lps))
    found = tm.new_pool(lps)
    assert found.orders.tolist() == [*range(lps), *range(lps)]
    assert found.costs.tolist() == [0] * lps
    next_half = 1 - (number & 1)
    this, following = (found.orders.reshape(2, lps)[half] for half in (1 - next_half, next_half))
    following[:] = order
    found.costs[:] = costs
    found.turns.taken = 3
    team = tm.team_in(np.zeros(tm.team_words(1), np.int64))
    context = tm.WorkerContext(team, found, np.zeros(lps, np.int64), no_batches([]))
    worker_kernels.plan(Directory(context).address, lps, number)
    assert following.tolist() == sorted(order, key=lambda lp: -costs[lp])
    assert this.tolist() == list(range(lps))
    assert found.turns.taken.reshape(2, lps)[next_half].tolist() == [0] * lps
    assert found.turns.taken.reshape(2, lps)[1 - next_half].tolist() == [3] * lps


@quick
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 1), st.data())
def test_workers_take_every_lp_once_and_their_own_first(lps, threads, number, data):
    first = 5
    found = tm.new_pool(lps, first, threads)
    assert found.worker.tolist() == sorted(found.worker.tolist())
    assert set(found.worker.tolist()) <= set(range(first, first + threads))
    found.worker[:] = data.draw(st.lists(st.integers(first, first + threads - 1), min_size=lps, max_size=lps))
    order = data.draw(st.permutations(range(lps)))
    found.orders.reshape(2, lps)[number] = order
    team = tm.team_in(np.zeros(tm.team_words(1), np.int64))
    context = Directory(tm.WorkerContext(team, found, np.zeros(lps, np.int64), no_batches([])))
    owner, left = found.worker.tolist(), list(order)
    while left:
        worker = data.draw(st.integers(first, first + threads - 1))
        lp = worker_kernels.next_lp(context.address, lps, number, worker)
        own = [each for each in left if owner[each] == worker]
        assert lp == (own or left)[0], "the first in the order"
        assert found.worker[lp] == worker
        owner[lp] = worker
        left.remove(lp)
    assert worker_kernels.next_lp(context.address, lps, number, first) == -1


def test_what_different_workers_write_lies_on_pairs_of_cache_lines_of_its_own():
    lines = {name: TeamState.place(name) // LINE_WORDS for name in TeamState.declared if "before" not in name}
    of_the_first_alone = {"soonest_ps", "hops", "rows_left", "all_hops", "all_rows_left"}
    of_the_first_alone |= {"said_ps", "exact", "agreed", "said_snapshot_point", "signs", "look_hops"}
    published = {"published", "begin_ps", "snapshot_point"}
    groups = [{name for name, line in lines.items() if line == each} for each in range(4)]
    assert groups == [{"cell_ps", "window_ps"}, {"abort", "asked"}, published, of_the_first_alone]
    team, pool = tm.team_in(np.zeros(tm.team_words(3), np.int64)), tm.new_pool(2)
    begins = [team.state.base.ctypes.data, team.workers.ctypes.data, team.workers.ctypes.data + 8 * 3 * 2 * LINE_WORDS]
    assert [(begin - team.words.ctypes.data) // 8 for begin in begins] == [0, 4 * LINE_WORDS, len(team.words)]
    assert len(pool.turns) == 2 * 2
    assert [rows.strides for rows in (team.workers, pool.turns)] == [(8 * 2 * LINE_WORDS,), (8 * LINE_WORDS,)]


def test_words_that_are_read_atomically_are_those_of_the_rows():
    team, pool = tm.team_in(np.zeros(tm.team_words(3), np.int64)), tm.new_pool(2)
    team.words[[tm.ABORT, tm.PUBLISHED, tm.ARRIVED + 2 * Worker.words]] = 1, 2, 3
    assert (team.state.abort, team.state.published, team.workers.arrived.tolist()) == (1, 2, [0, 0, 3])
    pool.words[[tm.TAKEN, tm.TAKEN + LpTurn.words]] = 4, 5
    assert pool.turns.taken.tolist() == [4, 5, 0, 0]


def fullest(parts, owner):
    """Run with a look at all outboxes after every window: the most packets of each (sender, receiver), and rooms."""
    sim = build_world(*parts, owner)
    most = {(lp.part.number, other): 0 for lp in sim.lps for other in lp.part.neighbours}

    def look(_):
        for lp in sim.lps:
            at = lp.part.outbox_at()
            for index, other in enumerate(lp.part.neighbours):
                counts = lp.world.net.outbox[at[2 * index : 2 * index + 2]]
                most[lp.part.number, other] = max(most[lp.part.number, other], int(counts.max()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "WINDOWS_OF_A_PAUSE", 0)
        run(sim, look)
    return most, {
        (lp.part.number, other): room
        for lp in sim.lps
        for other, room in zip(lp.part.neighbours, lp.part.rooms, strict=True)
    }


@quick
@given(divided())
def test_outboxes_have_room(drawn):
    *parts, owner = drawn.parts()
    try:
        most, rooms = fullest(parts, owner)
    except RunError:
        return
    assert all(most[pair] <= room for pair, room in rooms.items())


@pytest.mark.parametrize(
    "spec", ["ring:npus=2,rate=100Gbps,delay=3us", "ring:npus=2,rate=100Gbps,delay=0ns", "torus:sizes=2x2,delay=1us"]
)
@pytest.mark.parametrize("cut_through", [False, True])
def test_what_npus_send_fills_an_outbox_for_one_window(spec, cut_through):
    """Thousands of empty messages, one smallest packet each, back to back: no port sends what is due later."""
    graph = build(spec)
    traces = Traces(graph.npus)
    for _ in range(1500):
        traces.message(0, 1, 0)
    parts = graph, traces.program(), Settings(window_bytes=1 << 22, mtu_bytes=256, cut_through=cut_through)
    most, rooms = fullest(parts, np.arange(graph.nodes))
    assert all(most[pair] <= room for pair, room in nonempty(rooms.items()))
    filled = FAR_WINDOWS * most[0, 1] / (rooms[0, 1] - 2)
    assert filled >= 0.4 if graph.npus > 2 else filled >= 0.95
    assert max(most.values()) > 0


@pytest.mark.parametrize("cut_through", [False, True])
def test_outboxes_have_little_more_room_than_what_the_wire_can_carry(cut_through):
    """Smallest packets from seven NPUs queue in a switch before the link to the eighth: halves are full but for two."""
    graph = build("switch:npus=8,rate=100Gbps,delay=3us")
    traces = Traces(graph.npus)
    for sender in range(1, graph.npus):
        for _ in range(400):
            traces.message(sender, 0, 0)
    parts = graph, traces.program(), Settings(window_bytes=1 << 22, mtu_bytes=256, cut_through=cut_through)
    most, rooms = fullest(parts, (np.arange(graph.nodes) > 0).astype(int))
    assert most[1, 0] <= rooms[1, 0]
    assert most[1, 0] >= 0.95 * (rooms[1, 0] - 2)


WHOLE = {"routes.home", "routes.attach", "routes.digit", "routes.size"}
"""What every LP holds of the whole fabric: where each destination is."""
FIXED = {"qps.flow_out", "qps.flow_in", "net.link_class", "net.link_classf", "net.const", "net.ctl", "net.count"}
"""Of one size in every LP; pages of the flow records are taken when they are first written."""
OF_THE_CUT = {"net.outbox", "net.out_at", "net.in_at", "net.ghost"}
"""Grow with the links between LPs."""
OF_THE_PROGRAM = {"trace", "plans"}
"""Shared by the LPs of one process; a rank's program has its own traces only."""


def bytes_of(world):
    """Bytes of an LP's arrays by name, without those of jobs: the LPs of a process share who the NPUs are."""
    return {
        f"{part}.{name}": array.nbytes
        for part, arrays in world._asdict().items()
        if part not in OF_THE_PROGRAM
        for name, array in arrays._asdict().items()
        if name != "jobs"
    }


def dividing(world):
    """Bytes of what is divided among LPs: all but the above and the room for one batch of the busiest node, twice."""
    reserve = 2 * int(world.net.const.reserve_blocks) * (s.BLOCK_RECORDS * PacketRecord.dtype.itemsize + 16)
    kept = WHOLE | FIXED | OF_THE_CUT
    return (
        sum(size for name, size in bytes_of(world).items() if name not in kept and not name.startswith("inbox.b"))
        - reserve
    )


@pytest.mark.parametrize(
    "spec", ["fat-tree:k=16", "leaf-spine:npus=1024,hosts_per_leaf=32", "torus:sizes=32x32", "rail-optimised:npus=1024"]
)
def test_memory_is_divided(spec):
    graph, program = build(spec), pairs_program(permutation(1024, seed=1), 1_000_000)
    alone = build_world(graph, program, Settings()).lps[0].world
    for lps in (2, 4):
        sim = build_world(graph, program, Settings(), partition.partition(graph, lps).owner)
        assert max(dividing(lp.world) for lp in sim.lps) <= 1.35 * dividing(alone) / lps
        for lp in nonempty(sim.lps):
            found, before = bytes_of(lp.world), bytes_of(alone)
            assert all(found[name] == before[name] for name in WHOLE)
            assert found["net.outbox"] <= sum(2 * (40 * room + 128) for room in lp.part.rooms)


def test_npus_without_traces_take_no_rows():
    graph = build("switch:npus=8")
    sim = build_world(graph, collective_program("all-reduce", 4, 9000), Settings(), np.array([0] * 4 + [1] * 5))
    assert sim.lps[1].row_ptr.tolist() == [0] * 5
    assert len(sim.lps[1].world.rows.state) == 1
