"""`nadi trace synth`: what is generated is valid, new, and what was asked for."""

import dataclasses
from collections import Counter, deque

import numpy as np
import pytest

from nadi import et
from nadi.et.synthesis import (
    Originals,
    generate,
    in_possible_order,
    learn,
    ordered_events,
    request_of,
    stream_of,
    with_values,
)
from nadi.et.synthesis.schedule import Schedule, events_in, parts_of, stretched
from nadi.et.synthesis.streams import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Operation,
    SetLayout,
    Stream,
    StreamEvent,
    layout_of,
    traces_of,
)
from nadi.et.synthesis.templates import NO_VALUE, PlacedEvent, classify, key_of
from nadi.workload import TraceSet, read_set, write_set
from nadi.workload.compute import ComputeTimes, find_gpu
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.generator import generate as training_step
from nadi.workload.program.durations import with_recorded_times
from tests.nonempty import nonempty

PLANS = ("tp2,pp2,dp2,gb8", "tp4,pp1,dp2,gb8", "tp1,pp4,dp2,gb8", "tp2,pp2,dp1,gb4")
FABRIC = "leaf-spine:leaves=4,hosts_per_leaf=8,spines=4,rate=100Gbps,delay=1us"


def trained(plan, layers=4, hidden=512, sequence=512):
    model = Model(name="m", layers=layers, hidden=hidden, heads=8, vocab=4096, sequence=sequence)
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
    def simulate(traces):
        words = [f"--set={setting}" for setting in (f"workload.traces={traces}", f"topology.spec={FABRIC}")]
        return nadi.ok("run", *words, "--fidelity", "closed-form", "--quiet", "--json").document["finish_time_ps"]

    return simulate


def as_set(layout, tables):
    roles = np.arange(layout.roles, dtype=np.int32)
    examples = (roles * layout.width).astype(np.int32)
    return TraceSet(tables, np.repeat(roles, layout.width), examples, layout.families_by_name())


@pytest.mark.parametrize("plan", [*PLANS, "tp2,pp4,dp2,gb8,vpp2", "tp2,pp1,cp1,dp4,gb8,zero1"])
def test_a_stream_says_what_its_traces_do(simulated, tmp_path, plan):
    """Traces made of the stream of a set take the time of the set, but for the order of what does not wait."""
    original = trained(plan, layers=8)
    stream = stream_of(original)
    assert list(map(len, stream.roles)) == list(map(len, original.traces))
    again = as_set(stream.layout, traces_of(stream))
    times = [simulated(write_set(tmp_path / name, each)) for name, each in (("one", original), ("other", again))]
    assert times[1] == pytest.approx(times[0], rel=0.01)


def test_classes_keep_values(sets):
    """Values come back from their classes to within 5 %, or one byte or microsecond; means are kept."""
    for stream in nonempty(map(stream_of, sets)):
        classified = classify(stream)
        pairs = [
            (event.value, classified.table[key_of(event.operation)][number])
            for events, classes in zip(stream.roles, classified.classes, strict=True)
            for event, number in zip(events, classes, strict=True)
            if number != NO_VALUE
        ]
        own = [event for events in stream.roles for event in events if event.operation.kind != RECEIVE]
        assert len(pairs) == sum(event.value > 0 for event in own) > 0
        assert all(abs(mean - value) <= max(0.05 * value, 1) for value, mean in pairs)
        assert sum(mean for _, mean in pairs) == pytest.approx(sum(value for value, _ in pairs))


def test_classes_of_many_values_are_wider():
    """At most 32 classes, whatever the values; ascending values are ascending classes."""
    events = [StreamEvent(Operation(COMPUTE), round(1.03**step), ()) for step in range(100, 500)]
    found = classify(Stream(SetLayout(1, 1, ()), [events]))
    assert found.classes[0] == sorted(found.classes[0])
    assert 8 < len(found.table[Operation(COMPUTE)]) == found.classes[0][-1] + 1 <= 32


def test_a_pass_is_told_by_its_layers():
    """A repeated layer is a part, told once; what does not repeat is one part."""
    layer = [(Operation(COMPUTE), 2), (Operation(COLLECTIVE), 2), (Operation(COMPUTE), 3), (Operation(COMPUTE), 4)]
    head = [(Operation(COMPUTE), 5), (Operation(COMPUTE), 6)]
    parts = parts_of([*20 * layer, *head])
    assert len(parts) == 21
    assert len(set(parts[:20])) == 1
    assert events_in(parts) == 82
    unlike = parts_of([(Operation(COMPUTE), number) for number in range(82)])
    assert len(unlike) == 1
    assert len(parts_of(head)) == 1
    assert events_in(stretched(parts, 2)) == pytest.approx(164, abs=8)
    assert {len(bag) for bag in stretched(parts, 2)} == {4, 2}


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_each_pass_has_what_is_asked_for(sets, number):
    """Between two messages of a role as many events of each operation as requested, and their sums."""

    def passes(events):
        found = [Counter()]
        for operation, value, _ in events:
            found[-1][operation] += 1
            found[-1][operation.kind, "sum"] += value
            if operation.kind in {SEND, RECEIVE}:
                found.append(Counter())
        return found

    stream = stream_of(sets[number])
    request = request_of(stream)
    roles = with_values(ordered_events(learn(sets), request), request, np.random.default_rng(1))
    for made, original in nonempty(zip(roles, stream.roles, strict=True)):
        for own, other in nonempty(zip(passes(made), passes(original), strict=True)):
            assert own.keys() == other.keys()
            for key, count in nonempty(other.items()):
                if isinstance(key, Operation):
                    assert own[key] == count
                elif key[0] != RECEIVE:
                    assert own[key] == pytest.approx(count, rel=0.1, abs=2)


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_a_learned_set_comes_back_in_its_order(sets, number):
    """The templates of a set that was learned are its own parts: same operations, parents and times within 5 %."""
    stream = stream_of(sets[number])
    request = request_of(stream)
    roles = with_values(ordered_events(learn(sets), request), request, np.random.default_rng(1))
    for made, original in nonempty(zip(roles, stream.roles, strict=True)):
        assert [each.operation for each in made] == [each.operation for each in original]
        assert [each.parents for each in made] == [each.parents for each in original]
        pairs = [(own.value, other.value) for own, other in zip(made, original, strict=True) if own.value > 100]
        assert pairs
        assert all(own == pytest.approx(value, rel=0.1) for own, value in pairs)


