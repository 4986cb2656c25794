"""Random fabrics, programs and owners: any division gives what one LP gives, and what the naive simulator gives."""

from collections import Counter
from contextlib import contextmanager
from functools import partial

import pytest
from hypothesis import given

from nadi.pdes import RunError, build_world, run, workers
from nadi.pdes.core import declared, state as s
from nadi.pdes.core.rows import RowsOf
from nadi.pdes.parallel import Layout, Processes, run_divided
from tests.budgets import bounded
from tests.parallel.fingerprint import differing, fingerprint
from tests.parallel.random_runs import divided
from tests.pdes.compare import by_hand, differences
from tests.pdes.naive import GaveUpError
from tests.pdes.test_parts import shrunk

GAVE_UP = "a queue pair gave up"


def outcome(simulate, *arguments, **options):
    """Fingerprint of a run, or that it gave up."""
    try:
        return fingerprint(simulate(*arguments, **options))
    except RunError as error:
        if "unacknowledged after" not in str(error):
            raise
        return GAVE_UP


def agree(found, wanted):
    """Both gave up, or nothing differs."""
    if GAVE_UP in (found, wanted):
        assert found == wanted
    else:
        assert differing(found, wanted) == []


@bounded(90)
@given(divided())
def test_any_owner_gives_the_same(drawn):
    *parts, owner = drawn.parts()
    wanted = outcome(run, build_world(*parts))
    for threads in (1, 2):
        agree(outcome(run, build_world(*parts, owner), threads=threads), wanted)


@bounded(60)
@given(divided())
def test_any_owner_gives_what_the_naive_simulator_gives(drawn):
    *parts, owner = drawn.parts()
    sim = build_world(*parts, owner)
    try:
        results = run(sim, threads=2)
    except RunError as error:
        assert "unacknowledged after" in str(error)  # noqa: PT017 - both may give up
        const = sim.lps[0].world.net.const
        settled = {"window_packets": int(const.window_packets), "rto_ps": int(const.rto_ps)}
        with pytest.raises(GaveUpError):
            by_hand(*parts, _Settled(settled))
        return
    assert differences(results, by_hand(*parts, results)) == []


class _Settled:
    """All that the naive simulator asks of results."""

    def __init__(self, settled):
        self.settled = settled


@bounded(20)
@given(divided())
def test_any_owner_gives_the_same_in_processes(drawn):
    *parts, owner = drawn.parts()
    if owner.max() > 0:
        graph, program, settings = parts
        forked = outcome(run_divided, Layout(graph, settings, owner), program, settings, Processes(2))
        agree(forked, outcome(run, build_world(*parts)))


PLACES = ("taking in", "sending on to other LPs", "in a cell")


def place(ctl, const):
    """Where a window was interrupted."""
    if ctl.in_list < const.lists:
        return PLACES[0]
    return PLACES[2] if ctl.cell_open else PLACES[1]


def rows_wanted(usual, world, pool, rows):
    """Room for no more blocks than are asked for, so that the next block is short again; other pools as usual."""
    if pool.table is not RowsOf.BLOCK:
        return usual(world, pool, rows)
    return rows + max(1, int(world.net.const.reserve_blocks - world.net.ctl.free_blocks))


@contextmanager
def stingy(seen):
    """Pools grow by as little as can be; what was short and where is counted."""
    usual = workers.grow

    def grow(world):
        ctl = world.net.ctl
        seen[int(ctl.need), place(ctl, world.net.const)] += 1
        return usual(world)

    patch = pytest.MonkeyPatch()
    patch.setattr(declared, "_rows_wanted", partial(rows_wanted, declared._rows_wanted))
    patch.setattr(workers, "grow", grow)
    patch.setattr(workers, "WINDOWS_OF_A_PAUSE", 0)
    try:
        yield
    finally:
        patch.undo()


def small(parts, owner):
    """Worlds of LPs, every pool as small as can be."""
    sim = build_world(*parts, owner)
    for lp in sim.lps:
        lp.world = shrunk(lp.world)
    return sim


@pytest.mark.slow
def test_any_owner_gives_the_same_however_often_windows_are_interrupted():
    seen = Counter()

    @bounded(180)
    @given(divided())
    def interrupted(drawn):
        *parts, owner = drawn.parts()
        wanted = outcome(run, build_world(*parts))
        shown = []
        with stingy(seen):
            for threads in (1, 2):
                shown.clear()
                agree(outcome(run, small(parts, owner), shown.append, threads=threads), wanted)
        if wanted != GAVE_UP:
            assert [each.now_ps for each in shown] == sorted(each.now_ps for each in shown)
            assert [each.packet_hops for each in shown] == sorted(each.packet_hops for each in shown)
            assert len(shown) > 1 or wanted["count packet_hops"] < 100

    interrupted()
    least = {PLACES[0]: 20, PLACES[1]: 1, PLACES[2]: 20}  # what packets in a cell need has grown when they are sent on
    for where, times in least.items():
        assert seen[s.NEED_BLOCKS, where] >= times, seen
    for need in (s.NEED_MSGS, s.NEED_QPS, s.NEED_RXQPS, s.NEED_INSTS):
        assert seen[need, PLACES[2]] >= 20, seen
