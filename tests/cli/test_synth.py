"""`nadi trace synth`: what is generated is valid, new, and what was asked for; what was learned is more than counts."""

import dataclasses
import random
from collections import Counter
from itertools import permutations

import numpy as np
import pytest

import et
from et.synthesis import bits_per_event, distances, generate, learn, stream_of, wanted_of
from et.synthesis.classes import FIRST, MOST_CLASSES, NOTHING, key_of, valued
from et.synthesis.counts import Counts
from et.synthesis.layout import SetLayout, layout_of
from et.synthesis.novelty import Originals
from et.synthesis.parts import events_in, parts_bits, parts_of, stretched
from et.synthesis.sampling import events_of
from et.synthesis.schedule import Schedule
from et.synthesis.search import streams_found
from et.synthesis.streams import COLLECTIVE, COMPUTE, RECEIVE, SEND, Operation, Stream, StreamEvent, nodes_of
from et.synthesis.tokens import encode, words_of
from et.synthesis.writing import families_of, traces_of
from tests.nonempty import nonempty
from workload import TraceSet, read_set, write_set
from workload.compute import ComputeTimes, find_gpu
from workload.generators.models.model import Model
from workload.generators.training import parallel_plan
from workload.generators.training.generator import generate as training_step
from workload.program.recorded import with_recorded_times

PLANS = ("tp2,pp2,dp2,gb8", "tp4,pp1,dp2,gb8", "tp1,pp4,dp2,gb8", "tp2,pp2,dp1,gb4")
FABRIC = "leaf-spine:leaves=4,hosts_per_leaf=8,spines=4,rate=100Gbps,delay=1us"


def trained(plan, layers=4, hidden=512):
    model = Model(name="m", layers=layers, hidden=hidden, heads=8, vocab=4096, sequence=512)
    traces = training_step(model, parallel_plan(plan))
    times = ComputeTimes(find_gpu("h100"))
    return dataclasses.replace(traces, traces=[with_recorded_times(table, times) for table in traces.traces])


@pytest.fixture(scope="module")
def sets():
    return [trained(plan) for plan in PLANS]


@pytest.fixture
def folders(sets, tmp_path):
    for number, each in enumerate(sets):
        write_set(tmp_path / "sets" / str(number), each)
    return tmp_path / "sets"


@pytest.fixture
def simulated(nadi):
    """Picoseconds of a trace set, collectives at their closed forms."""

    def simulate(traces):
        words = [f"--set={setting}" for setting in (f"workload.traces={traces}", f"topology.spec={FABRIC}")]
        found = nadi("run", *words, "--fidelity", "closed-form", "--quiet", "--json")
        assert found.code == 0, found.err
        return found.document["finish_time_ps"]

    return simulate


def as_set(layout, tables):
    roles = np.arange(layout.roles, dtype=np.int32)
    examples = (roles * layout.width).astype(np.int32)
    return TraceSet(tables, np.repeat(roles, layout.width), examples, families_of(layout))


@pytest.mark.parametrize("plan", [*PLANS, "tp2,pp4,dp2,gb8,vpp2", "tp2,pp1,cp1,dp4,gb8,zero1"])
def test_a_stream_says_what_its_traces_do(simulated, tmp_path, plan):
    """Traces made of the stream of a set take the time of the set, but for the order of what does not wait."""
    original = trained(plan, layers=8)
    stream = stream_of(original)
    assert nodes_of(stream) == sum(map(len, original.traces))
    again = as_set(stream.layout, traces_of(stream.layout, stream.events))
    times = [simulated(write_set(tmp_path / name, each)) for name, each in (("one", original), ("other", again))]
    assert times[1] == pytest.approx(times[0], rel=0.01)


def test_tokens_say_what_events_are(sets):
    """Values come back from their classes to within 5 %, or one byte or microsecond; means are kept."""
    streams = [stream_of(each) for each in sets]
    words = words_of(streams)
    for stream in nonempty(streams):
        rows, table = encode(words, stream), valued(stream).table
        assert len(rows) == len(stream.events) + 1
        assert np.all(rows[:-1] > 0)
        means = [table.get(key_of(event.operation), ()) for event in stream.events]
        pairs = [
            (event.value, own[value - FIRST])
            for event, own, value in zip(stream.events, means, rows[:-1, 1].tolist(), strict=True)
            if value > NOTHING
        ]
        assert len(pairs) == sum(event.value > 0 and event.operation.kind != RECEIVE for event in stream.events)
        assert all(abs(mean - value) <= max(0.05 * value, 1) for value, mean in pairs)
        assert sum(mean for _, mean in pairs) == pytest.approx(sum(value for value, _ in pairs))