def test_another_width_of_the_model_has_the_same_order():
    """Parts of a model a quarter wider take the order of the narrow ones, rank by rank.

    Times decide the order of independent events. From a width of 1,024 to 1,280 no two of them change places; to 1,536
    some do on one of nine GPUs.
    """
    learned = learn([trained(plan, layers, 1024, 1024) for plan in PLANS for layers in (4, 8)])
    different = events = 0
    for plan in PLANS:
        stream = stream_of(trained(plan, 4, 1280, 1024))
        for made, original in nonempty(zip(ordered_events(learned, request_of(stream)), stream.roles, strict=True)):
            assert [each.operation for each in made] == [each.operation for each in original]
            different += sum(own.parents != other.parents for own, other in zip(made, original, strict=True))
            events += len(original)
    assert events > 500
    assert different <= 0.01 * events


def test_collectives_of_roles_that_do_not_meet_are_forced():
    """Two roles plan two common collectives in opposite orders: both get both, in one order."""
    layout = layout_of(trained("tp1,pp2,dp2,gb4")).layout
    common = [family.slot for family in layout.families if len(family.roles) == 2][:2]
    one, other = (Operation(COLLECTIVE, comm_type=0, slot=slot) for slot in common)
    queues = [deque(PlacedEvent(each, 0, ()) for each in order) for order in ((one, other), (other, one))]
    roles = in_possible_order(layout, queues)
    assert roles[0] == roles[1]
    assert Counter(each.operation for each in roles[0]) == {one: 1, other: 1}


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
    learned = learn(sets)
    wanted = learned.requests[0]
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


def test_the_command_generates_what_can_run(nadi, simulated, sets, folders, tmp_path):
    """Of another number of ranks and nodes; the same seed the same bytes, another seed others."""
    words = ("--like", folders / "0", "--ranks", 16, "--nodes", 60, "--json")
    outs = [tmp_path / name for name in ("one", "again", "other")]
    for out, seed in zip(outs, (3, 3, 4), strict=True):
        found = nadi.ok("trace", "synth", folders, "-o", out, *words, "--seed", seed)
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
        nadi.ok("trace", "synth", folders, "-o", out, "--seed", 1, *words)
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
    wanted = request_of(stream)
    found = Schedule(streams).plan(wanted.layout.roles, wanted.messages, wanted.passes, wanted.events)
    for role, passes in nonempty(enumerate(found)):
        own = [event.operation for event in stream.roles[role]]
        assert [each.kind.after for each in passes[:-1]] == [each for each in own if each.kind in {SEND, RECEIVE}]
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
    for stream in nonempty(streams):
        wanted = request_of(stream)
        found = schedule.plan(wanted.layout.roles, wanted.messages, wanted.passes, wanted.events)
        for role, passes in nonempty(enumerate(found)):
            own = [event.operation for event in stream.roles[role]]
            assert [each.kind.after for each in passes[:-1]] == [each for each in own if each.kind in {SEND, RECEIVE}]


def test_messages_that_no_schedule_was_learned_for_can_happen(sets):
    """Four stages where only two were seen: every message is sent, then received."""
    wanted = request_of(stream_of(sets[2]))
    found = Schedule([stream_of(sets[0])]).plan(4, wanted.messages, wanted.passes, wanted.events)
    left = [[each.kind.after for each in passes if each.kind.after is not None] for passes in found]
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


def test_what_is_wrong_is_one_line(nadi, folders, tmp_path):
    uneven = read_set(folders / "0")
    uneven = dataclasses.replace(uneven, trace_of_npu=np.array([0, 0, 0, 0, 1, 1, 1, -1], np.int32))
    write_set(tmp_path / "uneven", dataclasses.replace(uneven, families={}))
    for words, expected in (
        ((tmp_path / "uneven",), "traces of different numbers of NPUs"),
        ((folders, "--like", folders / "0", "--ranks", 6), "6 ranks: expected a multiple of 4"),
    ):
        found = nadi.refuse("trace", "synth", *words, "-o", tmp_path / "out")
        assert expected in found.err
        assert found.err.count("\n") == 1
        assert not (tmp_path / "out").exists()
