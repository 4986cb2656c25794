"""Message batches between teams: what is put in comes out where it belongs, and both ends expect messages of one
length."""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.pdes import RunError, SharedBuffer, congestion
from nadi.pdes.construction import build_lps
from nadi.pdes.construction.layout import Outboxes
from nadi.pdes.core.jit import Directory, row_of
from nadi.pdes.core.packet import FLAG_ACK, FLAG_LAST, HEADER_WORDS, flags, number_of
from nadi.pdes.core.rows.run import BatchShape
from nadi.pdes.parallel import Layout
from nadi.pdes.workers import batches as packing, rounded
from nadi.pdes.workers.other_teams import BatchExchange
from nadi.pdes.workers.processes import partners_of
from nadi.pdes.workers.team import ALL, RECEIVED, RECEIVING, WorkerContext, new_pool, team_in, team_words
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.parallel.random_runs import divided
from tests.pdes import worker_kernels

BEGIN_PS = 12_345_678_901


def in_teams(layout, program, settings, team_of_lp):
    """A Simulation whose LPs share a list for each other team."""
    parts = [layout.part(number) for number in range(layout.lps)]
    for part in parts:
        part.join_teams(layout.graph, layout.owner, team_of_lp)
    return build_lps(layout, program, settings, parts, Outboxes(parts))


def filled(sim, team_of_lp, half, random):
    """Fill halves of lists for other teams at random; links of the packets, and their records as rows.

    Some packets arrive soon after the window begins and some late; some have a tag.
    """
    sent_over, sent = [], [np.zeros((0, sim.lps[0].part.crossing_words), np.int64)]
    for lp in sim.lps:
        part, outbox = lp.part, lp.world.net.outbox
        at, words = part.outbox_at(), part.crossing_words
        name_of = dict(zip(part.links.tolist(), part.far(sim.graph).tolist(), strict=True))
        is_far = team_of_lp[part.neighbours] != team_of_lp[part.number]
        for number in np.unique(part.list_of[is_far]).tolist():
            links = []
            for place in np.flatnonzero(part.list_of == number).tolist():
                count = int(random.integers(0, part.rooms[place] + 1))
                links += random.choice(part.links_out[place], count).tolist()
            random.shuffle(links)
            rows = random.integers(0, 1 << 60, (len(links), words))
            rows[:, 4] = [name_of[link] for link in links]
            soon, tagged = random.integers(0, 4, len(rows)) > 0, random.integers(0, 4, len(rows)) == 0
            rows[:, 0] = BEGIN_PS + np.where(soon, random.integers(0, 1 << 30, len(rows)), rows[:, 0])
            rows[:, 3] *= tagged
            begin = at[2 * number + half]
            outbox[begin] = len(rows)
            outbox[begin + HEADER_WORDS : begin + HEADER_WORDS + rows.size] = rows.ravel()
            sent_over += links
            sent.append(rows)
    return np.array(sent_over, np.int64), np.concatenate(sent)


def unpacked_of(batches, place, lp):
    """What an LP finds after its packets are unpacked, as `filled` returns it; place: its own in its process."""
    net, words, others = lp.world.net, lp.part.crossing_words, len(batches.outgoing)
    came, over = [np.zeros((0, words), np.int64)], []
    columns = (column[place * others :][:others].tolist() for column in (batches.half_at, batches.list_to))
    for at, number in zip(*columns, strict=True):
        assert (at < 0) == (number < 0)
        if number >= 0:
            count = int(batches.halves[at])
            came.append(batches.halves[at + HEADER_WORDS :][: count * words].reshape(count, words))
            over += number_of(net.tx.meta[net.ghost[number] + came[-1][:, 4]]).tolist()
    return np.array(over, np.int64), np.concatenate(came)


def as_tuples(links, rows):
    """Packets in some order: the link of each, and the words of its row other than what names the link."""
    return sorted(zip(links.tolist(), *np.delete(rows, 4, axis=1).T.tolist(), strict=True))


def received(rows, has_tags):
    """Return rows of packets without the tags that batches leave out, those in the middle of messages."""
    if not has_tags:
        rows[flags(rows[:, 1]) & (FLAG_ACK | FLAG_LAST) == 0, 3] = 0
    return rows


def new_team(workers):
    return team_in(np.zeros(team_words(workers), np.int64))