def test_classes_of_many_values_are_wider():
    """No more than can be told apart, whatever the values; ascending values are ascending classes."""
    events = [StreamEvent(0, Operation(COMPUTE), round(1.03**step), (1,)) for step in range(100, 500)]
    found = valued(Stream(SetLayout(1, 1, ()), events))
    assert found.tokens == sorted(found.tokens)
    assert MOST_CLASSES / 4 < found.tokens[-1] - FIRST < MOST_CLASSES
    assert len(found.table[Operation(COMPUTE)]) == found.tokens[-1] - FIRST + 1


def test_a_pass_is_told_by_its_layers():
    """A repeated layer is a part, told once; what does not repeat is one part."""
    layer = [(Operation(COMPUTE), 2), (Operation(COLLECTIVE), 2), (Operation(COMPUTE), 3), (Operation(COMPUTE), 4)]
    head = [(Operation(COMPUTE), 5), (Operation(COMPUTE), 6)]
    parts = parts_of([*20 * layer, *head])
    assert len(parts) == 21
    assert len(set(parts[:20])) == 1
    assert events_in(parts) == 82
    unlike = parts_of([(Operation(COMPUTE), FIRST + number) for number in range(82)])
    assert len(unlike) == 1
    assert parts_bits([parts]) < parts_bits([unlike]) / 5
    assert len(parts_of(head)) == 1
    assert events_in(stretched(parts, 2)) == pytest.approx(164, abs=8)
    assert {len(bag) for bag in stretched(parts, 2)} == {4, 2}


@pytest.mark.parametrize("number", [0, 1])
def test_each_pass_has_what_is_asked_for(sets, number):
    """Whatever model draws it: between two messages of a role as many events of each operation, and their sums."""

    def passes(events, roles):
        found = []
        for role in range(roles):
            found.append(Counter())
            for event in events:
                if event.role == role:
                    found[-1][event.operation] += 1
                    found[-1][event.operation.kind, "sum"] += event.value
                    if event.operation.kind in {SEND, RECEIVE}:
                        found.append(Counter())
        return found

    learned = learn(sets, "counts", 1)
    stream = stream_of(sets[number])
    wanted, generator = wanted_of(stream), np.random.default_rng(1)
    found = streams_found(learned.model, learned.words, wanted)[0]
    assert found.is_whole
    events = events_of(found.events, learned.words, wanted, generator)
    roles = stream.layout.roles
    for made, original in nonempty(zip(passes(events, roles), passes(stream.events, roles), strict=True)):
        assert made.keys() == original.keys()
        for key, many in original.items():
            if isinstance(key, Operation):
                assert made[key] == many
            elif key[0] != RECEIVE:
                assert made[key] == pytest.approx(many, rel=0.1, abs=2)


def test_counts_are_witten_and_bell():
    """Probabilities of all tokens are 1 together, and one is worked out by hand."""
    rows = np.array([[1, 1, 1], [2, 1, 1], [1, 1, 1]], np.int32)
    counts = Counts(1, (3, 2, 2))
    counts.learn([rows])
    # After the token 1 of the third field: 2 once and 1 once; before that, 1 twice and 2 once, two kinds of three.
    of_all = (1 + 2 / 3) / (3 + 2)
    assert counts.probability(0, [1], 2) == pytest.approx((1 + 2 * of_all) / (2 + 2))
    assert counts.distribution(0, [1]).sum() == pytest.approx(1)
    assert counts.distribution(0, [1])[2] == pytest.approx(counts.probability(0, [1], 2))


