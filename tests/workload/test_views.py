"""Orders and parts of lanes: what hand-made schedules with them do, and who is told when they cannot be."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.workload import WorkloadError
from nadi.workload.collectives.plans.plan import Lane, each_its_own, everyone_alike, lines
from nadi.workload.collectives.schedules.checks import checked
from nadi.workload.collectives.schedules.oracle import OracleError, check
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.collectives.schedules.sends import buffers, unpack
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.workload.alpha_beta import Network
from tests.workload.handmade import grid, two_rings
from tests.workload.test_schedules import reasons

GOOD = {
    "two rings": two_rings(5),
    "two rings of two": two_rings(2),
    "2x3": grid(2, 3),
    "3x2": grid(3, 2),
    "4x4": grid(4, 4),
}


@pytest.mark.parametrize("name", GOOD)
def test_hand_made_schedules_do_what_they_promise(name):
    schedules = pack([GOOD["2x3"], checked(GOOD[name], name)])  # views of the second stand behind those of the first
    for seed in range(5):
        check("all-reduce", schedules, 1, seed)


def with_view(plans, number, **changes):
    views = list(plans.views)
    views[number] = views[number]._replace(**changes)
    return plans._replace(views=tuple(views))


WRONG_PART = np.arange(6)[::-1] % 3
CROSSED = lines([[0, 3], [1, 5], [2, 4]])


@pytest.mark.parametrize(
    "plans",
    [
        grid(2, 3, part=np.zeros(6, int)),
        grid(2, 3, part=WRONG_PART),
        with_view(grid(2, 3), 1, member=CROSSED.member, at=CROSSED.at),
        with_view(two_rings(5), 1, at=two_rings(5).views[0].at),
        two_rings(5)._replace(attributes=(tuple(a._replace(part=0) for a in two_rings(5).attributes[0]),)),
        grid(2, 3)._replace(attributes=(tuple(a._replace(chunks=6) for a in grid(2, 3).attributes[0]),)),
    ],
)
def test_a_wrong_part_or_order_is_found(plans):
    with pytest.raises(OracleError):
        check("all-reduce", pack([plans]), 0)


def test_peers_and_chunks_are_counted_along_the_line():
    lane = Lane(view=0).step(send_to=1, send=1, receive_from=2, receive=5)
    made = unpack(pack([everyone_alike(6, 3, [lane], views=[lines([[0, 2, 4], [5, 3, 1]])], regions=2)]), 0)
    steps = [own[0][0] for own in made]
    assert [(s.send_peer, s.recv_peer) for s in steps] == [(2, 4), (5, 3), (4, 0), (1, 5), (0, 2), (3, 1)]
    assert [(s.send_chunk, s.recv_chunk) for s in steps] == [(1, 5), (0, 4), (2, 3), (2, 3), (0, 4), (1, 5)]


def members_of(draw):
    size, count = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    return draw(st.permutations(range(size * count))), size


@st.composite
def cut_buffers(draw):
    order, size = members_of(draw)
    inner = draw(st.integers(1, 4))
    own = draw(st.lists(st.integers(0, inner - 1), min_size=len(order), max_size=len(order)))
    view = lines(np.reshape(order, (-1, size)), own, inner)
    parts, chunks = draw(st.integers(1, 5)), size * draw(st.integers(1, 4))
    plans = everyone_alike(
        len(order), 1, [Lane(view=0, part=part, parts=parts, chunks=chunks) for part in range(parts)], views=[view]
    )
    return plans, view, draw(st.one_of(st.integers(0, 100), st.integers(0, 2**40)))


@bounded(100)
@given(cut_buffers())
def test_chunks_sum_to_the_part_and_parts_to_the_whole(case):
    plans, view, size_bytes = case
    whole = {}
    for member, own in nonempty(enumerate(buffers(pack([checked(plans, "x")]), 0))):
        for lane, buffer in nonempty(enumerate(own)):
            every = [buffer.bytes(c, 1, size_bytes) for c in range(buffer.chunks)]
            assert sum(every) == buffer.bytes(0, buffer.chunks, size_bytes)
            assert max(every) - min(every) <= 1
            assert sum(every[1:]) == buffer.bytes(1, buffer.chunks - 1, size_bytes)
            part = lane * view.parts + int(view.part[member])
            assert buffer.part == part
            assert whole.setdefault(part, sum(every)) == sum(every)
            begin, end = (p * size_bytes // buffer.parts for p in (part, part + 1))
            assert sum(every) == end - begin


@pytest.mark.parametrize(
    ("plans", "factor"),
    [
        # n-1 steps each way of S/2n in two rings at once, through one port
        (two_rings(4), 2 * 3 * 2 / (2 * 4)),
        # both ways: (c-1)/c along rows, (r-1)/r of 1/c along columns
        (grid(2, 4), 2 * (3 / 4 + 1 / 2 / 4)),
    ],
)
def test_an_idle_network_moves_the_parts_only(plans, factor):
    size, ps_per_byte = 1 << 20, 20.0
    assert Network(pack([plans]), 0, size, 0.0, ps_per_byte).finish_time() == pytest.approx(factor * size * ps_per_byte)


def exchange(*, waits):
    """All-reduce of two: a message into scratch, then added to the buffer, perhaps before the own data is sent."""
    stage = Lane().step(send_to=1, to_lane=1)
    after = (0, 0) if waits else (-1, -1)
    land = Lane().step(receive_from=1, receive=1).copy(1, to=0, reduce=True, after=after)
    return checked(everyone_alike(2, 1, [stage, land], regions=2), "x")


def test_copies_move_and_add_between_regions():
    assert reasons("all-reduce", exchange(waits=True)) == {""}


def test_a_copy_that_comes_too_soon_is_found():
    assert any("promised" in reason for reason in reasons("all-reduce", exchange(waits=False)))


def test_a_copy_of_nothing_is_found():
    with pytest.raises(OracleError, match=r"^member . copies chunk [23], which holds nothing yet$"):
        check("all-reduce", pack([everyone_alike(2, 2, [Lane().copy(2, to=0)], regions=2)]), 0)


VIEW = lines([[0, 1], [2, 3]])


@pytest.mark.parametrize(
    ("plans", "text"),
    [
        (everyone_alike(4, 4, [Lane(view=0)]), "a lane with view 0, expected one of 0 in relative plans"),
        (each_its_own(1, [[Lane(view=0)]] * 4), "a lane with view 0, expected one of 0 in relative plans"),
        (everyone_alike(6, 6, [Lane(view=0)], views=[VIEW]), "a view of 4 members, expected all 6"),
        (everyone_alike(4, 4, [Lane(part=2, parts=2)]), "a lane with part 2 of 2 in None chunks, expected one"),
        (everyone_alike(4, 4, [Lane(chunks=6)]), "6 chunks, expected 1 or a multiple of the members"),
        (
            everyone_alike(4, 4, [Lane(view=0, chunks=3)], views=[VIEW]),
            "3 chunks, expected 1 or a multiple of the 2 members of a line",
        ),
        (
            everyone_alike(4, 4, [Lane(view=0).step(send_to=2)], views=[VIEW]),
            "send peer 2, expected another of the members",
        ),
        (
            everyone_alike(4, 4, [Lane().step(receive_from=1, receive=4)]),
            "recv of a chunk that is not there, expected 0 .. 3",
        ),
        (
            everyone_alike(4, 4, [Lane().step(receive_from=1, receive=3, receive_count=2)], regions=2),
            "recv of a chunk that is not there, expected 0 .. 7",
        ),
        (everyone_alike(4, 4, [Lane().copy(4, to=0)]), "send of a chunk that is not there, expected 0 .. 3"),
        (everyone_alike(4, 4, [Lane()], regions=0), "0 regions, launch after 0 ps; expected 1 and 0 or more"),
        (each_its_own(0, [[Lane()], [Lane()]]), "2 plans and 0 chunks, expected one plan or one each"),
        (everyone_alike(4, 6, [Lane()]), "6 chunks, expected 1 or a multiple of the members"),
        (everyone_alike(4, 4, [Lane().step(send_to=4)]), "send peer 4, expected another of the members"),
        (everyone_alike(4, 4, [Lane().step(receive_from=0)]), "recv peer 0, expected another of the members"),
        (everyone_alike(4, 4, [Lane().step(send_to=1, send=4)]), "send of a chunk that is not there, expected 0 .. 3"),
        (
            everyone_alike(4, 4, [Lane().step(receive_from=1, receive=3, receive_count=2)]),
            "recv of a chunk that is not there, expected 0 .. 3",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused(plans, text):
    assert refused(WorkloadError, checked, plans, "algorithm x") == f"algorithm x: {text}"


def test_a_wire_factor_of_nothing_is_refused():
    with pytest.raises(WorkloadError, match="expected a wire factor above 0"):
        checked(everyone_alike(4, 4, [Lane(wire=(0, 1))]), "algorithm x")


def test_an_output_that_is_not_there_is_refused():
    plans = everyone_alike(4, 4, [Lane()])
    with pytest.raises(WorkloadError, match=r"^x: 1 regions, launch after 0 ps; expected 2 and 0 or more$"):
        checked(plans, "x", "all-to-all")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([[0, 1], [2]],), "view: lines of unlike lengths, expected equal ones"),
        (([0, 1],), "view: members in 1 dimensions, expected a list of lines of members"),
        (([[0, 1], [1, 2]],), "view: 4 members in lines, expected each of 0 .. 3 once"),
        (([[0, 1]], [0, 2], 2), "view: parts of 2 members, expected one of 0 .. 1 for each of 2"),
    ],
)
def test_lines_that_are_none_are_refused(arguments, text):
    assert refused(WorkloadError, lines, *arguments) == text