class Teams:
    """LPs of a Simulation as teams of one process each."""

    def __init__(self, sim, layout, team_of_lp):
        self.sim, self.team_of_lp = sim, team_of_lp
        self.teams = int(team_of_lp.max()) + 1
        packets = sum(sum(lp.part.rooms) for lp in sim.lps)
        room = rounded(packing.batch_words(packing.MOST_RECORDS * packets, packing.record_words(sim.lps[0].part)))
        others = self.teams - 1
        self.lps = [[lp for lp in sim.lps if team_of_lp[lp.part.number] == team] for team in range(self.teams)]
        self.batches = [
            packing.batches_of(
                [lp.part for lp in lps],
                layout,
                team_of_lp,
                team,
                np.zeros(3 * others * room, np.int64),
                room * np.arange(others),
                room * np.arange(others, 3 * others),
                dict(enumerate(range(others))),
            )
            for team, lps in enumerate(self.lps)
        ]

    def context(self, team):
        addresses = np.array([lp.address for lp in self.lps[team]], np.int64)
        return Directory(WorkerContext(new_team(1), new_pool(1), addresses, self.batches[team]))

    def carry(self, number):
        """As MPI would: what a batch holds, and no more."""
        for sender, mine in enumerate(self.batches):
            for receiver, other in enumerate(self.batches):
                if sender != receiver:
                    begin = mine.outgoing[receiver - (receiver > sender)]
                    into = other.incoming[2 * (sender - (sender > receiver)) + (number & 1)]
                    used = packing.batch_words(int(mine.words[begin]), int(mine.shape.record_words))
                    mine.headers[begin // packing.BATCH_HEADER].begin_ps = BEGIN_PS
                    other.words[into : into + used] = mine.words[begin : begin + used]


@pytest.mark.parametrize(("control", "words", "has_tags"), [("", 5, False), ("swift", 5, True), ("hpcc", 21, False)])
@bounded(10)
@given(divided(), st.integers(2, 4), st.integers(0, 1), st.integers(0, 1 << 30))
def test_what_is_put_in_comes_out_where_it_belongs(control, words, has_tags, drawn, teams, number, seed):
    """Packets without tags but for some, with tags, and with telemetry."""
    graph, program, settings, owner = drawn.parts()
    if control:
        settings = replace(settings, congestion_control=congestion.control(control), switch=SharedBuffer())
    layout = Layout(graph, settings, owner)
    if layout.lps < teams:
        return
    team_of_lp = np.arange(layout.lps) * teams // layout.lps
    if seed % 2:  # as with ranks that are dealt out to nodes in turn
        team_of_lp = np.arange(layout.lps) % teams
    try:
        sim = in_teams(layout, program, settings, team_of_lp)
    except RunError:
        return
    assert {(lp.part.crossing_words, bool(lp.part.has_tags)) for lp in sim.lps} == {(words, has_tags)}
    links, rows = filled(sim, team_of_lp, number, np.random.default_rng(seed))
    found = Teams(sim, layout, team_of_lp)
    for team, lps in enumerate(found.lps):
        context = found.context(team)
        for place in reversed(range(len(lps))):
            worker_kernels.packed(context.address, place, number, BEGIN_PS)
    found.carry(number)
    wanted, goes_to = received(rows.copy(), has_tags), layout.owner[graph.link_dst[links]]
    for team, lps in nonempty(enumerate(found.lps)):
        batches, context = found.batches[team], found.context(team)
        for place, lp in nonempty(enumerate(lps)):
            worker_kernels.unpacked(context.address, place, number + 1)
            over, came = unpacked_of(batches, place, lp)
            is_own = goes_to == lp.part.number
            assert as_tuples(over, came) == as_tuples(links[is_own], wanted[is_own])
    records = sum(int(each.words[each.outgoing].sum()) for each in found.batches)
    shape = found.batches[0].shape
    late = int(((rows[:, 0] - BEGIN_PS >> shape.time_bits) != 0).sum())
    tagged = int((rows[:, 3] != 0).sum())
    assert len(rows) + late <= records <= len(rows) + late + tagged * (1 - shape.has_tags)


def test_a_team_alone_sends_nothing():
    batches = packing.no_batches([None, None])
    assert len(batches.outgoing) == 0
    assert len(batches.list_to) == 0


@given(st.integers(0, 900), st.integers(4, 9))
@bounded(50)
def test_a_message_holds_what_is_used_of_a_batch(records, words):
    """No word more or less, but for marks: one of eight words in each block."""
    last = records - 1
    used = packing.BATCH_HEADER if records == 0 else packing.word_at(0, last, words)[1] + 1 + words
    length = packing.batch_words(records, words)
    assert length == used
    batches = packing.no_batches([None])._replace(shape=row_of(BatchShape, record_words=words))
    context = Directory(WorkerContext(new_team(1), new_pool(1), np.zeros(1, np.int64), batches))
    assert worker_kernels.length_of_batch(context.address, records) == length


class Sent(NamedTuple):
    """A message to another team."""

    way: str
    other: int
    words: int
    tag: int


class Receive(NamedTuple):
    """A persistent request."""

    mpi: "Messages"
    other: int
    words: int
    tag: int

    def Cancel(self):  # noqa: N802 - of mpi4py
        self.mpi.called_off.append(self)

    def Wait(self):  # noqa: N802 - of mpi4py
        assert self in self.mpi.called_off

    def Free(self):  # noqa: N802 - of mpi4py
        self.mpi.freed.append(self)


class Messages:
    """Stands for MPI among teams of one rank that send nothing: counts what is started."""

    INT64_T = "int64"
    __file__ = "/no/library/of/functions.so"

    MIN = "least"

    def __init__(self):
        self.started = []
        self.Prequest = self.Request = self
        self.called_off, self.freed = [], []

    def allreduce(self, value, how):
        assert how == self.MIN
        return value - 1

    def Isend(self, buffer, other, tag):  # noqa: N802 - of mpi4py
        self.started.append(Sent("to", other, len(buffer[0]), tag))
        return self.started[-1]

    def Recv_init(self, buffer, other, tag):  # noqa: N802 - of mpi4py
        return Receive(self, other, len(buffer[0]), tag)

    def Startall(self, requests):  # noqa: N802 - of mpi4py
        self.started += requests

    def Waitall(self, requests):  # noqa: N802 - of mpi4py
        assert all(request in self.started for request in nonempty(requests))


def exchanged(answers, others, windows):
    """What a process starts in each window that answers for so many of other teams, and which MPI it was."""
    room = packing.batch_words(1000, 4)
    words = np.zeros(3 * others * room, np.int64)
    batches = packing.no_batches([None] * 16)._replace(
        words=words,
        headers=packing.headers_of(words),
        outgoing=room * np.arange(others),
        incoming=room * np.arange(others, 3 * others),
        shape=row_of(BatchShape, record_words=4),
        answers=np.array(list(answers)),
        ranks=np.array(list(answers.values())),
    )
    mpi, team = Messages(), new_team(16)
    worker = team.workers[3]
    exchange = BatchExchange(mpi, mpi, mpi, team, 3, batches, np.full(3 * others, room))
    counts = [len(mpi.started)]
    for window in nonempty(range(windows)):
        packing.headers_of(words).records[batches.outgoing // packing.BATCH_HEADER] = window
        worker.window, worker.stage = window, RECEIVING
        exchange()
        assert worker.stage == RECEIVED
        counts.append(len(mpi.started))
    exchange.close()
    return counts, mpi


def test_there_is_one_message_each_way_between_two_teams_however_many_lps():
    windows, answers = 7, {0: 10, 1: 12, 2: 13, 3: 14}
    counts, mpi = exchanged(answers, 4, windows)
    assert counts[0] == 4
    assert [after - before for before, after in pairwise(counts)] == [8] * windows
    assert {each.other for each in mpi.started} == {10, 12, 13, 14}
    lengths = [each.words for each in mpi.started if isinstance(each, Sent)]
    assert lengths == [packing.batch_words(window, 4) for window in range(windows) for _ in range(4)]
    assert sorted(each.other for each in mpi.called_off) == [10, 12, 13, 14]  # of the window that does not come
    assert len(mpi.freed) == 8


def test_a_process_trades_with_the_teams_for_which_it_answers():
    counts, mpi = exchanged({2: 7}, 4, 3)
    assert counts == [1, 3, 5, 7]
    assert {each.other for each in mpi.started} == {7}


def test_once_all_is_done_teams_agree_on_the_earliest_event():
    mpi, team = Messages(), new_team(1)
    batches = packing.no_batches([None])
    exchange = BatchExchange(mpi, mpi, mpi, team, 0, batches, np.zeros(0, np.int64))
    team.workers[0].window, team.workers[0].stage, team.state.soonest_ps = 4, ALL, 1000
    exchange()
    assert (team.state.soonest_ps, team.state.agreed, mpi.started) == (999, 5, [])


@bounded(50)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=7))
def test_ranks_share_the_other_teams_among_them_and_each_pair_agrees_on_two_ranks(sizes):
    ends = np.cumsum(sizes)
    ranks = [list(range(end - size, end)) for end, size in zip(ends.tolist(), sizes, strict=True)]
    talks = {}
    for here, members in nonempty(enumerate(ranks)):
        shares = [partners_of(ranks, here, place) for place in range(len(members))]
        assert sorted(other for share in shares for other in share) == list(range(len(sizes) - 1))
        lengths = [len(share) for share in shares]
        assert max(lengths) - min(lengths) <= 1
        for rank, share in zip(members, shares, strict=True):
            talks |= {(rank, partner): (here, other + (other >= here)) for other, partner in share.items()}
    assert len(talks) == len(sizes) * (len(sizes) - 1)
    for (rank, partner), (here, there) in talks.items():
        assert talks[partner, rank] == (there, here)