@pytest.mark.parametrize("ranks", [4, 8, 16, 64])
def test_layouts_grow_with_the_ranks(sets, ranks):
    """Tensor parallelism stays 2, data parallelism takes the rest; stages stay two."""
    original = layout_of(sets[0]).layout
    layout = original.scaled(ranks)
    assert (layout.roles, layout.width) == (2, ranks // 2)
    own = {family.slot: family for family in layout.families if family.roles == (1,)}
    assert own["own, inner 0"].size == 2
    assert own["own, outer 0"].size == ranks // 4
    for family in nonempty(layout.families):
        members = [npu for group in layout.groups(family) for npu in group]
        assert len(members) == len(set(members)) == len(family.roles) * layout.width
    with pytest.raises(et.TraceError, match="expected a multiple of 4"):
        original.scaled(6)


def test_values_are_scaled_to_what_is_wanted(sets):
    learned = learn(sets, "counts", 1)
    wanted = learned.wanted[0]
    totals = {key: 7e6 if key == ("micros", 1) else total for key, total in wanted.totals.items()}
    found = generate(learned, wanted._replace(totals=totals), 3)
    assert found.traces[1].duration_micros.sum() == pytest.approx(7e6, rel=0.011)
    assert found.traces[0].duration_micros.sum() == pytest.approx(wanted.totals["micros", 0], rel=0.05)
    sent = sum(int(table.comm_size[table.type == et.NodeType.COMM_SEND_NODE].sum()) for table in found.traces)
    assert sent == pytest.approx(wanted.totals["send", ""], rel=0.011)


def test_what_repeats_an_original_is_found(sets):
    originals = Originals(sets[0].traces)
    table = sets[0].traces[0]
    assert "the name" in originals.found_in([table])
    other_names = et.NameTable.of(f"x{row}".encode() for row in range(len(table)))
    other = dataclasses.replace(table, names=other_names, group_names=("", *("x",) * (len(table.group_names) - 1)))
    assert "in a row" in originals.found_in([other])
    sizes = np.where(other.comm_size > 0, other.comm_size + 1, other.comm_size)
    micros = np.where(other.duration_micros > 0, 7 * other.duration_micros, 0)
    assert not originals.found_in([dataclasses.replace(other, comm_size=sizes, duration_micros=micros)])


@pytest.mark.parametrize("model", ["counts", "network"])
def test_the_command_generates_what_can_run(nadi, simulated, sets, folders, tmp_path, model):
    """Of another number of ranks and nodes; the same seed the same bytes, another seed others."""
    if model == "network":
        pytest.importorskip("torch")
    words = ("--like", folders / "0", "--ranks", 16, "--nodes", 60, "--model", model, "--epochs", 4, "--json")
    outs = [tmp_path / name for name in ("one", "again", "other")]
    for out, seed in zip(outs, (3, 3, 4), strict=True):
        found = nadi("trace", "synth", folders, "-o", out, *words, "--seed", seed)
        assert found.code == 0, found.err
        assert (found.document["npus"], found.document["traces"]) == (16, 2)
    content = [b"".join(file.read_bytes() for file in sorted(out.iterdir())) for out in outs]
    assert content[0] == content[1] != content[2]
    made = read_set(outs[0])
    assert 60 <= sum(map(len, made.traces)) <= 150
    assert not Originals([table for each in sets for table in each.traces]).found_in(made.traces)
    for table in nonempty(made.traces):
        assert np.all(table.dep < np.repeat(np.arange(len(table)), np.diff(table.dep_ptr)))
    sent, taken = (sum(int((table.type == kind).sum()) for table in made.traces) for kind in (5, 6))
    assert sent == taken
    assert simulated(outs[0]) > 0


def test_more_communication_and_longer_computations(nadi, folders, tmp_path):
    """Twice as many bytes and three times as long, of the same events."""
    sums = []
    for name, words in (("plain", ()), ("more", ("--communication", 2, "--compute", 3))):
        out = tmp_path / name
        assert nadi("trace", "synth", folders, "-o", out, "--model", "counts", "--seed", 1, *words).code == 0
        tables = read_set(out).traces
        sizes = [int(table.comm_size[table.comm_size > 100].sum()) for table in tables]
        sums.append((sum(sizes), sum(int(table.duration_micros.sum()) for table in tables)))
    assert sums[1][0] == pytest.approx(2 * sums[0][0], rel=0.01)
    assert sums[1][1] == pytest.approx(3 * sums[0][1], rel=0.05)


@pytest.mark.parametrize("plan", ["tp1,pp2,dp2,gb24", "tp2,pp4,dp1,gb7"])
def test_the_order_of_messages_is_learned(plan):
    """Of numbers of micro-batches that were not among those learned from: as the training step itself has them."""
    streams = [stream_of(trained(each, 8)) for each in (*PLANS, "tp1,pp4,dp2,gb12", "tp1,pp4,dp2,gb16,vpp2")]
    stream = stream_of(trained(plan, 8))
    wanted = wanted_of(stream)
    found = Schedule(streams).plan(wanted.layout.roles, wanted.messages, wanted.passes, wanted.events)
    for role, passes in nonempty(enumerate(found)):
        own = [event.operation for event in stream.events if event.role == role]
        assert [each.after for each in passes[:-1]] == [each for each in own if each.kind in {SEND, RECEIVE}]
        assert sum(each.events + 1 for each in passes) - 1 == pytest.approx(len(own), abs=4)


def test_interleaved_stages_come_in_their_order():
    """Beside other schedules of as many stages, whose messages alone do not tell them apart."""
    plans = (
        "tp1,pp2,dp2,gb8,vpp2",
        "tp1,pp2,dp2,gb16",
        "tp1,pp4,dp1,gb8,vpp2",
        "tp1,pp4,dp1,gb12,vpp2",
        "tp1,pp4,dp1,gb8",
    )
    streams = [stream_of(trained(plan, 8)) for plan in plans]
    schedule = Schedule(streams)
    for stream in streams:
        wanted = wanted_of(stream)
        found = schedule.plan(wanted.layout.roles, wanted.messages, wanted.passes, wanted.events)
        for role, passes in nonempty(enumerate(found)):
            own = [event.operation for event in stream.events if event.role == role]
            assert [each.after for each in passes[:-1]] == [each for each in own if each.kind in {SEND, RECEIVE}]


def test_messages_that_no_schedule_was_learned_for_can_happen(sets):
    """Four stages where only two were seen: every message is sent, then received."""
    wanted = wanted_of(stream_of(sets[2]))
    found = Schedule([stream_of(sets[0])]).plan(4, wanted.messages, wanted.passes, wanted.events)
    left = [[each.after for each in passes if each.after is not None] for passes in found]
    sent = dict.fromkeys(wanted.messages, 0)
    while any(left):
        ready = [
            (role, own.pop(0))
            for role, own in enumerate(left)
            if own and (own[0].kind == SEND or sent[(role + own[0].roles_away) % 4, role] > 0)
        ]
        assert ready
        for role, operation in ready:
            other = (role + operation.roles_away) % 4
            sent[(role, other) if operation.kind == SEND else (other, role)] += 1 if operation.kind == SEND else -1
    assert not any(sent.values())


def test_the_network_learns_more_than_counts():
    """On a model that neither has seen, after seconds of training."""
    pytest.importorskip("torch")
    learned_from = [trained(plan, layers, hidden) for plan in PLANS for layers, hidden in ((4, 512), (8, 256))]
    held_out = [stream_of(trained(plan, 4, 1024)) for plan in PLANS[:2]]
    network, counts = learn(learned_from, "network", 1, epochs=10), learn(learned_from, "counts", 1)
    assert sum(bits_per_event(network, held_out)) < 0.8 * sum(bits_per_event(counts, held_out))
    made = generate(network, wanted_of(held_out[1]), 1)
    assert all(0 <= value < 10 for value in nonempty(distances(made.traces, learned_from[2].traces).values()))


def test_distances_against_closed_forms(sets):
    """Nothing from itself; an octave where all is twice as large."""
    tables = sets[0].traces
    assert all(value == pytest.approx(0) for value in nonempty(distances(tables, tables).values()))
    twice = [
        dataclasses.replace(
            table,
            comm_size=np.where(table.comm_size > 0, 2 * table.comm_size, table.comm_size),
            duration_micros=4 * table.duration_micros,
        )
        for table in tables
    ]
    found = distances(twice, tables)
    assert found["sizes (Wasserstein, octaves)"] == pytest.approx(1)
    assert found["durations (Wasserstein, octaves)"] == pytest.approx(2)
    assert found["node kinds (JS, bits)"] == pytest.approx(0)
    colls = [dataclasses.replace(table, type=np.full(len(table), 4, np.int8)) for table in tables]
    assert 0.1 < distances(colls, tables)["node kinds (JS, bits)"] <= 1


def test_what_is_wrong_is_one_line(nadi, folders, tmp_path):
    write_set(
        tmp_path / "bare",
        training_step(Model(name="m", layers=2, hidden=256, heads=2, vocab=512, sequence=64), parallel_plan("dp2,gb2")),
    )
    uneven = read_set(folders / "0")
    uneven = dataclasses.replace(uneven, trace_of_npu=np.array([0, 0, 0, 0, 1, 1, 1, -1], np.int32))
    write_set(tmp_path / "uneven", dataclasses.replace(uneven, families={}))
    for words, expected in (
        ((tmp_path / "none",), "none: no trace set, expected a folder with traces.json"),
        ((tmp_path / "bare",), "compute nodes without durations, expected some, or --gpu NAME"),
        ((tmp_path / "uneven",), "traces of different numbers of NPUs"),
        ((folders, "--model", "some"), "--model some: expected auto, network or counts"),
        ((folders, "--model", "counts", "--like", folders / "0", "--ranks", 6), "6 ranks: expected a multiple of 4"),
    ):
        found = nadi("trace", "synth", *words, "-o", tmp_path / "out")
        assert found.code == 2
        assert expected in found.err
        assert found.err.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_streams_send_before_they_receive(sets):
    for each in nonempty(sets):
        on_the_way = 0
        for event in nonempty(stream_of(each).events):
            on_the_way += (event.operation.kind == SEND) - (event.operation.kind == RECEIVE)
            assert on_the_way >= 0
        assert on_the_way == 0


def test_the_network_draws_as_it_has_learned(sets):
    """In NumPy, event by event, the probabilities are those of PyTorch."""
    pytest.importorskip("torch")
    learned = learn(sets[:2], "network", 1, epochs=1)
    stream = stream_of(sets[0])
    rows = encode(learned.words, stream)[:40]
    state, bits = learned.model.start(wanted_of(stream)), np.zeros(3)
    for row in rows.tolist():
        for field in range(3):
            chance = state.probabilities(field, row[:field])[row[field]]
            bits[field] -= np.log2((1 - 1e-3) * chance + 1e-3 / learned.words.sizes[field])
        state.push(row)
    assert bits == pytest.approx(learned.model.bits(rows, wanted_of(stream)), rel=1e-4)


class Told:
    """A model of computations of two classes: what it is told of each next class, after those before."""

    def __init__(self, chances):
        self.chances = chances

    def start(self, _wanted):
        return ToldState(self.chances, ())


class ToldState:
    def __init__(self, chances, before):
        self.chances, self.before = chances, before

    def probabilities(self, field, _event):
        if field == 0:
            return np.array([0, 0.1, 0.9])
        first = self.chances.get(self.before, 0.5)
        return np.array([0, 0, first, 1 - first, *[0] * (MOST_CLASSES - 2)]) if field == 1 else np.array([0, 1.0])

    def push(self, event):
        self.before = (*self.before, event[1] - FIRST)

    def copy(self):
        return ToldState(self.chances, self.before)


def test_the_likeliest_stream_is_found():
    """Against all that can happen, of which the first event that is likelier leads to a worse one."""
    events = [StreamEvent(0, Operation(COMPUTE), value, ()) for value in (1000, 2000, 2000, 1000, 1000, 2000)]
    stream = Stream(SetLayout(1, 1, ()), events)
    words, wanted = words_of([stream]), wanted_of(stream)
    orders = {(0, *order) for order in permutations((0, 0, 1, 1, 1))}
    draw = random.Random(4)  # noqa: S311 - no secret
    for _ in range(20):
        model = Told({order[:at]: draw.choice([1e-4, 0.3, 0.6, 0.999]) for order in orders for at in range(1, 7)})
        exact = {}
        for order in orders:
            chance = 0.5
            for at in range(1, len(order)):
                first = model.chances[order[:at]]
                chance *= (1 - first) if order[at] else first
            exact[order] = -np.log2(chance * 0.9 ** len(order) * 0.1)
        found = streams_found(model, words, wanted, width=len(orders))[0]
        assert found.is_whole
        assert tuple(each.value - FIRST for each in found.events) == min(exact, key=exact.__getitem__)
        assert found.bits == pytest.approx(min(exact.values()))
        one_by_one = streams_found(model, words, wanted, width=1)[0]
        assert one_by_one.bits >= found.bits - 1e-9


@pytest.mark.parametrize("kind", ["counts", "network"])
def test_a_copied_stream_goes_on_by_itself(sets, kind):
    """What comes after it does not change what it was copied from, and both say the same after the same events."""
    if kind == "network":
        pytest.importorskip("torch")
    learned = learn(sets[:2], kind, 1, epochs=1)
    stream = stream_of(sets[0])
    rows = encode(learned.words, stream).tolist()
    state = learned.model.start(wanted_of(stream))
    for row in rows[:20]:
        state.push(row)
    other = state.copy()
    expected = [other.probabilities(field, rows[20][:field]) for field in range(3)]
    for row in rows[20:50]:
        other.push(row)
    again = [state.probabilities(field, rows[20][:field]) for field in range(3)]
    assert all(np.array_equal(one, two) for one, two in zip(expected, again, strict=True))
    for row in rows[20:50]:
        state.push(row)
    for field in range(3):
        assert np.array_equal(*(each.probabilities(field, rows[50][:field]) for each in (state, other)))
